import { beforeEach, describe, expect, it, vi } from "vitest";
import type { Message, RankState, Run, SnapNews, Tick } from "../src/protocol";
import { displayed } from "../src/figure";
import { LINES_PER_RANK } from "../src/logs";
import { runStore, type RunStore } from "../src/store";

const encode = (lines: string[]): Uint8Array => new TextEncoder().encode(lines.join("\n"));
const snap = (n: number, of = [...Array(n).keys()], state: RankState = "running"): SnapNews => ({
  name: "trainer", state: "running", started: 1, ended: null, dir: "/runs/x", headline: "", notes: [], now: 2, size: n,
  ranks: of.map((rank) => [rank, state, 1, 1, null, null, "", ""]),
});

let store: RunStore;
let asked: Record<string, unknown>[];
let seq: number;

beforeEach(() => {
  store = runStore();
  asked = [];
  seq = 0;
  store.connect((question) => asked.push(question as Record<string, unknown>));
});

function tick(runs: Run[], lines: string[], more: Partial<Tick> = {}): void {
  store.receive({ t: "tick", seq: ++seq, now: Date.now() / 1000, runs, ...more }, encode(lines));
}
const to = (message: object): Message => ({ ...message, to: store.client }) as Message;
const shown = (rank = 0): string[] =>
  store.ranks[rank]!.lines.list().map((row) => (row.gap ? `(${row.gap})` : row.text));
const states = (): RankState[] => store.snap!.ranks.map(([state]) => state);

describe("lines", () => {
  it("stand in the order in which they came, streams mixed", () => {
    tick([[0, 0, 0, 2, 0, 1], [0, 1, 0, 1, 0, 1], [1, 0, 0, 1, 0, 1]], ["a", "b", "err", "other"], { snap: snap(2) });
    tick([[0, 0, 2, 1, 0, 2]], ["c"]);
    expect(shown(0)).toEqual(["a", "b", "err", "c"]);
    expect(shown(1)).toEqual(["other"]);
    expect(store.all.list().map((row) => row.text)).toEqual(["a", "b", "err", "other", "c"]);
  });

  it("change in place, as bars do", () => {
    tick([[0, 1, 0, 1, 1, 1]], ["10%"]);
    tick([[0, 1, 0, 1, 1, 2]], ["20%"]);
    tick([[0, 0, 0, 1, 0, 3]], ["a print"]);
    tick([[0, 1, 0, 2, 0, 4]], ["100%", "done"]);
    expect(shown()).toEqual(["100%", "a print", "done"]);
    expect(store.ranks[0]!.last?.text).toBe("done");
  });

  it("say how many are missing", () => {
    tick([[0, 0, 0, 1, 0, 1]], ["a"]);
    tick([[0, 0, 5, 1, 0, 1]], ["f"]);
    expect(shown()).toEqual(["a", "(4)", "f"]);
  });

  it("that came first with a high number have older ones in the log", () => {
    tick([[0, 0, 700, 1, 0, 1]], ["a"]);
    expect(shown()).toEqual(["a"]);
    expect(store.older(0, 0)).toBe(700);
  });

  it("are kept up to a limit", () => {
    const n = 30_000;
    const lines = Array.from({ length: n }, (_, i) => `${i}`);
    for (let k = 0; k < 3; k++) tick([[0, 0, k * n, n, 0, 1]], lines, k ? {} : { snap: snap(1) });
    const { size } = store.ranks[0]!.lines;
    expect(size).toBeLessThanOrEqual(LINES_PER_RANK + 1_000);
    expect(size).toBeGreaterThanOrEqual(LINES_PER_RANK);
    expect(store.older(0, 0)).toBe(3 * n - size);
  });

  it("that do not stand among all are counted", () => {
    const n = 40_000;
    const lines = Array.from({ length: n }, (_, i) => `${i}`);
    for (let rank = 0; rank < 6; rank++) tick([[rank, rank % 2, 0, n, 0, 1]], lines, rank ? {} : { snap: snap(6) });
    expect(store.all.size).toBeLessThanOrEqual(201_000);
    expect(store.missing()).toBe(6 * n - store.all.size);
    tick([[0, 0, n + 5, 1, 0, 2], [1, 2, 0, 1, 0, 2]], ["after a gap", "{}"]);
    expect(store.missing()).toBe(6 * n + 6 - store.all.list().filter((row) => !row.gap && row.stream !== 2).length);
  });

  it("that a replay brings are not missing", () => {
    tick([[0, 0, 0, 1, 0, 1]], ["a"], { snap: snap(1) });
    seq++;
    tick([[0, 0, 3, 1, 0, 1]], ["d"]);
    expect(store.missing()).toBe(2);
    store.receive(to({ t: "replay", seq, part: 0, parts: 1, runs: [[0, 0, 0, 4, 0, 1]] }), encode(["a", "b", "c", "d"]));
    expect(store.missing()).toBe(0);
  });

  it("may hold anything", () => {
    tick([[0, 0, 0, 3, 0, 1]], ["<script>alert(1)</script>", "", "\ufeffä 漢"]);
    expect(shown()).toEqual(["<script>alert(1)</script>", "", "\ufeffä 漢"]);
  });
});

