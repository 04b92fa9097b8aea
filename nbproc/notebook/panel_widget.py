"""The launch panel: a form that starts runs, and below it the runs that it has started.

The form says what stands in its fields, at each key; the answer is what is wrong with them and the code that does the
same. Messages of the browser are handled on any thread and never wait: a launch happens on a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from IPython import get_ipython
from IPython.display import DisplayHandle, display

from nbproc.errors import NbprocError, StateError
from nbproc.launch import context_of
from nbproc.notebook import functions, planning
from nbproc.notebook.busy import answer_while_busy
from nbproc.notebook.magic import Spawn
from nbproc.notebook.options import Options
from nbproc.notebook.panel_check import Checked, check, free_variable
from nbproc.notebook.panel_given import given_values
from nbproc.notebook.panel_plan import FieldError, plan
from nbproc.notebook.panel_runs import PanelRun, PanelRuns
from nbproc.notebook.panel_values import Values
from nbproc.notebook.view import RunView, asset

if TYPE_CHECKING:
    from nbproc.contexts.base import PContext

_log = logging.getLogger(__name__)


class PanelWidget(anywidget.AnyWidget):
    """The panel's model. ``form`` are the fields as the kernel knows them, and which view they come from."""

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    panel_id = traitlets.Unicode().tag(sync=True)
    form = traitlets.Dict().tag(sync=True)
    checked = traitlets.Dict().tag(sync=True)
    functions: Any = traitlets.List().tag(sync=True)
    members: Any = traitlets.List().tag(sync=True)
    runs: Any = traitlets.List().tag(sync=True)
    gpus = traitlets.Int(0).tag(sync=True)
    launch = traitlets.Dict().tag(sync=True)


