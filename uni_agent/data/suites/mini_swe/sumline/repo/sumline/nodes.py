"""The tree of a formula."""

from sumline.functions import call
from sumline.lexer import FormulaError


class Number:
    def __init__(self, text):
        self.text = text

    def value(self, names):
        return float(self.text) if "." in self.text else int(self.text)


class Name:
    def __init__(self, name):
        self.name = name

    def value(self, names):
        if self.name not in names:
            raise FormulaError("unknown name %s" % self.name)
        return names[self.name]


class Negative:
    def __init__(self, operand):
        self.operand = operand

    def value(self, names):
        return -self.operand.value(names)


class Percent:
    def __init__(self, operand):
        self.operand = operand

    def value(self, names):
        return self.operand.value(names) / 100


class Binary:
    def __init__(self, symbol, left, right):
        self.symbol = symbol
        self.left = left
        self.right = right

    def value(self, names):
        left, right = self.left.value(names), self.right.value(names)
        if self.symbol == "+":
            return left + right
        if self.symbol == "-":
            return left - right
        if self.symbol == "*":
            return left * right
        try:
            return left / right if self.symbol == "/" else left**right
        except ZeroDivisionError:
            raise FormulaError("division by zero") from None


class Call:
    def __init__(self, name, arguments):
        self.name = name
        self.arguments = arguments

    def value(self, names):
        return call(self.name, [argument.value(names) for argument in self.arguments])
