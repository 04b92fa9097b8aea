"""``%%spawn``, ``%spawn`` and ``%spawn_config``: a thin skin of IPython over options, plans and runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from traitlets import Any as AnyTrait
from traitlets.config import Configurable
from traitlets.traitlets import MetaHasTraits

from nbproc import surroundings
from nbproc.errors import OptionError
from nbproc.notebook import completion, planning
from nbproc.notebook.option_help import help_text
from nbproc.notebook.option_table import TABLE, Kind
from nbproc.notebook.options import Options, parse
from nbproc.notebook.running import in_cell, is_plain, plainly, run
from nbproc.plan import Plan

_SETTINGS = {
    option.name.lstrip("-").replace("-", "_"): option
    for option in TABLE
    if "%spawn_config" in option.kinds and option.metavar
}
"""The options that can be set for a session, by the name of their trait: ``c.Spawn.nproc_per_node = 4``."""

_Settings: Any = MetaHasTraits(
    "_Settings",
    (Configurable,),
    {name: AnyTrait(None, allow_none=True, help=option.help).tag(config=True) for name, option in _SETTINGS.items()},
)


@magics_class
class Spawn(Magics, _Settings):
    """The magics. Each option of ``%spawn_config`` is also a trait, to be set in an IPython profile."""

    shell: Any  # IPython's own annotation allows None

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._settings = Options()
        for name in _SETTINGS:
            self._take(name)
        self.observe(lambda change: self._take(change["name"]), names=list(_SETTINGS))

    @property
    def settings(self) -> Options:
        """What `%spawn_config` and the profile have set for this session."""
        return self._settings

    def _take(self, name: str) -> None:
        """Make a trait's value the session's setting."""
        option, value = _SETTINGS[name], getattr(self, name)
        several = value if option.repeats and isinstance(value, list | tuple) else [value]
        line = " ".join(f"{option.name} {_quoted(str(one))}" for one in several if one is not None)
        base = replace(self._settings, **{option.field: getattr(Options(), option.field)})
        try:
            self._settings = parse(line, "%spawn_config", base=base)
        except OptionError as error:
            what = str(error).removeprefix("%spawn_config: ").removeprefix(option.name).strip()
            raise plainly(OptionError(f"c.Spawn.{name} = {what}")) from None

    @no_var_expand
    @line_cell_magic
    def spawn(self, line: str, cell: str | None = None) -> None:
        """Run the cell, or a call, on n processes."""
        __tracebackhide__ = True  # of %debug
        try:
            self._spawn(line, cell)
        except SyntaxError as error:
            raise in_cell(error, self.shell) from None
        except KeyboardInterrupt as error:
            if "_render_traceback_" not in vars(error):  # it landed before or after the run
                plainly(error, "stopped by you")
            raise
        except Exception as error:
            if is_plain(error):
                plainly(error)
            raise

    def _spawn(self, line: str, cell: str | None) -> None:
        __tracebackhide__ = True
        kind: Kind = "%spawn" if cell is None else "%%spawn"
        options = parse(line, kind, namespace=self.shell.user_ns, base=self._settings)
        if options.help:
            print(help_text(kind))  # noqa: T201 - what was asked for
            return
        run(self.shell, self._plan(options, line, cell), options)

    def _plan(self, options: Options, line: str, cell: str | None) -> Plan:
        describe = surroundings.current().describe
        if cell is None:
            place = planning.place_of(self.shell, line, "", describe)
            return (
                planning.of_program(options, place) if options.program else planning.of_call(options, self.shell, place)
            )
        place = planning.place_of(self.shell, cell, f"%%spawn {line}", describe)
        if options.interpreter is not None:
            return planning.of_script(options, cell, place)
        return planning.of_cell(options, self.shell, cell, place)

    @no_var_expand
    @line_magic
    def spawn_config(self, line: str) -> None:
        """Set what %%spawn does where its own line says nothing."""
        try:
            options = parse(line, "%spawn_config", namespace=self.shell.user_ns, base=self._settings)
        except Exception as error:
            if is_plain(error):
                plainly(error)
            raise
        if options.help:
            print(help_text("%spawn_config"))  # noqa: T201 - what was asked for
            return
        self._settings = Options() if options.reset else options
        print(self._settings.settings() or "nothing is set")  # noqa: T201 - the answer


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


Spawn.spawn.__doc__ = help_text("%%spawn") + "\n\n\n" + help_text("%spawn")
Spawn.spawn_config.__doc__ = help_text("%spawn_config")


def register(shell: Any) -> None:
    """Register the magics with a shell, and the completion of their lines."""
    shell.register_magics(Spawn)
    completion.register(shell)
