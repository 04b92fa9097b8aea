// Bundles the view and the launch panel into ../static, each one ES module and one style sheet. Fails when a script
// outgrows its budget.
import { build } from "esbuild";
import { statSync } from "node:fs";

const BUDGETS = { view: 60_000, panel: 30_000 };
const out = new URL("../static/", import.meta.url).pathname;

await build({
  entryPoints: { view: "src/index.ts", panel: "src/panel/index.ts" },
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  outdir: out,
  legalComments: "none",
});
await build({ entryPoints: { view: "src/view.css", panel: "src/panel/panel.css" }, minify: true, outdir: out });

for (const [name, budget] of Object.entries(BUDGETS)) {
  const size = statSync(`${out}${name}.js`).size;
  console.log(`${name}.js ${size} bytes, ${name}.css ${statSync(`${out}${name}.css`).size} bytes`);
  if (size > budget) {
    console.error(`${name}.js is over its budget of ${budget} bytes`);
    process.exitCode = 1;
  }
}
