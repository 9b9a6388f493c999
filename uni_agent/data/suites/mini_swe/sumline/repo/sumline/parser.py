"""Tokens to a tree, by recursive descent: sum > product > power > sign > percent > atom."""

from sumline.lexer import FormulaError, tokenize
from sumline.nodes import Binary, Call, Name, Negative, Number, Percent


def parse(text):
    """The tree of a formula. Raises FormulaError."""
    parser = _Parser(tokenize(text))
    tree = parser.sum()
    parser.expect_end()
    return tree


class _Parser:
    def __init__(self, tokens):
        self._tokens = tokens
        self._index = 0

    @property
    def _token(self):
        return self._tokens[self._index]

    def _accept(self, *symbols):
        if self._token.kind == "symbol" and self._token.text in symbols:
            self._index += 1
            return self._tokens[self._index - 1].text
        return None

    def _expect(self, symbol):
        if not self._accept(symbol):
            self._fail("expected %r" % symbol)

    def _fail(self, message):
        found = repr(self._token.text) if self._token.text else "the end"
        raise FormulaError("%s but found %s at %d" % (message, found, self._token.position + 1))

    def expect_end(self):
        if self._token.kind != "end":
            self._fail("expected an operator")

    def sum(self):
        tree = self.product()
        while symbol := self._accept("+", "-"):
            tree = Binary(symbol, tree, self.product())
        return tree

    def product(self):
        tree = self.power()
        while symbol := self._accept("*", "/"):
            tree = Binary(symbol, tree, self.power())
        return tree

    def sign(self):
        symbol = self._accept("-", "+")
        if symbol is None:
            return self.percent()
        operand = self.sign()
        return Negative(operand) if symbol == "-" else operand

    def power(self):
        tree = self.sign()
        while self._accept("^"):
            tree = Binary("^", tree, self.sign())
        return tree

    def percent(self):
        tree = self.atom()
        while self._accept("%"):
            tree = Percent(tree)
        return tree

    def atom(self):
        token = self._token
        if token.kind == "number":
            self._index += 1
            return Number(token.text)
        if token.kind == "name":
            self._index += 1
            return Call(token.text, self._arguments()) if self._accept("(") else Name(token.text)
        if self._accept("("):
            tree = self.sum()
            self._expect(")")
            return tree
        return self._fail("expected a value")

    def _arguments(self):
        arguments = []
        if self._accept(")"):
            return arguments
        while True:
            arguments.append(self.sum())
            if self._accept(")"):
                return arguments
            self._expect(",")
