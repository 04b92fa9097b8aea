// The table by rank: what stands in it counts in place of, or beside, what stands in the fields for all ranks.

import { attr, h, text } from "../dom";
import { select, textInput } from "./fields";
import { blank, countOf, EMPTY_ROW, type Row, type Values } from "./state";

const MOST = 256;
const NAMES: Record<string, string> = { "": "none", "0": "none", "1": "stdout", "2": "stderr", "3": "both" };
const MASKS: [string, string][] = [
  ["", "as above"],
  ["0", "none"],
  ["1", "stdout"],
  ["2", "stderr"],
  ["3", "both"],
];
const COLUMNS: (keyof Row)[] = ["arguments", "environment", "redirects", "tee"];

export class RankTable {
  readonly element = h("div", { class: "np-ranks np-wide" });
  private body = h("tbody");
  private more = h("p", { class: "np-note", hidden: true });
  private inputs: Record<keyof Row, HTMLInputElement | HTMLSelectElement>[] = [];
  private errors: HTMLElement[] = [];

  constructor(
    private id: string,
    private values: () => Values,
    private changed: () => void,
  ) {
    this.element.append(
      h(
        "div",
        { class: "np-scroll" },
        h(
          "table",
          { class: "np-table", "aria-label": "By rank" },
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ...["Rank", "Arguments", "Environment", "Redirect", "Tee"].map((name) => h("th", { scope: "col" }, name)),
            ),
          ),
          this.body,
        ),
      ),
      this.more,
    );
  }

  /** Take the values over into the table; rows are made and taken away as the number of ranks changes. */
  update(errors: Record<string, string>): void {
    const values = this.values();
    const count = Math.min(MOST, countOf(values));
    while (this.inputs.length < count) this.add(this.inputs.length);
    while (this.inputs.length > count) {
      this.inputs.pop();
      this.errors.pop();
      this.body.lastElementChild?.remove();
      this.body.lastElementChild?.remove();
    }
    text(this.more, countOf(values) > MOST ? `The table shows the first ${MOST} ranks.` : "");
    this.more.hidden = !this.more.textContent;
    this.inputs.forEach((row, rank) => {
      const own = values.ranks[rank] ?? EMPTY_ROW;
      const said: string[] = [];
      for (const column of COLUMNS) {
        const input = row[column];
        if (input.value !== own[column]) input.value = own[column];
        const error = errors[`${column}.${rank}`];
        attr(input, "aria-invalid", error ? "true" : null);
        attr(input, "aria-describedby", error ? `${this.id}-${rank}-error` : null);
        if (error) said.push(error);
        if (input instanceof HTMLInputElement) {
          const above = values[column as "arguments" | "environment"].trim();
          input.placeholder = above ? (column === "environment" ? `and ${above}` : above) : "";
        } else {
          const first = input.options[0]!;
          text(first, NAMES[values[column as "redirects" | "tee"]] ?? "as above");
        }
      }
      const line = this.errors[rank]!;
      text(line.querySelector("p")!, said.join(" "));
      line.hidden = !said.length;
    });
  }

  private add(rank: number): void {
    const change = (column: keyof Row) => (value: string) => {
      const values = this.values();
      const row = { ...(values.ranks[rank] ?? EMPTY_ROW), [column]: value };
      if (blank(row)) delete values.ranks[rank];
      else values.ranks[rank] = row;
      this.changed();
    };
    const id = `${this.id}-${rank}`;
    const row = {
      arguments: textInput(`${id}-arguments`, "", change("arguments"), true),
      environment: textInput(`${id}-environment`, "", change("environment"), true),
      redirects: select(`${id}-redirects`, MASKS, change("redirects")),
      tee: select(`${id}-tee`, MASKS, change("tee")),
    };
    for (const column of COLUMNS) row[column].setAttribute("aria-label", `${column} of rank ${rank}`);
    this.inputs.push(row);
    const line = h(
      "tr",
      { class: "np-said-row", hidden: true },
      h("td"),
      h("td", { colspan: 4 }, h("p", { class: "np-error", id: `${id}-error` })),
    );
    this.errors.push(line);
    this.body.append(
      h("tr", {}, h("th", { scope: "row" }, String(rank)), ...COLUMNS.map((column) => h("td", {}, row[column]))),
      line,
    );
  }
}
