// Copies the contract into the package, so that it can be built against without a checkout.

import { cpSync, existsSync, rmSync } from "node:fs";

const from = new URL("../../../wit", import.meta.url);
const to = new URL("../wit", import.meta.url);
if (existsSync(from)) {
  rmSync(to, { recursive: true, force: true });
  cpSync(from, to, { recursive: true });
}
