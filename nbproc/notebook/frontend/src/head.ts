// The top of a view: the run's state, its name and time, a mark for each rank, Stop, how the run ended.

import { attr, button, along, h, text } from "./dom";
import { clock, duration, plural, timestamp } from "./format";
import { ticks } from "./numbers";
import { ended } from "./protocol";
import { painted, type RunStore } from "./store";

/** From so many ranks on the marks stand in rows of COLUMNS. */
export const MANY = 24;
const COLUMNS = 32;

export interface Head {
  readonly element: HTMLElement;
  /** What is to be known of the connection, below the head. */
  readonly notice: HTMLElement;
  sync(): void;
}

export function head(store: RunStore, open: (rank: number) => void, schedule: () => void): Head {
  const mark = h("i.mark.big");
  const word = h("strong.word", { role: "status" });
  const name = h("span.name");
  const facts = h("span.facts");
  const marks = h("div.marks", { role: "group", "aria-label": "Ranks", keydown: moveInMarks });
  const ending = h("span.grow");
  const stop = button(".stop", { disabled: true, click: pressStop }, "Stop");
  const notice = h("div.notice", { role: "status", hidden: true });
  const each: HTMLButtonElement[] = [];
  let killing = false;
  let seen: unknown;
  let reported: unknown;

  function sync(): void {
    const { snap } = store;
    if (!snap) {
      text(word, "connecting");
      attr(mark, "data-state", "waiting");
      return;
    }
    const { started, state, headline } = snap;
    const { gone, ready } = store;
    const over = ended(state);
    const lost = over ? "" : gone;
    const stopping = state === "stopping";
    attr(mark, "data-state", lost ? "stopped" : state);
    text(word, lost ? "ended with its kernel" : state === "created" ? "waiting" : state);
    text(name, snap.name);
    attr(name, "title", snap.name);
    const time = started !== null && (over ? duration : clock)((snap.ended ?? store.now()) - started);
    text(facts, plural(snap.ranks.length, "rank") + (time ? `, ${time}` : ""));
    const silent = (ticks() - store.heardAt) / 1000;
    text(
      notice,
      lost
        ? `${lost} at ${timestamp(store.goneAt, false)}; the run ended with it`
        : !over && silent > 20
          ? `no news from the kernel for ${clock(silent)}`
          : "",
    );
    notice.hidden = !notice.textContent;
    killing &&= stopping;
    stop.hidden = over || !!gone;
    stop.disabled = !ready || (stopping && !killing);
    text(stop, killing ? "Kill now" : stopping ? "Stopping" : "Stop");
    stop.title = !ready
      ? "The kernel does not answer while the cell runs: use the kernel's Interrupt"
      : stopping
        ? "End what is left at once"
        : "Stop all ranks (Interrupt, then harder)";
    text(ending, over ? headline : "");
    attr(ending, "title", over ? headline : null);
    if (seen !== snap || reported !== store.report) ranks();
    seen = snap;
    reported = store.report;
  }

  function pressStop(): void {
    const stopping = store.snap?.state === "stopping";
    store.ask({ t: stopping ? "kill" : "stop" });
    if (stopping) return;
    stop.disabled = true;
    setTimeout(() => {
      killing = true;
      schedule();
    }, 1_500);
  }

  function ranks(): void {
    const all = store.snap!.ranks;
    marks.classList.toggle("nb-many", all.length > MANY);
    all.forEach(([kind, , , , , words], rank) => {
      let made = each[rank];
      if (!made) {
        made = each[rank] = button(".mark", { tabindex: rank ? -1 : 0, click: () => open(rank) });
        marks.append(made);
      }
      const title = `rank ${rank}: ${kind}${words ? `, ${words.slice(0, 200)}` : ""}`;
      attr(made, "data-state", painted(store, rank));
      attr(made, "title", title);
      attr(made, "aria-label", title);
    });
  }

  function moveInMarks(event: KeyboardEvent): void {
    const to = along(event, each.indexOf(event.target as HTMLButtonElement), each.length, COLUMNS);
    if (to === undefined) return;
    each.forEach((other, rank) => (other.tabIndex = rank === to ? 0 : -1));
    each[to]!.focus();
  }

  return { element: h("header.head", mark, word, name, facts, marks, ending, stop), notice, sync };
}
