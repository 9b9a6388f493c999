"""Comparisons that a range is made of."""

import operator
import re

from verspan.version import Version, VersionError

_OPERATORS = {
    "=": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_TERM = re.compile(r"^(\^|~|>=|<=|>|<|=)?v?(\d+|[xX*])(?:\.(\d+|[xX*]))?(?:\.(\d+|[xX*]))?(-[0-9A-Za-z.-]+)?$")


class Bound:
    """One comparison with a version."""

    def __init__(self, symbol, version):
        self.symbol = symbol
        self.version = version

    def holds(self, version):
        return _OPERATORS[self.symbol](version, self.version)

    def __repr__(self):
        return "%s%s" % (self.symbol, self.version)


def bounds_of(term):
    """The bounds that one term such as `^1.2` stands for; none for `*`."""
    match = _TERM.match(term)
    if match is None:
        raise VersionError("not a range: %r" % term)
    symbol, *parts, pre = match.groups()
    numbers = []
    for part in parts:
        if part is None or part in "xX*":
            break
        numbers.append(int(part))
    if pre and len(numbers) < 3:
        raise VersionError("a pre-release needs three numbers: %r" % term)
    if not numbers:
        return []
    low = Version("%d.%d.%d%s" % (*_filled(numbers), pre or ""))
    if symbol == "^":
        return [Bound(">=", low), Bound("<", _caret_end(numbers))]
    if symbol == "~":
        return [Bound(">=", low), Bound("<", _bumped(numbers, min(1, len(numbers) - 1)))]
    if symbol in (None, "="):
        return [Bound("=", low)] if len(numbers) == 3 else [Bound(">=", low), Bound("<", _bumped(numbers, -1))]
    if symbol in (">", "<=") and len(numbers) < 3:
        # `>1.2` starts after all of 1.2.x, `<=1.2` takes all of them in.
        return [Bound(">=" if symbol == ">" else "<", _bumped(numbers, -1))]
    return [Bound(symbol, low)]


def _filled(numbers):
    return tuple(numbers + [0] * (3 - len(numbers)))


def _bumped(numbers, index):
    """The first version after all that share the numbers up to `index`."""
    index = index % len(numbers)
    return Version.of(*(numbers[:index] + [numbers[index] + 1]))


def _caret_end(numbers):
    return _bumped(numbers, 0)
