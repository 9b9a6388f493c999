"""Rows to a Markdown table."""

from tablemark.cells import escape
from tablemark.width import pad, text_width

MIN_WIDTH = 3


def render(rows, align=None):
    """The table of `rows`, the first of which is the header. `align` has one of l, r, c for each column."""
    rows = [[escape(value) for value in row] for row in rows]
    if not rows or not rows[0]:
        raise ValueError("a table needs a header")
    count = max(len(row) for row in rows)
    rows = [row + [""] * (count - len(row)) for row in rows]
    align = _alignment(align, count)
    widths = [max(MIN_WIDTH, *(text_width(row[i]) for row in rows)) for i in range(count)]
    lines = [_line(rows[0], widths, align), _rule(widths, align)]
    lines += [_line(row, widths, align) for row in rows[1:]]
    return "\n".join(lines) + "\n"


def _alignment(align, count):
    align = align or "l" * count
    if len(align) != count or set(align) - set("lrc"):
        raise ValueError("align needs %d of l, r, c: %r" % (count, align))
    return align


def _line(cells, widths, align):
    padded = (pad(cell, width, side) for cell, width, side in zip(cells, widths, align))
    return "| %s |" % " | ".join(padded)


def _rule(widths, align):
    parts = []
    for width, side in zip(widths, align):
        left = ":" if side in "lc" else "-"
        right = ":" if side in "rc" else "-"
        parts.append(left + "-" * width + right)
    return "|%s|" % "|".join(parts)
