import { describe, expect, it } from "vitest";
import { Heights } from "../src/heights";
import { Lines, Shown, type Row } from "../src/lines";

const row = (n: number, text = `line ${n}`): Row => ({
  rank: 0, stream: 0, n, text, time: n, open: false, gap: 0, version: 0,
});
const filled = (count: number): Lines => {
  const lines = new Lines();
  for (let n = 0; n < count; n++) lines.push(row(n));
  return lines;
};
const numbers = (shown: Shown): number[] => shown.rows.list().map((r) => r.n);

describe("a queue of rows", () => {
  it("keeps the indexes of the rows when older ones go", () => {
    const lines = filled(10_000);
    lines.drop(9_000);
    expect(lines.first).toBe(9_000);
    expect(lines.at(9_500)?.n).toBe(9_500);
    expect(lines.at(8_999)).toBeUndefined();
    expect(lines.size).toBe(1_000);
    lines.push(row(10_000));
    expect(lines.at(lines.end - 1)?.n).toBe(10_000);
  });
});

describe("a filter", () => {
  const even = (r: Row): boolean => Number(r.text.split(" ")[1]) % 2 === 0;

  it("shows what passes, also of lines that come later", () => {
    const lines = filled(6);
    const shown = new Shown(lines, even);
    shown.pump(1_000);
    expect(numbers(shown)).toEqual([0, 2, 4]);
    lines.push(row(6));
    lines.push(row(7));
    shown.pump(1_000);
    expect(numbers(shown)).toEqual([0, 2, 4, 6]);
  });

  it("forgets rows that the log has dropped", () => {
    const lines = filled(100);
    const shown = new Shown(lines, even);
    shown.pump(1_000);
    lines.drop(95);
    shown.pump(1_000);
    expect(numbers(shown)).toEqual([96, 98]);
  });

  it("follows a line that changes, as a bar does", () => {
    const lines = filled(4);
    const shown = new Shown(lines, even);
    shown.pump(1_000);
    lines.at(3)!.text = "line 8";
    lines.at(0)!.text = "line 1";
    lines.edits++;
    shown.pump(1_000);
    expect(numbers(shown)).toEqual([2, 3]);
  });

  it("works in slices, and ends", () => {
    const lines = filled(20_000);
    const shown = new Shown(lines, even);
    let slices = 0;
    while (!shown.done) {
      shown.pump(0);
      slices++;
    }
    expect(slices).toBeGreaterThan(10);
    expect(shown.rows.size).toBe(10_000);
  });

  it("is the log itself when there is none", () => {
    const lines = filled(3);
    expect(new Shown(lines, null).rows).toBe(lines);
  });
});

describe("heights", () => {
  it("agrees with adding them up", () => {
    const heights = new Heights(10);
    const real = Array.from({ length: 200 }, (_, i) => (i % 7 === 3 ? 10 + i : 10));
    heights.reset(0);
    real.forEach((height, i) => height !== 10 && heights.set(i, height));
    const top = (i: number): number => real.slice(0, i).reduce((a, b) => a + b, 0);
    for (let i = 0; i <= 200; i++) expect(heights.top(i)).toBe(top(i));
    for (const i of [0, 3, 4, 57, 199]) expect(heights.find(top(i) + 1, 200)).toBe(i);
    expect(heights.set(3, 10)).toBe(true);
    expect(heights.set(3, 10)).toBe(false);
    expect(heights.top(4)).toBe(40);
    heights.truncate(100);
    expect(heights.get(101)).toBe(10);
  });

  it("counts from the oldest row that is left", () => {
    const heights = new Heights(10);
    heights.reset(0);
    heights.set(2, 30);
    heights.set(5, 50);
    heights.drop(3);
    expect(heights.top(3)).toBe(0);
    expect(heights.top(6)).toBe(70);
    expect(heights.find(65, 20)).toBe(5);
  });
});
