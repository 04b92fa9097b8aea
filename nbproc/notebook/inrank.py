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
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, ModuleType
from typing import Any

from nbproc.notebook import show
from nbproc.notebook.shell import RankShell

__all__ = ["get_ipython", "install"]

BACKEND = "module://nbproc.notebook.figures"
_NOTEBOOK_BACKENDS = ("", "agg", "inline", "widget", "ipympl", "nbagg", "notebook", "matplotlib_inline")


_shells: list[RankShell] = []
"""This rank's one, once `install` was called."""


def install(*, directory: str | None = None, figure_formats: Sequence[str] = ("png",)) -> Callable[[], None]:
    """Make this process a rank of a notebook; return `show.flush`, to be called when the user's code has ended.

    ``directory`` is the rank's own; by default it is where its error file lies. Without one, displays are printed.
    ``figure_formats`` are the kernel's ("png", "retina", "svg", "jpeg", "pdf").
    """
    if directory is None and (error_file := os.environ.get("TORCHELASTIC_ERROR_FILE")):
        directory = os.path.dirname(error_file)
    show.use(directory, tuple(figure_formats))
    _shells[:] = [RankShell()]
    if _is_notebook_backend(os.environ.get("MPLBACKEND", "")):
        os.environ["MPLBACKEND"] = "agg"  # for the processes that this one starts; here see `_adapt_matplotlib`
    builtins.get_ipython = get_ipython  # type: ignore[attr-defined]
    builtins.display = show.display  # type: ignore[attr-defined]
    if not isinstance(
        builtins.input, BuiltinFunctionType
    ):  # a kernel's, by fork: it would wait for the kernel's reader
        builtins.input = _no_input
    _after_import({"matplotlib": _adapt_matplotlib, "IPython": _adapt_ipython, "tqdm.notebook": _adapt_tqdm})
    return show.flush


def _no_input(prompt: object = "") -> str:
    """Stand for `input` as it is where nobody types."""
    print(prompt, end="", flush=True)  # noqa: T201
    raise EOFError("EOF when reading a line")


def get_ipython() -> RankShell | None:
    """Return the rank's small shell."""
    return _shells[0] if _shells else None


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
        name: getattr(show, name)
        for name in ("display", "update_display", "clear_output", "publish_display_data", "DisplayHandle")
    }
    instead = {id(getattr(source, name)): function for name, function in ours.items() if hasattr(source, name)}
    instead[id(ipython.get_ipython)] = _no_shell
    for module in list(sys.modules.values()):
        attributes = getattr(module, "__dict__", {})
        if attributes is vars(show):
            continue
        for name, value in list(attributes.items()):
            if id(value) in instead:  # under whatever name it was imported
                with contextlib.suppress(Exception):
                    setattr(module, name, instead[id(value)])


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