class Panel:
    """One form and its runs."""

    def __init__(self, shell: Any, values: Values, given: Mapping[str, Any]) -> None:
        self.given = dict(given)
        self.values = values
        self.widget = PanelWidget(_esm=asset("panel.js"), _css=asset("panel.css"), panel_id=uuid.uuid4().hex)
        self.runs = PanelRuns(self._push_runs)
        self._shell = shell
        self._lock = threading.RLock()
        self._late: dict[str, tuple[str, Values]] = {}
        self._revision = 0
        self._seq = 0
        self._launches = 0
        self._prefix = ""
        self._handle: DisplayHandle | None = None
        self._saved: dict[str, str] = {}
        answer_while_busy(self.widget)
        self.widget.on_msg(self._receive)

    def show(self, runs: Sequence[PanelRun] = ()) -> None:
        """Display the panel in the current output; ``runs`` are those of the panel that it takes the place of."""
        for run in reversed(runs):
            self.runs.add(run)
        self._set_form(self.values)
        self.notice_functions()
        threading.Thread(target=self._look_for_gpus, name="nbproc-panel-gpus", daemon=True).start()
        display(
            {
                "application/vnd.jupyter.widget-view+json": {
                    "model_id": self.widget.model_id,
                    "version_major": 2,
                    "version_minor": 1,
                },
                "text/plain": "nbproc.panel(): run this cell to get the form back",
            },
            raw=True,
        )
        self._saved = self.runs.saved()
        self._handle = display(self._saved, raw=True, display_id=True)

    def close(self) -> list[PanelRun]:
        """Give up the form. Returns its runs, which go on."""
        self.widget.close()
        return self.runs.take_all()

    def notice_functions(self) -> None:
        """Bring the list of functions up to date, and what depends on it."""
        namespace = self._shell.user_ns
        with self._lock:
            self.widget.functions = [asdict(each) for each in functions.functions(namespace, self._hidden())]
            self._list_members()
            self._check()

    # ---------------------------------------------------------------- what the browser says, on whatever thread

    def _receive(self, _widget: object, content: dict[str, Any], _buffers: object) -> None:
        try:
            self._answer(str(content.get("t")), content)
        except Exception:  # ipywidgets would print this into some cell
            _log.exception("a message of the panel was not understood: %.200r", content)

    def _answer(self, kind: str, content: dict[str, Any]) -> None:
        if kind == "edit":
            self._take(content)
        elif kind == "launch":
            self._take(content)
            self._launch(self.values)
        elif kind in ("again", "change", "stop", "kill", "remove"):
            run = self.runs.find(int(content["run"]))
            if run is None:
                return
            if kind == "again":
                self._launch(run.values)
            elif kind == "change":
                self._set_form(run.values)
            elif kind == "stop":
                run.context.stop()
            elif kind == "kill":
                run.context.kill()
            else:
                self.runs.remove(run.id)

    def _take(self, content: Mapping[str, Any]) -> None:
        with self._lock:
            values = Values.from_json(content["values"])
            self._late = {name: late for name, late in self._late.items() if _same_field(name, late[1], values)}
            self.values = values
            self._seq = int(content.get("seq", 0))
            self.widget.form = {
                "values": values.to_json(),
                "revision": self._revision,
                "view": str(content.get("view", "")),
                "seq": self._seq,
            }
            self._list_members()
            self._check()

    # ---------------------------------------------------------------- what the kernel says

    def _set_form(self, values: Values) -> None:
        with self._lock:
            self.values = values
            self._late = {}
            self._revision += 1
            self.widget.form = {"values": values.to_json(), "revision": self._revision, "view": "", "seq": self._seq}
            self._check()

    def _check(self) -> None:
        found = check(self.values, self._shell.user_ns)
        errors = {**{name: said for name, (said, _) in self._late.items()}, **found.errors}
        self.widget.checked = {"view": self.widget.form.get("view", ""), "seq": self._seq, **_checked(found, errors)}

    def _list_members(self) -> None:
        """List the functions of a module whose name stands before the last dot."""
        text = "" if self.values.program else self.values.function
        self.widget.members = [asdict(each) for each in functions.members(text, self._shell.user_ns)]

    def _hidden(self) -> set[str]:
        return set(self._shell.user_ns_hidden)

    def _push_runs(self) -> None:
        with self._lock:
            rows = self.runs.rows()
            if [{**row, "now": 0} for row in rows] != [{**row, "now": 0} for row in self.widget.runs]:
                now = time.time()
                self.widget.runs = [{**row, "now": now} for row in rows]
            saved = self.runs.saved()
            if self._handle is not None and saved != self._saved:
                self._saved = saved
                self._handle.update(saved, raw=True)

    def _look_for_gpus(self) -> None:
        found = planning.count_gpus()
        with self._lock:
            self.widget.gpus = found

    # ---------------------------------------------------------------- launching

    def _launch(self, values: Values) -> None:
        """Begin a launch, unless a field is wrong; does not wait for it."""
        with self._lock:
            found = check(values, self._shell.user_ns)
            self._launches += 1
            number = self._launches
            if not found.ready:
                said = found.wants or next(iter(found.errors.values()))
                self._end_launch(number, "" if values == self.values else f"not run: {said}")
                return
            self.widget.launch = {"number": number, "busy": True, "said": ""}
        threading.Thread(
            target=self._launch_now, args=(values, number), name=f"nbproc-panel-launch-{number}", daemon=True
        ).start()

    def _launch_now(self, values: Values, number: int) -> None:
        said, begun = "", threading.Event()

        def begin(context: PContext) -> None:
            begun.set()
            self._begun(values, context)

        try:
            context = context_of(plan(values, self._shell.user_ns, _settings(self._shell)))
            context.start(begun=begin)
        except FieldError as error:
            with self._lock:
                if error.field and values == self.values:
                    self._late[error.field] = (str(error), values)
                    self._check()
                else:
                    said = f"not run: {error}"
        except NbprocError as error:
            said = "" if begun.is_set() else f"not run: {error}"  # else the run's own line says why
        except Exception as error:
            _log.debug("a launch failed", exc_info=error)
            said = f"not run: {type(error).__name__}: {error}"
        with self._lock:
            self._end_launch(number, said)

    def _begun(self, values: Values, context: PContext) -> None:
        """Put a run into the list and into its variable, as soon as it exists."""
        if variable := values.variable.strip():
            self._shell.user_ns[variable] = context
        view = RunView(context)
        run = PanelRun(values, context, view, view.attach().model_id)
        self.runs.add(run)

    def _end_launch(self, number: int, said: str) -> None:
        if self._launches == number:
            self.widget.launch = {"number": number, "busy": False, "said": said}


