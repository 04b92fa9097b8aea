"""What a rank of a notebook's run has of the notebook: `get_ipython()`, `display()`, figures, and progress as text.

`install` is the run's set-up hook; it runs before anything of the user is unpickled. Heavy libraries are not imported
for it: each is adapted right after the user's code imports it.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.abc
import importlib.util
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from nbproc.notebook import formats
from nbproc.notebook.displays import Store, is_rich
from nbproc.notebook.shell import RankShell

__all__ = [
    "DisplayHandle",
    "clear_output",
    "display",
    "flush",
    "get_ipython",
    "install",
    "show_value",
    "update_display",
]

BACKEND = "module://nbproc.notebook.figures"
_NOTEBOOK_BACKENDS = ("", "agg", "inline", "widget", "ipympl", "nbagg", "notebook", "matplotlib_inline")
_WHY_TEXT = "(a widget in a rank cannot reach the page, so its text is shown)"


class _State:
    """What this process has been given; there is one rank in a process."""

    store: Store | None = None
    shell: RankShell | None = None
    figure_formats: tuple[str, ...] = ("png",)
    told_of_widgets = False


def install(*, directory: str | None = None, figure_formats: Sequence[str] = ("png",)) -> Callable[[], None]:
    """Make this process a rank of a notebook; return `flush`, to be called when the user's code has ended.

    ``directory`` is the rank's own; by default it is where its error file lies. Without one, displays are printed.
    ``figure_formats`` are the kernel's ("png", "retina", "svg", "jpeg", "pdf").
    """
    if directory is None and (error_file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        directory = os.path.dirname(error_file)
    _State.store = Store(Path(directory)) if directory else None
    _State.shell = RankShell()
    _State.figure_formats = tuple(figure_formats)
    if _is_notebook_backend(os.environ.get("MPLBACKEND", "")):
        os.environ["MPLBACKEND"] = "agg"  # for the processes that this one starts; here see `_adapt_matplotlib`
    builtins.get_ipython = get_ipython  # type: ignore[attr-defined]
    builtins.display = display  # type: ignore[attr-defined]
    _after_import({"matplotlib": _adapt_matplotlib, "IPython": _adapt_ipython, "tqdm.notebook": _adapt_tqdm})
    return flush


def get_ipython() -> RankShell | None:
    """Return the rank's small shell."""
    return _State.shell


# ------------------------------------------------------------------------------------------------------------ display


class DisplayHandle:
    """A display that can be replaced, as IPython's."""

    def __init__(self, display_id: str | None = None) -> None:
        self.display_id = display_id or uuid.uuid4().hex

    def display(self, value: object, **keywords: Any) -> None:
        """Show ``value`` under this name."""
        display(value, display_id=self.display_id, **keywords)

    def update(self, value: object, **keywords: Any) -> None:
        """Replace what is shown under this name."""
        update_display(value, display_id=self.display_id, **keywords)


def display(
    *values: object,
    include: object = None,
    exclude: object = None,
    metadata: dict[str, Any] | None = None,
    transient: dict[str, Any] | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,
    **_keywords: object,
) -> DisplayHandle | None:
    """Show values, as IPython's `display` does: what is rich becomes a file of the rank, what is text is printed."""
    if display_id is None and transient:
        display_id = transient.get("display_id")
    handle = DisplayHandle(display_id if isinstance(display_id, str) else None) if display_id else None
    if clear:
        clear_output(wait=True)
    for value in values:
        if not raw and _shows_itself(value):
            continue
        _show(*_made(value, raw, metadata), handle.display_id if handle else None)
    return handle


