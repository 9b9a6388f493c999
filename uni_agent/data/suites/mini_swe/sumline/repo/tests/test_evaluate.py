import unittest

from sumline import FormulaError, evaluate


class EvaluateTest(unittest.TestCase):
    def test_levels(self):
        self.assertEqual(evaluate("1 + 2 * 3"), 7)
        self.assertEqual(evaluate("(1 + 2) * 3"), 9)
        self.assertEqual(evaluate("10 - 4 - 3"), 3)
        self.assertEqual(evaluate("24 / 4 / 2"), 3)

    def test_power_before_product(self):
        self.assertEqual(evaluate("2 * 3 ^ 2"), 18)

    def test_sign(self):
        self.assertEqual(evaluate("-3 + 5"), 2)
        self.assertEqual(evaluate("2 * -3"), -6)
        self.assertEqual(evaluate("--2"), 2)

    def test_percent(self):
        self.assertEqual(evaluate("200 * 10%"), 20)

    def test_names_and_calls(self):
        self.assertEqual(evaluate("max(a, b) + sum()", {"a": 1, "b": 2}), 2)
        self.assertEqual(evaluate("round(2.345, 1)"), 2.3)

    def test_errors(self):
        for text in ("", "1 +", "(1", "1 2", "1 / 0", "x", "f(1)", "abs(1, 2)", "1 $ 2", "sqrt(-1)"):
            with self.assertRaises(FormulaError):
                evaluate(text)


if __name__ == "__main__":
    unittest.main()
