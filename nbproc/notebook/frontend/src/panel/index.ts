// The launch panel's entry, called by anywidget: the form above, the runs that it has started below.

import { h } from "../dom";
import { follow, initial } from "../theme";
import { FormView } from "./form";
import { RunList } from "./runs";
import { keptOf, type Host, type Model } from "./state";

let views = 0;

function watchWidth(root: HTMLElement): () => void {
  const observer = new ResizeObserver(() => {
    root.classList.toggle("np-narrow", root.clientWidth > 0 && root.clientWidth < 640);
  });
  observer.observe(root);
  return () => observer.disconnect();
}

export default {
  render({ model, el, host }: { model: Model; el: HTMLElement; host?: Host }): () => void {
    const kept = keptOf(String(model.get("panel_id")));
    const form = new FormView(`np${++views}`, model, kept);
    const runs = new RunList(model, host, kept);
    // Lab's shortcuts would take keys that are meant for the form.
    const root = h("section", { class: "np", "aria-label": "Launch panel", "data-lm-suppress-shortcuts": "true" }, form.element, runs.element);
    root.addEventListener("keydown", (event) => event.stopPropagation());
    el.append(root);
    const cleanups = [follow(root, initial(), () => undefined), watchWidth(root), () => form.dispose(), () => runs.dispose(), () => root.remove()];
    return () => cleanups.forEach((clean) => clean());
  },
};