def _made(value: object, raw: bool, metadata: dict[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    if raw and isinstance(value, dict):
        return {mime: formats.raw(mime, content) for mime, content in value.items()}, metadata or {}
    data, its_own = formats.bundle(value, _State.figure_formats)
    return data, {**its_own, **(metadata or {})}


def _shows_itself(value: object) -> bool:
    """Call the object's `_ipython_display_`, if it has one that works."""
    if isinstance(value, type) or _is_widget(value) or formats.answers_to_all(value):
        return False
    try:
        own = getattr(value, "_ipython_display_", None)
        if not callable(own):
            return False
        own()
    except Exception as error:
        sys.stderr.write(f"{type(value).__name__}._ipython_display_ raised {type(error).__name__}: {error}\n")
        return False
    return True


def _show(data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, *, update: bool = False) -> None:
    if (text := formats.widget_text(data)) is not None:
        data = {"text/plain": text}
        if not _State.told_of_widgets:
            _State.told_of_widgets = True
            data = {"text/plain": f"{text}\n{_WHY_TEXT}"}
    if _State.store is None or not (is_rich(data) or display_id):
        print(data.get("text/plain", "".join(f"<{mime}>" for mime in data)), flush=True)  # noqa: T201
        return
    try:
        if update and display_id and _State.store.update(display_id, data, metadata):
            return
        _State.store.add(data, metadata, display_id)
    except OSError as error:
        sys.stderr.write(f"a display could not be kept: {error}\n")


def _is_widget(value: object) -> bool:
    widgets = sys.modules.get("ipywidgets")
    return widgets is not None and isinstance(value, widgets.Widget)


def update_display(value: object, *, display_id: str, **keywords: Any) -> None:
    """Replace the display of that name."""
    _show(*_made(value, keywords.get("raw", False), keywords.get("metadata")), display_id, update=True)


def publish_display_data(
    data: dict[str, Any],
    metadata: dict[str, Any] | None = None,
    *,
    transient: dict[str, Any] | None = None,
    update: bool = False,
    **_keywords: object,
) -> None:
    """Show a ready-made bundle, as IPython's function of this name."""
    _show(*_made(data, True, metadata), (transient or {}).get("display_id"), update=update)


def clear_output(wait: bool = False) -> None:
    """Take the rank's displays away, with ``wait`` when the next one comes. Its log stays."""
    if _State.store is not None:
        _State.store.clear(wait=wait)


def show_value(value: object) -> None:
    """Display the value of a cell's last expression if it is rich; plain values are only returned."""
    if _State.store is None or value is None or isinstance(value, (str, bytes, int, float, dict, list, tuple)):
        return
    if _shows_itself(value):
        return
    data, metadata = formats.rich(value, _State.figure_formats)
    if is_rich(data):
        _show({"text/plain": formats.text(value), **data}, metadata, None)


def flush() -> None:
    """Show the figures that are open and write what updates left unwritten. Does not raise."""
    if _State.store is None:
        return
    try:
        figures = sys.modules.get("nbproc.notebook.figures")
        if figures is not None:
            figures.show_open()
        _State.store.flush()
    except Exception as error:
        sys.stderr.write(f"a display could not be kept: {type(error).__name__}: {error}\n")


# ------------------------------------------------------------------------------------------------- other libraries


def _after_import(adapters: dict[str, Callable[[ModuleType], None]]) -> None:
    """Call each adapter once its module is imported; at once if it is."""
    waiting = dict(adapters)
    for name in adapters:
        if name in sys.modules:
            waiting.pop(name)(sys.modules[name])
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Watch)]
    if waiting:
        sys.meta_path.insert(0, _Watch(waiting))


class _Watch(importlib.abc.MetaPathFinder):
    """Finds nothing itself; has the loader of a module that is waited for call the adapter."""

    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self._waiting = waiting

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        adapter = self._waiting.pop(name, None)
        if adapter is None:
            return None
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if spec is None or loader is None:
            self._waiting[name] = adapter
            return spec
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                adapter(module)
            except Exception as error:  # the library changed: its displays are lost, the run is not
                sys.stderr.write(f"{name} could not be fitted to a rank: {type(error).__name__}: {error}\n")

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _is_notebook_backend(name: str) -> bool:
    """Whether a matplotlib backend shows in a notebook, or nowhere; any other the user chose on purpose."""
    return name.removeprefix("module://").partition(".")[0].lower() in _NOTEBOOK_BACKENDS


def _adapt_matplotlib(matplotlib: Any) -> None:
    if not _is_notebook_backend(os.environ.get("MPLBACKEND", "")):
        return
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:  # forked from the kernel: its figures are not this rank's
        pyplot.close("all")
    matplotlib.use(BACKEND)
    matplotlib.interactive(True)


def _adapt_ipython(ipython: Any) -> None:
    """Have everybody who took IPython's `display` and its kind use this module's."""
    source = importlib.import_module("IPython.display")
    ours = {
        name: globals()[name]
        for name in ("display", "update_display", "clear_output", "publish_display_data", "DisplayHandle")
    }
    theirs = {name: getattr(source, name) for name in ours if hasattr(source, name)}
    theirs["get_ipython"], ours["get_ipython"] = ipython.get_ipython, _no_shell
    for module in list(sys.modules.values()):
        attributes = getattr(module, "__dict__", {})
        if attributes is globals():
            continue
        for name, original in theirs.items():
            if attributes.get(name) is original:
                with contextlib.suppress(Exception):
                    setattr(module, name, ours[name])


def _no_shell() -> None:
    """Stand for `IPython.get_ipython` in a rank: libraries that ask it shall not take the rank for a notebook."""
    return


def _adapt_tqdm(notebook: Any) -> None:
    """Have `tqdm.notebook` draw the text bar."""
    plain: Any = importlib.import_module("tqdm.std").tqdm

    class TextBar(plain):
        """The text bar, which takes the keywords of the notebook's."""

        def __init__(self, *args: Any, **keywords: Any) -> None:
            keywords.pop("display", None)
            super().__init__(*args, **keywords)

    def bar_range(*args: Any, **keywords: Any) -> Any:
        return TextBar(range(*args), **keywords)

    for name in ("tqdm_notebook", "tqdm"):
        setattr(notebook, name, TextBar)
    for name in ("tnrange", "trange"):
        setattr(notebook, name, bar_range)
