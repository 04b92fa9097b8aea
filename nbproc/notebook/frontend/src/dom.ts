// Elements. Text goes in as text, never as HTML.

export type Child = Node | string | null | undefined | false;
type Props = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as (event: Event) => void);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children) if (child) element.append(child);
  return element;
}

/** Set text only when it is another one: a page that does not change is not laid out. */
export function text(element: Element, value: string): void {
  if (element.textContent !== value) element.textContent = value;
}

export function attr(element: Element, name: string, value: string | null): void {
  if (element.getAttribute(name) === value) return;
  if (value === null) element.removeAttribute(name);
  else element.setAttribute(name, value);
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
  figure: "M2.5 3.5h11v9h-11zM3 11l3-3 2 2 3-3.5 2.5 3",
};

export function icon(name: keyof typeof PATHS): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", PATHS[name]!);
  svg.append(path);
  return svg;
}
