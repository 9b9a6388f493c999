"""What a formula can call."""

import math

from sumline.lexer import FormulaError


def _root(x):
    if x < 0:
        raise FormulaError("sqrt of a negative number")
    return math.sqrt(x)


# name: (function, fewest arguments, most arguments or None)
FUNCTIONS = {
    "abs": (abs, 1, 1),
    "max": (max, 1, None),
    "min": (min, 1, None),
    "round": (round, 1, 2),
    "sqrt": (_root, 1, 1),
    "sum": (lambda *values: sum(values), 0, None),
}


def call(name, arguments):
    """The value of a call. Raises FormulaError for unknown names and wrong counts."""
    if name not in FUNCTIONS:
        raise FormulaError("unknown function %s" % name)
    function, fewest, most = FUNCTIONS[name]
    if len(arguments) < fewest or (most is not None and len(arguments) > most):
        raise FormulaError("%s does not take %d arguments" % (name, len(arguments)))
    if name == "round" and len(arguments) == 2:
        return round(arguments[0], int(arguments[1]))
    return function(*arguments) if len(arguments) != 1 or name not in ("max", "min") else arguments[0]
