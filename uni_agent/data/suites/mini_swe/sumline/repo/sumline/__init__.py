"""Formulas."""

from sumline.lexer import FormulaError
from sumline.parser import parse
from sumline.printer import to_text


def evaluate(text, names=None):
    """The value of a formula. Raises FormulaError for bad formulas, unknown names and divisions by zero."""
    return parse(text).value(names or {})


def simplify(text):
    """The formula with single spaces and without needless brackets."""
    return to_text(parse(text))


__all__ = ["FormulaError", "evaluate", "parse", "simplify", "to_text"]
