"""Text to tokens."""

import re

_TOKEN = re.compile(r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<name>[A-Za-z_]\w*)|(?P<symbol>[-+*/^%(),]))")


class FormulaError(ValueError):
    """A formula that cannot be read or has no value."""


class Token:
    """A piece of a formula: its `kind` (number, name, symbol, end), its text and where it starts."""

    __slots__ = ("kind", "position", "text")

    def __init__(self, kind, text, position):
        self.kind = kind
        self.text = text
        self.position = position

    def __repr__(self):
        return "Token(%s %r)" % (self.kind, self.text)


def tokenize(text):
    """All tokens of a formula, with one of kind `end` last."""
    tokens = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        match = _TOKEN.match(stripped, position)
        if match is None:
            raise FormulaError("cannot read %r at %d" % (stripped[position:].strip()[0], position + 1))
        kind = match.lastgroup
        tokens.append(Token(kind, match.group(kind), match.start(kind)))
        position = match.end()
    tokens.append(Token("end", "", len(text)))
    return tokens
