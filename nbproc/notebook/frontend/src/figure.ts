// What a rank displayed: a picture, a table, HTML in a frame where nothing runs, text.

import { h } from "./dom";
import type { Row } from "./lines";
import type { Theme } from "./paint";
import type { RunStore } from "./store";

export interface Note {
  /** The display's number in its rank, null for a remark. */
  n: number | null;
  file: string;
  mime: string;
  text: string;
  update: number;
  clear: boolean;
}

/** What the text of a row of the display stream says. */
export function note(text: string): Note {
  let value: Record<string, unknown> = {};
  try {
    value = JSON.parse(text) as Record<string, unknown>;
  } catch {
    value = { text };
  }
  const mimes = Array.isArray(value.mime) ? value.mime : [value.mime];
  return {
    n: typeof value.n === "number" ? value.n : null,
    file: typeof value.file === "string" ? value.file : "",
    mime: String(mimes[0] ?? ""),
    text: String(value.text ?? ""),
    update: Number(value.update ?? 0),
    clear: value.clear === true,
  };
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
  if (!file) {
    into.replaceChildren(h("div", { class: "nb-figure nb-quiet" }, text || "a display that cannot be read"));
    return;
  }
  const held = store.display(row.rank, file, update);
  const key = `${file}/${update}/${held.version}/${String(theme.background)}`;
  if (into.dataset.figure === key) return;
  into.dataset.figure = key;
  const box = h("div", { class: "nb-figure" });
  into.replaceChildren(box);
  if (held.state === "error") {
    box.append(h("span", { class: "nb-quiet" }, `${file}: ${held.error}`));
  } else if (held.state === "asked") {
    box.append(h("span", { class: "nb-quiet" }, store.ready ? `${file} …` : `${file} comes when the kernel answers`));
  } else {
    box.append(content(theme, mime, held.data, text || file, resized));
  }
}

/** The page's own colours, so that a table does not glare in a dark theme. */
function colours({ dark, background, ink }: Theme): string {
  return `background:rgb(${background});color:rgb(${ink});color-scheme:${dark ? "dark" : "light"}`;
}

function content(theme: Theme, mime: string, data: Uint8Array[], title: string, resized: () => void): HTMLElement {
  if (mime.startsWith("image/")) {
    const url = URL.createObjectURL(new Blob(data as BlobPart[], { type: mime }));
    const image = h("img", { src: url, alt: title });
    image.addEventListener("load", () => {
      URL.revokeObjectURL(url);
      resized();
    });
    return image;
  }
  const decoder = new TextDecoder();
  const source = data.map((piece) => decoder.decode(piece, { stream: true })).join("") + decoder.decode();
  if (mime !== "text/html") return h("pre", {}, source);
  // No scripts, nothing from outside; the same origin only so that its height can be read.
  const frame = h("iframe", { sandbox: "allow-same-origin", title, referrerpolicy: "no-referrer" });
  frame.srcdoc =
    `<!doctype html><meta http-equiv="Content-Security-Policy" content="${POLICY}">` +
    `<meta charset="utf-8"><style>${FRAME_STYLE}body{${colours(theme)}}</style>${source}`;
  frame.addEventListener("load", () => {
    const page = frame.contentDocument?.documentElement;
    if (page) frame.style.height = `${Math.min(600, Math.max(24, page.scrollHeight))}px`;
    resized();
  });
  return frame;
}
