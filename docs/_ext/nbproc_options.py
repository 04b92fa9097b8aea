"""A directive for the options of the magics, made from the table that the magics are parsed by.

```{spawn-options} %%spawn
```
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from nbproc.notebook.option_table import KINDS, TABLE, Option

_GROUPS = (("run", "The run"), ("logs", "Logs"))


class SpawnOptions(SphinxDirective):
    """The options of one magic, as two definition lists."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Make the lists."""
        kind = self.arguments[0]
        if kind not in KINDS:
            raise self.error(f"{kind} is none of {', '.join(KINDS)}")
        made: list[nodes.Node] = []
        for group, title in _GROUPS:
            chosen = [option for option in TABLE if kind in option.kinds and option.group == group]
            if chosen:
                made += [nodes.rubric(text=title), self._list(chosen)]
        return made

    def _list(self, options: list[Option]) -> nodes.definition_list:
        items = nodes.definition_list()
        for option in options:
            term = nodes.term("", "", nodes.literal(text=option.usage))
            items += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph(text=option.help)))
        return items


class SpawnTraits(SphinxDirective):
    """The options that can be set in an IPython profile, with the names of their traits."""

    def run(self) -> list[nodes.Node]:
        """Make the list."""
        items = nodes.definition_list()
        for option in TABLE:
            if "%spawn_config" in option.kinds and option.metavar:
                name = option.name.lstrip("-").replace("-", "_")
                term = nodes.term("", "", nodes.literal(text=f"c.Spawn.{name}"))
                like = nodes.paragraph("", "", nodes.Text("As "), nodes.literal(text=option.usage), nodes.Text("."))
                items += nodes.definition_list_item("", term, nodes.definition("", like))
        return [items]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("spawn-options", SpawnOptions)
    app.add_directive("spawn-traits", SpawnTraits)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
