// What a rank displayed: a picture, a table, HTML in a frame where nothing runs, text.

import { h } from "./dom";
import type { Row } from "./lines";
import type { RunStore } from "./store";

interface Note {
  file: string;
  mime: string;
  text: string;
}

export function note(row: Row): Note {
  try {
    const value = JSON.parse(row.text) as { file?: unknown; mime?: unknown; text?: unknown };
    const mime = Array.isArray(value.mime) ? String(value.mime[0] ?? "") : String(value.mime ?? "");
    return { file: String(value.file ?? ""), mime, text: String(value.text ?? "") };
  } catch {
    return { file: "", mime: "", text: row.text };
  }
}

const FRAME_STYLE =
  "body{margin:0;font:13px/1.4 system-ui,sans-serif;color:#1f2328;background:#fff;overflow:auto}" +
  "table{border-collapse:collapse;font-size:12px;font-variant-numeric:tabular-nums}" +
  "th,td{padding:3px 10px;text-align:right;border:0;white-space:nowrap}" +
  "thead th{border-bottom:1px solid #8886}tbody tr:nth-child(even){background:#8881}pre{margin:0}";
const POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; font-src data:";

/** Fill a row's element; `resized` is called when its height is known. */
export function figure(into: HTMLElement, row: Row, store: RunStore, resized: () => void): void {
  const { file, mime, text } = note(row);
  if (!file) {
    into.replaceChildren(h("div", { class: "nb-figure nb-quiet" }, text || "a display that cannot be read"));
    return;
  }
  const held = store.display(row.rank, file);
  const key = `${file}/${held.version}`;
  if (into.dataset.figure === key) return;
  into.dataset.figure = key;
  const box = h("div", { class: "nb-figure" });
  into.replaceChildren(box);
  if (held.state === "error") {
    box.append(h("span", { class: "nb-quiet" }, `${file}: ${held.error}`));
  } else if (held.state === "asked") {
    box.append(h("span", { class: "nb-quiet" }, store.ready ? `${file} …` : `${file} comes when the kernel answers`));
  } else {
    box.append(content(mime, held.data, `rank ${row.rank}: ${file}`, resized));
  }
}

function content(mime: string, data: Uint8Array[], title: string, resized: () => void): HTMLElement {
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
    `<meta charset="utf-8"><style>${FRAME_STYLE}</style>${source}`;
  frame.addEventListener("load", () => {
    const page = frame.contentDocument?.documentElement;
    if (page) frame.style.height = `${Math.min(600, Math.max(24, page.scrollHeight))}px`;
    resized();
  });
  return frame;
}
