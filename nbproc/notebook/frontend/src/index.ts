// The entry that anywidget calls. What the browser knows of a run lives in a map of the module, since the models
// of `initialize` and of `render` are not the same object, and a run may be shown more than once.

import type { Message } from "./protocol";
import { runStore, type RunStore } from "./store";
import { view, type View } from "./view";

/** The kernel as JupyterLab's widget manager knows it; other front ends may have none. */
interface Kernel {
  statusChanged?: {
    connect(slot: (sender: unknown, status: string) => void): void;
    disconnect(slot: (sender: unknown, status: string) => void): void;
  };
}

interface Model {
  widget_manager?: { kernel?: Kernel };
  get(name: string): unknown;
  on(event: string, listener: (...args: never[]) => void): void;
  off(event: string, listener?: (...args: never[]) => void): void;
  send(content: object): void;
}

const stores = new Map<string, RunStore>();
const views = new Set<View>();

function storeOf(model: Model): RunStore {
  const id = String(model.get("run_id"));
  let store = stores.get(id);
  if (!store) stores.set(id, (store = runStore()));
  return store;
}

function bytesOf(buffer: ArrayBuffer | DataView = new ArrayBuffer()): Uint8Array {
  return buffer instanceof DataView
    ? new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength)
    : new Uint8Array(buffer);
}

const ENDS: Record<string, string> = {
  restarting: "kernel restarted",
  autorestarting: "kernel died",
  dead: "kernel died",
  terminating: "kernel shut down",
};

/** Notice when the kernel ends. Returns how to stop looking. */
function watch(model: Model, store: RunStore): () => void {
  const signal = model.widget_manager?.kernel?.statusChanged;
  const slot = (_sender: unknown, status: string): void => {
    if (ENDS[status]) store.lose(ENDS[status]);
  };
  signal?.connect(slot);
  return () => signal?.disconnect(slot);
}

export default {
  initialize({ model }: { model: Model }): () => void {
    const store = storeOf(model);
    const receive = (message: Message, buffers: (ArrayBuffer | DataView)[] = []): void =>
      store.receive(message, bytesOf(buffers[0]));
    model.on("msg:custom", receive);
    const disconnect = store.connect((question) => model.send(question));
    const ignore = watch(model, store);
    return () => {
      ignore();
      model.off("msg:custom", receive);
      disconnect();
    };
  },
  render({ model, el }: { model: Model; el: HTMLElement }): () => void {
    const store = storeOf(model);
    // When an output is saved, JupyterLab throws the element of its view away, by itself and not with the cell, and
    // asks for a new one. What the reader has open and types in moves there.
    let mine = [...views].find((known) => known.store === store && !known.el.parentNode);
    if (mine) mine.moveTo(el);
    else views.add((mine = view(el, store)));
    const kept = mine;
    return () => {
      if (kept.el !== el) return;
      kept.dispose();
      views.delete(kept);
    };
  },
};
