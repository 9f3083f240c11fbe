#!/usr/bin/env node
// Builds the component of a plugin: build/NAME.wasm, and beside it NAME.js, to which the lines in stacks refer.

import {
  appendFileSync,
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const USAGE = `Usage: pilothouse-build [FOLDER] [--output FILE]

Builds the plugin of the project in a folder: build/NAME.wasm. NAME is the package's, and its variable \`plugin\` is exported by
src/plugin.ts, src/plugin.js, or what "pilothouse": {"plugin": "FILE"} in package.json names.

Example: npx pilothouse-build && pilothouse dev --plugins build`;

/** What a plugin of this SDK exports. The host calls what the manifest has. */
const WORLD = `
world javascript {
    include plugin;
    include observing;
    include admitting;
}
`;

class Refused extends Error {}

/** Returns the name and the main file of the project. */
function project(folder) {
  const file = join(folder, "package.json");
  if (!existsSync(file)) throw new Refused(`${file} is not there: run this in the folder of a project`);
  let content;
  try {
    content = JSON.parse(readFileSync(file, "utf8"));
  } catch (error) {
    throw new Refused(`${file} is not valid: ${error.message}`);
  }
  const name = String(content.name).replace(/^@.*\//, "");
  if (!/^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$/.test(name)) {
    throw new Refused(`${file}: \`name\` must be lower-case letters, digits and \`-\`, and at most 63, not ${content.name}`);
  }
  const named = content.pilothouse?.plugin;
  const main = (named ? [named] : ["src/plugin.ts", "src/plugin.js"]).find((path) => existsSync(join(folder, path)));
  if (!main) throw new Refused(`${named ?? "src/plugin.ts or src/plugin.js"} is not there: it exports the variable \`plugin\``);
  return { name, main };
}

async function bundle(folder, main, outfile) {
  const { build } = await import("esbuild");
  const component = fileURLToPath(new URL("../src/component.js", import.meta.url));
  const contents = `
    import { exported } from ${JSON.stringify(component)};
    import { plugin } from ${JSON.stringify(`./${main}`)};
    export const { controller, observer, admission } = exported(plugin);
  `;
  await build({
    stdin: { contents, resolveDir: folder, sourcefile: "component.js" },
    outfile,
    bundle: true,
    format: "esm",
    platform: "neutral",
    mainFields: ["module", "main"],
    target: "es2022",
    external: ["pilothouse:*"],
    // The plugin and the component share the classes of one copy of the SDK.
    alias: { "@pilothouse/sdk": fileURLToPath(new URL("../src/index.js", import.meta.url)) },
    logLevel: "warning",
  }).catch(() => {
    throw new Refused("esbuild cannot bundle the plugin: its message is above");
  });
}

async function main() {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: { output: { type: "string", short: "o" }, help: { type: "boolean", short: "h" } },
  });
  if (values.help) return console.log(USAGE);
  const folder = resolve(positionals[0] ?? ".");
  const { name, main } = project(folder);
  const output = values.output ? resolve(values.output) : join(folder, "build", `${name}.wasm`);
  mkdirSync(dirname(output), { recursive: true });
  console.log(`building ${output}: some seconds`);
  const script = output.replace(/(\.wasm)?$/, ".js");
  await bundle(folder, main, script);
  const { componentize } = await import("@bytecodealliance/componentize-js");
  const contract = mkdtempSync(join(tmpdir(), "pilothouse-"));
  let component;
  try {
    cpSync(wit(), contract, { recursive: true });
    appendFileSync(join(contract, "plugin.wit"), WORLD);
    ({ component } = await componentize({
      sourcePath: script,
      witPath: contract,
      worldName: "javascript",
      // The host has no WASI HTTP. It has the contract's `http`.
      disableFeatures: ["http", "fetch-event"],
    }));
  } finally {
    rmSync(contract, { recursive: true, force: true });
  }
  // Renamed into place, so that a host that watches the folder never loads half a file.
  const made = join(dirname(output), `.${basename(output)}.${process.pid}`);
  writeFileSync(made, component);
  renameSync(made, output);
  console.log(`built ${output}: ${(statSync(output).size / 1e6).toFixed(1)} MB`);
}

/** Returns the folder of the contract: that of the package, or in a checkout, the checkout's. */
function wit() {
  const [packaged, checkout] = ["../wit", "../../../wit"].map((path) => fileURLToPath(new URL(path, import.meta.url)));
  return existsSync(checkout) && existsSync(join(checkout, "plugin.wit")) ? checkout : packaged;
}

main().catch((error) => {
  console.error(`error: ${error instanceof Refused ? error.message : (error.stack ?? error)}`);
  process.exitCode = 1;
});
