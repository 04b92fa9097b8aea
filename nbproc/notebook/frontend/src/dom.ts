// Elements. Text goes in as text, never as HTML.

export type Child = Node | string | null | undefined | false;
export type Props = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;
type Tag = keyof HTMLElementTagNameMap;

/** `h("span.count", { title, click }, "text")`: classes get the view's prefix, functions are listeners. */
export function h<K extends Tag>(
  selector: K | `${K}.${string}`,
  ...parts: (Props | Child)[]
): HTMLElementTagNameMap[K] {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag as K);
  if (classes.length) element.className = classes.map((name) => `nb-${name}`).join(" ");
  for (const part of parts) {
    if (!part) continue;
    if (typeof part === "string" || part instanceof Node) element.append(part);
    else {
      for (const [name, value] of Object.entries(part)) {
        if (typeof value === "function") on(element, name, value);
        else attr(element, name, value === true ? "" : value === undefined || value === false ? null : value);
      }
    }
  }
  return element;
}

export function button(classes: string, ...parts: (Props | Child)[]): HTMLButtonElement {
  return h(`button${classes as ""}`, { type: "button" }, ...parts);
}

export function on(
  target: EventTarget,
  name: string,
  listener: (event: never) => void,
  options?: AddEventListenerOptions,
): void {
  target.addEventListener(name, listener as (event: Event) => void, options);
}

/** The event was for us: neither the page nor the notebook does anything with it. */
export function eat(event: Event): void {
  event.preventDefault();
  event.stopPropagation();
}

/** Where an arrow key, Home or End leads to in a row of n things; undefined for another key. In rows of `columns`
 * the keys up and down lead somewhere too. */
export function along(event: KeyboardEvent, at: number, n: number, columns = 0): number | undefined {
  const { key } = event;
  let to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: n - 1 }[key];
  if (columns && n > columns) to ??= { ArrowDown: at + columns, ArrowUp: at - columns }[key];
  if (to === undefined) return to;
  eat(event);
  return (to + n) % n;
}

/** Set text only when it is another one: a page that does not change is not laid out. */
export function text(element: Element, value: string): void {
  if (element.textContent !== value) element.textContent = value;
}

export function attr(element: Element, name: string, value: string | number | null): void {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== `${value}`) element.setAttribute(name, `${value}`);
}

const PATHS: Record<string, string> = {
  up: "M3 10l5-5 5 5",
  down: "M3 6l5 5 5-5",
  end: "M8 2v9M3.5 7L8 11.5 12.5 7M3 14h10",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  save: "M8 2v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
  wrap: "M2 4h12M2 8h9a2.5 2.5 0 010 5H8M9.5 11L7.5 13l2 2M2 12h3",
  time: "M8 2a6 6 0 110 12A6 6 0 018 2zM8 5v3.2L10.2 10",
  find: "M7 2.5a4.5 4.5 0 110 9 4.5 4.5 0 010-9zM10.3 10.3L14 14",
};

export function icon(name: keyof typeof PATHS): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  attr(svg, "viewBox", "0 0 16 16");
  attr(svg, "aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  attr(path, "d", PATHS[name]!);
  svg.append(path);
  return svg;
}
