"""How model text and endings are shown on a terminal. What an agent wrote is hostile there, too."""

from __future__ import annotations

import unicodedata

from uni_agent.store.text import utf8
from uni_agent.types import ExitClass, ExitReason

_GLYPHS: dict[ExitClass, tuple[str, str]] = {
    ExitClass.FINISHED: ("✓", "+"),
    ExitClass.LIMIT: ("◷", "~"),
    ExitClass.MODEL: ("✗", "x"),
    ExitClass.INFRASTRUCTURE: ("⚠", "!"),
    ExitClass.OPERATOR: ("■", "#"),
}
_COLOURS: dict[ExitClass, str] = {
    ExitClass.FINISHED: "green",
    ExitClass.LIMIT: "yellow",
    ExitClass.MODEL: "magenta",
    ExitClass.INFRASTRUCTURE: "red",
    ExitClass.OPERATOR: "blue",
}


def glyph(exit_class: ExitClass, *, ascii_only: bool = False) -> str:
    """One character per exit class, so that the class is readable without colour."""
    return _GLYPHS[exit_class][ascii_only]


def colour(exit_class: ExitClass) -> str:
    """The colour name (as `rich` and CSS know it) of an exit class."""
    return _COLOURS[exit_class]


def exit_class_of(name: str) -> ExitClass:
    """The class of a stored exit reason; `infrastructure` for one that this version does not know."""
    try:
        return ExitReason(name).exit_class
    except ValueError:
        return ExitClass.INFRASTRUCTURE


def printable(text: str, *, keep_lines: bool = False) -> str:
    """`text` without anything a terminal would obey: controls, escapes, direction marks are written out.

    Tabs become a space; with `keep_lines`, newlines and tabs stay.
    """
    return "".join(_visible(char, keep_lines) for char in utf8(text))


def shorten(text: str, width: int) -> str:
    """`printable(text)`, cut to `width` characters with an ellipsis."""
    text = printable(text[: 4 * width])
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _visible(char: str, keep_lines: bool) -> str:
    if char == " " or (char.isascii() and char.isprintable()):
        return char
    if char in "\n\t":
        return char if keep_lines else " "
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"\\u{ord(char):04x}"
    return char
