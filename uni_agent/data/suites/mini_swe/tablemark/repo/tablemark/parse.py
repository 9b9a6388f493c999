"""A Markdown table to rows."""

import re

from tablemark.cells import split_row, unescape

_RULE = re.compile(r"^\s*:?-+:?\s*$")


class TableError(ValueError):
    """Text that is no table."""


def parse(text):
    """The rows of a table, header first, all of the header's length."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        raise TableError("a table has a header and a rule")
    header, rule = split_row(lines[0]), split_row(lines[1])
    if len(rule) != len(header) or not all(_RULE.match(cell) for cell in rule):
        raise TableError("the second line is no rule for %d columns" % len(header))
    rows = [[unescape(cell) for cell in header]]
    for line in lines[2:]:
        cells = [unescape(cell) for cell in split_row(line)][: len(header)]
        rows.append(cells + [""] * (len(header) - len(cells)))
    return rows
