"""Text to units."""

import re

from unitkit.dimension import Dimension
from unitkit.errors import UnitError
from unitkit.table import look_up

_FACTOR = re.compile(r"^([A-Za-z]+)(?:\^(-?\d+))?$")


class Unit:
    """A unit: `value * factor + zero` is in base units. `zero` is not 0 only for temperatures that stand alone."""

    __slots__ = ("dimension", "factor", "text", "zero")

    def __init__(self, text, factor, zero, dimension):
        self.text = text
        self.factor = factor
        self.zero = zero
        self.dimension = dimension

    def __repr__(self):
        return "Unit(%r)" % self.text


def parse_unit(text):
    """The Unit of text such as `kg*m/s^2`; the empty text is a plain number. Raises UnitError."""
    text = text.strip()
    if text in ("", "1"):
        return Unit("", 1.0, 0.0, Dimension())
    factor, dimension, zero = 1.0, Dimension(), 0.0
    sign = 1
    pieces = re.split(r"([*/])", text)
    for piece in pieces:
        piece = piece.strip()
        if piece in ("*", "/"):
            sign = -sign if piece == "/" else 1
            continue
        if piece == "1" and sign == 1:
            continue
        match = _FACTOR.match(piece)
        if match is None:
            raise UnitError("cannot read %r in %r" % (piece, text))
        own, own_zero, own_dimension = look_up(match.group(1))
        power = sign * int(match.group(2) or 1)
        factor *= own**power
        dimension = dimension * own_dimension**power
        if power == 1:
            zero += own_zero
    return Unit(text, factor, zero, dimension)
