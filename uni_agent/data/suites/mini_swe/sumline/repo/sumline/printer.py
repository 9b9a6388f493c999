"""A tree back to text."""

from sumline.nodes import Binary, Call, Name, Negative, Number, Percent

_LEVELS = {"+": 1, "-": 1, "*": 2, "/": 2, "^": 3}
_SIGN = 4
_PERCENT = 5
_ATOM = 6


def to_text(tree):
    """The formula of a tree, with no more brackets than needed. Parsing it gives an equal tree."""
    return _text(tree)


def _level(tree):
    if isinstance(tree, Binary):
        return _LEVELS[tree.symbol]
    if isinstance(tree, Negative):
        return _SIGN
    return _PERCENT if isinstance(tree, Percent) else _ATOM


def _bracketed(tree, lowest):
    """The text of a part that needs brackets when it binds more loosely than `lowest`."""
    return "(%s)" % _text(tree) if _level(tree) < lowest else _text(tree)


def _text(tree):
    if isinstance(tree, Number):
        return tree.text
    if isinstance(tree, Name):
        return tree.name
    if isinstance(tree, Call):
        return "%s(%s)" % (tree.name, ", ".join(_text(each) for each in tree.arguments))
    if isinstance(tree, Negative):
        return "-" + _bracketed(tree.operand, _SIGN)
    if isinstance(tree, Percent):
        return _bracketed(tree.operand, _PERCENT) + "%"
    level = _LEVELS[tree.symbol]
    return "%s %s %s" % (_bracketed(tree.left, level), tree.symbol, _bracketed(tree.right, level + 1))
