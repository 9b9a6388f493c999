"""Numbers with units."""

import re

from unitkit.errors import DimensionError, UnitError
from unitkit.parse import parse_unit

_QUANTITY = re.compile(r"^\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(.*)$")


def convert(value, source, target):
    """`value` of the unit `source` in the unit `target`. Raises DimensionError when they measure different things."""
    source, target = parse_unit(source), parse_unit(target)
    if source.dimension != target.dimension:
        raise DimensionError("%s is no %s" % (source.dimension, target.dimension))
    return (value * source.factor + source.zero - target.zero) / target.factor


class Quantity:
    """A value and the text of its unit."""

    def __init__(self, value, unit=""):
        self.value = value
        self.unit = unit.strip()
        self._parsed = parse_unit(unit)

    @classmethod
    def parse(cls, text):
        match = _QUANTITY.match(text)
        if match is None:
            raise UnitError("not a quantity: %r" % text)
        return cls(float(match.group(1)), match.group(2))

    def to(self, unit):
        return Quantity(convert(self.value, self.unit, unit), unit)

    def __add__(self, other):
        return Quantity(self.value + convert(other.value, other.unit, self.unit), self.unit)

    def __sub__(self, other):
        return Quantity(self.value - convert(other.value, other.unit, self.unit), self.unit)

    def __lt__(self, other):
        return self.value < convert(other.value, other.unit, self.unit)

    def is_close(self, other, tolerance=1e-9):
        mine, theirs = self.value, convert(other.value, other.unit, self.unit)
        return abs(mine - theirs) <= tolerance * max(1.0, abs(mine), abs(theirs))

    def __str__(self):
        return ("%g %s" % (self.value, self.unit)).strip()

    def __repr__(self):
        return "Quantity(%r, %r)" % (self.value, self.unit)
