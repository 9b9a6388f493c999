"""Quantities and units."""

from unitkit.errors import DimensionError, UnitError
from unitkit.parse import parse_unit
from unitkit.quantity import Quantity, convert

__all__ = ["DimensionError", "Quantity", "UnitError", "convert", "parse_unit"]