def _checked(found: Checked, errors: Mapping[str, str]) -> dict[str, Any]:
    return {
        "errors": dict(errors),
        "notes": dict(found.notes),
        "wants": found.wants,
        "code": found.code,
        "button": found.button,
        "ready": not errors and not found.wants,
        "about": asdict(found.about) if found.about is not None else None,
        "takes": found.takes_arguments,
    }


def _same_field(name: str, old: Values, new: Values) -> bool:
    """Whether what a sentence at a field was said of is still there."""
    field, _, rank = name.partition(".")
    if rank:
        return old.of_rank(int(rank)) == new.of_rank(int(rank)) and old.program == new.program
    return bool(getattr(old, field, None) == getattr(new, field, None)) and old.program == new.program


# -------------------------------------------------------------------------------------------------------- the panels

_panels: dict[str, Panel] = {}
"""The panel of each cell."""


def show_panel(fn: object, nprocs: int | str | None, given: Mapping[str, Any]) -> None:
    """Show the panel of the running cell: a new one, or the one it had, with its values and runs."""
    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        raise StateError(
            "nbproc.panel() is a form in a notebook, and this is none; call nbproc.start_processes instead"
        )
    _load_magics(shell)
    asked = given_values(fn, nprocs, given, shell.user_ns)
    key = _cell_of(shell)
    old = _panels.pop(key, None)
    runs: list[PanelRun] = []
    if old is None:
        values = Values(**{"variable": free_variable(shell.user_ns), **_first_choice(shell, asked)})
    else:
        runs = old.close()
        values = replace(old.values, **{name: value for name, value in asked.items() if old.given.get(name) != value})
    new = _panels[key] = Panel(shell, values, asked)
    _follow(shell)
    new.show(runs)


def _first_choice(shell: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """What a fresh form has in its fields: what was asked for, and the notebook's only function."""
    own = [each for each in functions.functions(shell.user_ns, shell.user_ns_hidden) if each.own]
    first = {"function": own[0].name} if len(own) == 1 and "executable" not in asked else {}
    usual = _settings(shell)
    if usual is not None and isinstance(usual.nproc, int):
        first["nprocs"] = str(usual.nproc)
    return {**first, **asked}


def _settings(shell: Any) -> Options | None:
    """Return what `%spawn_config` has set: the equivalent code would have it too."""
    magics = shell.magics_manager.registry.get("Spawn")
    return magics.settings if isinstance(magics, Spawn) else None


def _load_magics(shell: Any) -> None:
    """Make `%spawn` known, so that the equivalent code can be run."""
    if "spawn" not in shell.magics_manager.magics.get("line", {}):
        from nbproc.notebook import load

        load(shell)


def _cell_of(shell: Any) -> str:
    """Return what tells the running cell from the others: its id, or else its text."""
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    metadata = parent.get("metadata") or {}
    content = parent.get("content") or {}
    return str(metadata.get("cellId") or content.get("code") or "")


_followed: weakref.WeakSet[Any] = weakref.WeakSet()


def _follow(shell: Any) -> None:
    """Let the panels know, after each cell, which functions there are."""
    if shell not in _followed:
        _followed.add(shell)
        shell.events.register("post_run_cell", _notice)


def _notice(_result: object) -> None:
    for each in list(_panels.values()):
        each.notice_functions()
