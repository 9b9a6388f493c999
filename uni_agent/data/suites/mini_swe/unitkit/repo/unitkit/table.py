"""Known units."""

from unitkit.dimension import Dimension
from unitkit.errors import UnitError

_ENERGY = Dimension.of(length=2, mass=1, time=-2)

# name: (factor to the base unit, zero in the base unit, dimension, takes prefixes)
_TABLE = {
    "m": (1.0, 0.0, Dimension.of(length=1), True),
    "g": (0.001, 0.0, Dimension.of(mass=1), True),
    "s": (1.0, 0.0, Dimension.of(time=1), True),
    "K": (1.0, 0.0, Dimension.of(temperature=1), True),
    "A": (1.0, 0.0, Dimension.of(current=1), True),
    "min": (60.0, 0.0, Dimension.of(time=1), False),
    "h": (3600.0, 0.0, Dimension.of(time=1), False),
    "d": (86400.0, 0.0, Dimension.of(time=1), False),
    "ft": (0.3048, 0.0, Dimension.of(length=1), False),
    "mi": (1609.344, 0.0, Dimension.of(length=1), False),
    "l": (0.001, 0.0, Dimension.of(length=3), True),
    "N": (1.0, 0.0, Dimension.of(length=1, mass=1, time=-2), True),
    "Pa": (1.0, 0.0, Dimension.of(length=-1, mass=1, time=-2), True),
    "J": (1.0, 0.0, _ENERGY, True),
    "W": (1.0, 0.0, Dimension.of(length=2, mass=1, time=-3), True),
    "cal": (4.184, 0.0, _ENERGY, True),
    "degC": (1.0, 273.15, Dimension.of(temperature=1), False),
    "degF": (5 / 9, 459.67 * 5 / 9, Dimension.of(temperature=1), False),
}
_PREFIXES = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "c": 1e-2, "d": 1e-1, "h": 1e2, "k": 1e3, "M": 1e6, "G": 1e9}


def look_up(name):
    """(factor, zero, dimension) of a name, with or without a prefix. Raises UnitError."""
    if name in _TABLE:
        return _TABLE[name][:3]
    factor = _PREFIXES.get(name[:1])
    if factor is not None and name[1:] in _TABLE and _TABLE[name[1:]][3]:
        own, zero, dimension, _ = _TABLE[name[1:]]
        return factor * own, zero, dimension
    raise UnitError("unknown unit %r" % name)
