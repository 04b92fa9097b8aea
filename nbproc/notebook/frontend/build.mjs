// Bundles the view into ../static: view.js (one ES module) and view.css. Fails when the script outgrows its budget.
import { build } from "esbuild";
import { statSync } from "node:fs";

const BUDGET = 60_000;
const out = new URL("../static/", import.meta.url).pathname;

await build({
  entryPoints: { view: "src/index.ts" },
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  outdir: out,
  legalComments: "none",
});
await build({ entryPoints: ["src/view.css"], minify: true, outdir: out });

const size = statSync(out + "view.js").size;
const style = statSync(out + "view.css").size;
console.log(`view.js ${size} bytes, view.css ${style} bytes`);
if (size > BUDGET) {
  console.error(`view.js is over its budget of ${BUDGET} bytes`);
  process.exit(1);
}