describe("messages that were lost", () => {
  it("are asked for when the numbers have a gap", () => {
    tick([[0, 0, 0, 1, 0, 1]], ["a"], { snap: snap(1) });
    seq++;
    tick([[0, 0, 3, 1, 0, 1]], ["d"]);
    expect(asked.at(-1)).toMatchObject({ t: "replay" });
    store.receive(
      to({ t: "replay", seq, part: 0, parts: 1, runs: [[0, 0, 0, 4, 0, 1]], snap: snap(1), failure: null }),
      encode(["a", "b", "c", "d"]),
    );
    expect(shown()).toEqual(["a", "b", "c", "d"]);
    tick([[0, 0, 4, 1, 0, 1]], ["e"]);
    expect(shown()).toEqual(["a", "b", "c", "d", "e"]);
  });

  it("are asked for when the first message seen is not the first", () => {
    seq = 9;
    tick([[0, 0, 90, 1, 0, 1]], ["x"], { snap: snap(1) });
    expect(asked.map((question) => question.t)).toEqual(["hello", "replay"]);
  });

  it("are asked for when the kernel has said more than was heard", () => {
    store.receive(to({ t: "pong", seq: 4 }), new Uint8Array());
    expect(asked.at(-1)).toMatchObject({ t: "replay" });
    expect(store.ready).toBe(true);
  });

  it("keep their place between older and newer lines", () => {
    tick([[0, 0, 0, 2, 0, 1]], ["0", "1"], { snap: snap(1) });
    seq++;
    tick([[0, 0, 6, 1, 0, 9]], ["6"]);
    store.receive(
      to({ t: "replay", seq: seq - 1, part: 0, parts: 2, runs: [[0, 0, 3, 1, 0, 3]], snap: snap(1) }),
      encode(["3"]),
    );
    expect(shown()).toEqual(["0", "1", "(4)", "6"]);
    store.receive(to({ t: "replay", seq: seq - 1, part: 1, parts: 2, runs: [[0, 0, 4, 2, 0, 4]] }), encode(["4", "5"]));
    expect(shown()).toEqual(["0", "1", "(1)", "3", "4", "5", "6"]);
  });

  it("are asked for again if no answer comes", () => {
    vi.useFakeTimers();
    store.askReplay();
    vi.advanceTimersByTime(6_000);
    expect(asked.filter((question) => question.t === "replay").length).toBe(2);
    vi.useRealTimers();
  });

  it("hold only the ranks that have changed", () => {
    tick([], [], { snap: snap(3) });
    const first = store.snap;
    tick([], [], { snap: snap(3, [1], "failed") });
    expect(states()).toEqual(["running", "failed", "running"]);
    expect(store.snap).not.toBe(first);
  });

  it("leave no rank behind, whatever comes before the replay", () => {
    tick([], [], { snap: snap(4) });
    seq++; // says that rank 0 has failed
    tick([], [], { snap: snap(4, [1], "succeeded") });
    const told = seq;
    tick([], [], { snap: snap(4, [2], "stopped") });
    const whole = snap(4);
    whole.ranks[0]![1] = "failed";
    whole.ranks[1]![1] = "succeeded";
    store.receive(to({ t: "replay", seq: told, part: 0, parts: 1, runs: [], snap: whole }), encode([]));
    expect(states()).toEqual(["failed", "succeeded", "stopped", "running"]);
  });

  it("are asked for again if another one was lost meanwhile", () => {
    tick([], [], { snap: snap(2) });
    seq++;
    tick([], []);
    const told = seq;
    seq++;
    tick([], []);
    const replay = (): void =>
      store.receive(to({ t: "replay", seq: told, part: 0, parts: 1, runs: [], snap: snap(2, [0, 1], "failed") }), encode([]));
    replay();
    expect(states()).toEqual(["running", "running"]);
    expect(asked.filter((question) => question.t === "replay").length).toBe(2);
  });

  it("say nothing of ranks before all are known", () => {
    seq = 9;
    tick([], [], { snap: snap(3, [1]) });
    expect(store.snap).toBe(null);
    store.receive(to({ t: "replay", seq, part: 0, parts: 1, runs: [], snap: snap(3) }), encode([]));
    expect(states()).toEqual(["running", "running", "running"]);
  });

  it("for somebody else are not taken", () => {
    store.receive({ t: "pong", to: "another page", seq: 4 }, new Uint8Array());
    expect(store.ready).toBe(false);
  });
});

