"""What a unit measures: powers of the base dimensions."""

BASES = ("length", "mass", "time", "temperature", "current")


class Dimension:
    """Powers of BASES, in that order."""

    __slots__ = ("powers",)

    def __init__(self, powers=(0, 0, 0, 0, 0)):
        self.powers = tuple(powers)

    @classmethod
    def of(cls, **powers):
        return cls(powers.get(base, 0) for base in BASES)

    def __mul__(self, other):
        return Dimension(a + b for a, b in zip(self.powers, other.powers))

    def __pow__(self, exponent):
        return Dimension(power * exponent for power in self.powers)

    def __eq__(self, other):
        if not isinstance(other, Dimension):
            return NotImplemented
        return self.powers == other.powers

    def __hash__(self):
        return hash(self.powers)

    def __str__(self):
        parts = ["%s^%d" % (base, power) for base, power in zip(BASES, self.powers) if power]
        return " ".join(parts) or "a plain number"
