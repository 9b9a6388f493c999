"""Markdown tables."""

from tablemark.parse import TableError, parse
from tablemark.render import render

__all__ = ["TableError", "parse", "render"]
