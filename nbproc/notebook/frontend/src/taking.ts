// Taking lines out of the page: the clipboard, a selection that reaches beyond what is painted, files.

import { plain } from "./ansi";
import type { Controls } from "./controls";
import { eat, h, on } from "./dom";
import { bytes, count, plural, timestamp } from "./format";
import { DISPLAY, ERR, OUT, type Shown } from "./lines";
import { STREAM_NAMES, type RunStore } from "./store";

export interface Taking {
  copyAll(): void;
  download(): void;
  selectAll(): void;
}

const LONG = 12_000;

/** `box` holds the rows that are painted; `say` tells the reader, for some time. */
export function taking(
  store: RunStore,
  controls: Controls,
  box: HTMLElement,
  shown: () => Shown,
  say: (words: string, time?: number) => void,
): Taking {
  let selectedAll = false;

  function wholeText(): string {
    const { rows } = shown();
    shown().pump(5_000);
    let words = "";
    for (const { gap, stream, rank, time, text: line } of rows.list()) {
      if (gap || stream === DISPLAY) continue;
      if (controls.tab === "all") words += `${rank}  `;
      if (controls.time) words += `${timestamp(time)}  `;
      words += `${plain(line)}\n`;
    }
    return words;
  }

  async function download(): Promise<void> {
    const { tab } = controls;
    const { name } = store.snap!;
    if (typeof tab !== "number" || !store.ready) {
      const missing = typeof tab === "number" ? 0 : store.missing();
      save([wholeText()], typeof tab === "number" ? `${name}-${tab}` : name);
      if (missing) say(`Saved what is shown here; ${plural(missing, "line")} more in the ranks' logs`, LONG);
      return;
    }
    for (const stream of [OUT, ERR]) {
      if (!store.ranks[tab]!.next[stream]) continue;
      try {
        const { pieces, size, whole, path } = await store.file(tab, stream, (done, of) =>
          say(`${bytes(done)} of ${bytes(of)}`),
        );
        save(pieces as BlobPart[], `${name}-${tab}-${STREAM_NAMES[stream]}`);
        if (whole > size) say(`Saved the first ${bytes(size)} of ${bytes(whole)}; all of it is in ${path}`, LONG);
      } catch (error) {
        say(`not downloaded: ${(error as Error).message}`, LONG);
        return;
      }
    }
  }

  function copySelection(event: ClipboardEvent): void {
    const selection = document.getSelection();
    if (!event.clipboardData || !selection || selection.isCollapsed) return;
    const { startContainer, startOffset, endContainer, endOffset } = selection.getRangeAt(0);
    const lines: string[] = [];
    for (const part of selectedAll ? [] : box.querySelectorAll(".nb-text")) {
      if (!selection.containsNode(part, true)) continue;
      const piece = document.createRange();
      piece.selectNodeContents(part);
      if (part.contains(startContainer)) piece.setStart(startContainer, startOffset);
      if (part.contains(endContainer)) piece.setEnd(endContainer, endOffset);
      lines.push(`${piece}`);
    }
    event.clipboardData.setData("text/plain", selectedAll ? wholeText() : lines.join("\n"));
    eat(event);
  }

  on(box, "copy", copySelection);
  return {
    copyAll() {
      const words = wholeText();
      void toClipboard(words).then(() => say(`Copied ${plural(shown().rows.size, "line")}`));
    },
    download: () => void download(),
    selectAll() {
      document.getSelection()?.selectAllChildren(box);
      selectedAll = true;
      const forget = (): void => void (selectedAll = false);
      setTimeout(() => on(document, "selectionchange", forget, { once: true }), 100);
      say(`All ${count(shown().rows.size)} lines are selected`);
    },
  };
}

export async function toClipboard(words: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(words);
  } catch {
    const area = h("textarea", { style: "position:fixed;opacity:0" });
    area.value = words;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

function save(pieces: BlobPart[], name: string): void {
  const url = URL.createObjectURL(new Blob(pieces, { type: "text/plain" }));
  h("a", { href: url, download: `${name}.log` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
