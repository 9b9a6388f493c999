"""The text of one cell."""

import re

BREAK = "<br>"


def escape(value):
    """A value as a cell holds it: one line."""
    text = "" if value is None else str(value)
    return BREAK.join(line.strip() for line in text.splitlines())


def unescape(text):
    """The text that a cell stands for."""
    out = []
    chars = iter(text.strip().replace(BREAK, "\n"))
    for char in chars:
        if char == "\\":
            following = next(chars, "")
            out.append(following if following in ("\\", "|") else char + following)
        else:
            out.append(char)
    return "".join(out)


def split_row(line):
    """The raw cells of a table line, at bars that are not escaped."""
    cells = re.split(r"(?<!\\)\|", line.strip())
    if cells and not cells[0].strip():
        cells = cells[1:]
    if cells and not cells[-1].strip():
        cells = cells[:-1]
    return cells
