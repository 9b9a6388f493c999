"""What can go wrong."""


class UnitError(ValueError):
    """A unit that is not known or cannot be read."""


class DimensionError(UnitError):
    """Units that measure different things."""