describe("older lines", () => {
  it("come before those held, and fill gaps", () => {
    tick([[0, 0, 10, 1, 0, 1]], ["10"], { snap: snap(1) });
    tick([[0, 0, 14, 1, 0, 1]], ["14"]);
    const page = (first: number, lines: string[]): void => {
      store.askPage(0, 0, first, lines.length);
      store.receive(
        to({
          t: "page", rank: 0, stream: 0, first, count: lines.length, part: 0, parts: 1,
          runs: [[0, 0, first, lines.length, 0, 0]],
        }),
        encode(lines),
      );
    };
    page(8, ["8", "9"]);
    expect(shown()).toEqual(["8", "9", "10", "(3)", "14"]);
    expect(store.older(0, 0)).toBe(8);
    page(11, ["11", "12"]);
    expect(shown()).toEqual(["8", "9", "10", "11", "12", "(1)", "14"]);
    page(13, ["13"]);
    expect(shown()).toEqual(["8", "9", "10", "11", "12", "13", "14"]);
  });

  it("that cannot be read are not offered for ever", () => {
    tick([[0, 0, 10, 1, 0, 1]], ["10"], { snap: snap(1) });
    store.askPage(0, 0, 0, 10);
    store.receive(
      to({ t: "page", rank: 0, stream: 0, first: 0, count: 10, part: 0, parts: 1, runs: [] }),
      new Uint8Array(),
    );
    expect(store.older(0, 0)).toBe(0);
  });
});

describe("displays", () => {
  const display = (n: number, update = 0): string =>
    JSON.stringify({ n, file: `display/00${n}.png`, mime: ["image/png"], kind: n ? "table" : "figure", update });

  it("that replace an earlier one keep its place", () => {
    tick([[0, 2, 0, 1, 0, 1], [0, 0, 0, 1, 0, 1], [0, 2, 1, 1, 0, 1]], [display(0), "text", display(0, 1)]);
    expect(shown()).toEqual([display(0, 1), "text"]);
    expect(store.ranks[0]!.displays.size).toBe(1);
  });

  it("that are cleared leave nothing", () => {
    tick([[0, 2, 0, 2, 0, 1]], [display(0), display(1)]);
    tick([[0, 2, 2, 1, 0, 1]], ['{"clear": true}']);
    expect(shown()).toEqual(["", ""]);
    expect(store.ranks[0]!.displays.size).toBe(0);
  });

  it("are counted by kind, and are no lines", () => {
    tick([[0, 2, 0, 4, 0, 1], [0, 0, 0, 1, 0, 1]], [display(0), display(1), display(2), '{"n": 3, "kind": ""}', "text"]);
    expect(displayed(store.ranks[0]!.displays.values())).toBe("1 figure, 2 tables");
    expect([store.ranks[0]!.lines.size, store.ranks[0]!.lines.written]).toEqual([5, 1]);
    tick([[0, 2, 4, 1, 0, 1]], ['{"clear": true}']);
    expect(displayed(store.ranks[0]!.displays.values())).toBe("");
  });

  it("arrive in pieces", () => {
    const held = store.display(0, "display/000.png", 0);
    const piece = (part: number): void =>
      store.receive(
        to({ t: "display", rank: 0, file: "display/000.png", update: 0, part, parts: 2 }),
        new Uint8Array([part]),
      );
    piece(0);
    expect(held.state).toBe("asked");
    piece(1);
    expect(held.state).toBe("here");
    expect(asked.filter((question) => question.t === "display").length).toBe(1);
  });
});

describe("a whole log", () => {
  it("comes in pieces, and says what was left out", async () => {
    const steps: number[] = [];
    const file = store.file(0, 0, (done) => steps.push(done));
    for (const offset of [0, 3]) {
      store.receive(
        to({ t: "file", rank: 0, stream: 0, offset, size: 6, whole: 90, path: "/runs/x/0/stdout.log" }),
        new Uint8Array(3),
      );
      await Promise.resolve();
      await Promise.resolve();
    }
    const { pieces, size, whole, path } = await file;
    expect([pieces.length, size, whole, path]).toEqual([2, 6, 90, "/runs/x/0/stdout.log"]);
    expect(steps).toEqual([3, 6]);
  });
});
