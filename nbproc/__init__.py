"""Run a function or a cell of a notebook on n processes, watch every rank, and get results or an explanation."""

__version__ = "0.1.0"
