#!/usr/bin/env node
// Runs the tests of a plugin in TypeScript or JavaScript: test/*.test.ts and test/*.test.js, by node's own test runner.

import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, rmSync } from "node:fs";
import { join, resolve } from "node:path";

import { build } from "esbuild";

const folder = resolve(process.argv[2] ?? ".");
const tests = join(folder, "test");
const files = existsSync(tests) ? readdirSync(tests).filter((name) => /\.test\.[jt]s$/.test(name)) : [];
if (files.length === 0) {
  console.error(`error: there is no *.test.ts or *.test.js in ${tests}`);
  process.exit(1);
}
// Below the project, so that packages are found in its node_modules.
const outdir = join(folder, "build", "test");
rmSync(outdir, { recursive: true, force: true });
mkdirSync(outdir, { recursive: true });
try {
  await build({
    entryPoints: files.map((name) => join(tests, name)),
    outdir,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    packages: "external",
    sourcemap: "inline",
    logLevel: "warning",
  });
} catch {
  // esbuild has printed why.
  process.exit(1);
}
const built = readdirSync(outdir).map((name) => join(outdir, name));
process.exit(spawnSync(process.execPath, ["--enable-source-maps", "--test", ...built], { stdio: "inherit" }).status ?? 1);
