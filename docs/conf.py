"""The documentation: Sphinx, MyST-NB, furo. ``make docs`` builds it; a warning is an error."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import nbproc  # noqa: E402 - found on the path above

project = "nbproc"
author = "The nbproc authors"
copyright = author
version = release = nbproc.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "nbproc_options"]
exclude_patterns = ["_build", "_ext", "**/.ipynb_checkpoints"]
default_role = "py:obj"
smartquotes = False

html_theme = "furo"
html_title = "nbproc"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_sourcelink = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# The notebooks are run once and again when a cell of theirs has changed. One cell of each that shows a failure fails
# on purpose: it carries the tag raises-exception.
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_kernel_rgx_aliases = {".*": "python3"}


def _copy_notebooks() -> None:
    """Sphinx reads only what lies in its own folder. Files that are the same stay as they are."""
    target = HERE / "notebooks"
    target.mkdir(exist_ok=True)
    for source in sorted((HERE.parent / "notebooks").glob("*.ipynb")):
        copy = target / source.name
        if not copy.exists() or copy.read_bytes() != source.read_bytes():
            shutil.copyfile(source, copy)


_copy_notebooks()
