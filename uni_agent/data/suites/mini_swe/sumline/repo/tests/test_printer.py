import unittest

from sumline import simplify


class PrinterTest(unittest.TestCase):
    def test_needless_brackets_go(self):
        self.assertEqual(simplify("((1)+(2*3))"), "1 + 2 * 3")
        self.assertEqual(simplify("(1+2)-(3)"), "1 + 2 - 3")

    def test_needed_brackets_stay(self):
        self.assertEqual(simplify("(1+2)*3"), "(1 + 2) * 3")
        self.assertEqual(simplify("1-(2-3)"), "1 - (2 - 3)")
        self.assertEqual(simplify("-(a+b)"), "-(a + b)")

    def test_calls(self):
        self.assertEqual(simplify("max( a,(b) )%"), "max(a, b)%")


if __name__ == "__main__":
    unittest.main()
