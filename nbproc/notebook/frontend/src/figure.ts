// What a rank displayed: a picture, a table, HTML in a frame where nothing runs, text.

import { h, on } from "./dom";
import { plural } from "./format";
import type { Row } from "./lines";
import { min } from "./numbers";
import type { DisplayRecord } from "./protocol";
import type { RunStore } from "./store";
import type { Theme } from "./theme";

export interface Note {
  /** The display's number in its rank, null for a remark. */
  n: number | null;
  file: string;
  mime: string;
  /** "figure", "table" or "output"; "" for a remark. */
  kind: string;
  text: string;
  update: number;
  clear: boolean;
}

/** What the text of a row of the display stream says. */
export function note(text: string): Note {
  let value: DisplayRecord;
  try {
    value = Object(JSON.parse(text)) as DisplayRecord;
  } catch {
    value = { text };
  }
  const { n = null, file = "", mime, kind = "output", update = 0, clear = false } = value;
  const words = `${value.text ?? ""}`;
  return { n, file: `${file}`, mime: `${[mime].flat()[0] ?? ""}`, kind: `${kind}`, text: words, update, clear };
}

/** Count what was displayed in words: "2 figures", "1 figure, 3 tables". */
export function displayed(rows: Iterable<Row> = []): string {
  const counts = new Map<string, number>();
  for (const { kind } of rows) if (kind) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].map(([kind, n]) => plural(n, kind)).join(", ");
}

const FRAME_STYLE =
  "body{margin:0;font:13px/1.4 system-ui,sans-serif;overflow:auto}" +
  "table{border-collapse:collapse;border:0;font-size:12px;font-variant-numeric:tabular-nums}" +
  "th,td{padding:3px 10px;text-align:right;border:0;white-space:nowrap}" +
  "thead th{border-bottom:1px solid #8886}tbody tr:nth-child(even){background:#8881}pre{margin:0}";
const POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:";

/** Fill a row's element; `resized` is called when its height is known. */
export function figure(into: HTMLElement, row: Row, store: RunStore, theme: Theme, resized: () => void): void {
  const { file, mime, text, update } = note(row.text);
  const held = file ? store.display(row.rank, file, update) : null;
  const key = `${file}/${update}/${held?.version}/${theme.background}`;
  if (into.dataset.figure === key) return;
  into.dataset.figure = key;
  into.replaceChildren(
    held?.state === "here"
      ? h("div.figure", content(theme, mime, held.data, text || file, resized))
      : h(
          "div.figure.quiet",
          !held
            ? text || "a display that cannot be read"
            : held.state === "error"
              ? `${file}: ${held.error}`
              : `${file} ${store.ready ? "…" : "comes when the kernel answers"}`,
        ),
  );
}

function content(theme: Theme, mime: string, data: Uint8Array[], title: string, resized: () => void): HTMLElement {
  const blob = new Blob(data as BlobPart[], { type: mime });
  if (mime.startsWith("image/")) {
    const url = URL.createObjectURL(blob);
    const load = (): void => {
      URL.revokeObjectURL(url);
      resized();
    };
    return h("img", { src: url, alt: title, load });
  }
  const html = mime === "text/html";
  const box = html
    ? // No scripts, nothing from outside; the same origin only so that its height can be read.
      h("iframe", { sandbox: "allow-same-origin", title, referrerpolicy: "no-referrer" })
    : h("pre");
  void blob.text().then((source) => {
    if (!(box instanceof HTMLIFrameElement)) {
      box.textContent = source;
      resized();
      return;
    }
    // The page's own colours, so that a table does not glare in a dark theme.
    const { dark, background, ink } = theme;
    const colours = `background:rgb(${background});color:rgb(${ink});color-scheme:${dark ? "dark" : "light"}`;
    box.srcdoc =
      `<!doctype html><meta http-equiv="Content-Security-Policy" content="${POLICY}">` +
      `<meta charset="utf-8"><style>${FRAME_STYLE}body{${colours}}</style>${source}`;
    on(box, "load", () => {
      const page = box.contentDocument?.documentElement;
      // The page's own height, not that of the frame; wide content has a scroll bar under it.
      if (page) box.style.height = `${min(600, page.offsetHeight + (page.scrollWidth > page.clientWidth ? 18 : 2))}px`;
      resized();
    });
  });
  return box;
}
