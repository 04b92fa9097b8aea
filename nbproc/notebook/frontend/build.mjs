// Bundles the view and the launch panel into ../static, each one ES module and one style sheet. Fails when a script
// outgrows its budget.
import { build } from "esbuild";
import { statSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { ownNames } from "./names.mjs";

const BUDGETS = { view: 40_000, panel: 30_000 };
const here = fileURLToPath(new URL("./", import.meta.url));
const out = fileURLToPath(new URL("../static/", import.meta.url));
const options = { absWorkingDir: here, bundle: true, format: "esm", target: "es2022", minify: true, outdir: out };

await build({
  ...options,
  entryPoints: { view: "src/index.ts" },
  mangleProps: new RegExp(`^(${ownNames(here, "src/*.ts").join("|")})$`),
});
await build({ ...options, entryPoints: { panel: "src/panel/index.ts" } });
await build({ ...options, entryPoints: { view: "src/view.css", panel: "src/panel/panel.css" } });

for (const [name, budget] of Object.entries(BUDGETS)) {
  const size = statSync(`${out}${name}.js`).size;
  console.log(`${name}.js ${size} bytes, ${name}.css ${statSync(`${out}${name}.css`).size} bytes`);
  if (size > budget) {
    console.error(`${name}.js is over its budget of ${budget} bytes`);
    process.exitCode = 1;
  }
}
