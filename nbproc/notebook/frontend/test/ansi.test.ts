import { describe, expect, it } from "vitest";
import { contrast, parse, plain, readable } from "../src/ansi";

describe("escape sequences", () => {
  it("leaves plain text alone", () => {
    expect(parse("loss 0.1")).toEqual({ plain: "loss 0.1", spans: [{ start: 0, end: 8, style: null }] });
    expect(plain("\x1b[1;31mred\x1b[0m and not")).toBe("red and not");
  });

  it("keeps a style until it ends", () => {
    const { plain, spans } = parse("a\x1b[31mb\x1b[1mc\x1b[39md\x1b[0me");
    expect(plain).toBe("abcde");
    expect(spans.map((s) => [s.style?.fg ?? null, s.style?.bold ?? false])).toEqual([
      [null, false],
      [1, false],
      [1, true],
      [null, true],
      [null, false],
    ]);
  });

  it("knows bright colours, 256 colours and true colours", () => {
    const style = (codes: string) => parse(`\x1b[${codes}mx`).spans[0]?.style;
    expect(style("92")?.fg).toBe(10);
    expect(style("38;5;9")?.fg).toBe(9);
    expect(style("38;5;196")?.fg).toEqual([255, 0, 0]);
    expect(style("38;5;244")?.fg).toEqual([128, 128, 128]);
    expect(style("48;2;1;2;3")?.bg).toEqual([1, 2, 3]);
    expect(style("38;2;999;;3")?.fg).toEqual([255, 0, 3]);
  });

  it("survives codes that mean nothing", () => {
    expect(parse("\x1b[999mx\x1b[38mx\x1b[;;mx").plain).toBe("xxx");
  });
});

describe("colours that can be read", () => {
  it.each([
    [[255, 255, 255], [255, 255, 255]],
    [[255, 255, 0], [255, 255, 255]],
    [[0, 0, 139], [17, 17, 17]],
    [[0, 0, 0], [0, 0, 0]],
  ])("moves %j away from %j", (colour, background) => {
    expect(contrast(readable(colour, background), background)).toBeGreaterThanOrEqual(4.5);
  });

  it("leaves what can be read", () => {
    expect(readable([0, 0, 0], [255, 255, 255])).toEqual([0, 0, 0]);
  });
});
