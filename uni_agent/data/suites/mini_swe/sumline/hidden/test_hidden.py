import unittest

from sumline import evaluate, simplify


class Powers(unittest.TestCase):
    def test_from_the_right(self):
        self.assertEqual(evaluate("2 ^ 3 ^ 2"), 512)
        self.assertEqual(evaluate("2 ^ 2 ^ 2 ^ 2"), 65536)

    def test_sign_is_looser(self):
        self.assertEqual(evaluate("-2 ^ 2"), -4)
        self.assertEqual(evaluate("3 - -x ^ 2", {"x": 2}), 7)

    def test_signed_exponent(self):
        self.assertEqual(evaluate("2 ^ -1"), 0.5)
        self.assertEqual(evaluate("2 ^ -1 ^ 2"), 0.5)

    def test_brackets_that_matter_are_kept(self):
        for text in ("(2 ^ 3) ^ 2", "(-2) ^ 2"):
            self.assertEqual(simplify(text), text)

    def test_brackets_that_do_not_matter_go(self):
        self.assertEqual(simplify("2 ^ (3 ^ 2)"), "2 ^ 3 ^ 2")
        self.assertEqual(simplify("-(2 ^ 2)"), "-2 ^ 2")

    def test_text_has_the_value_of_its_formula(self):
        for text in ("2^3^2", "(2^3)^2", "-2^2", "(-2)^2", "2^-1", "-(-2)^2"):
            self.assertEqual(evaluate(simplify(text)), evaluate(text), text)


class StillRight(unittest.TestCase):
    def test_brackets(self):
        self.assertEqual(evaluate("(2 ^ 3) ^ 2"), 64)
        self.assertEqual(evaluate("(-2) ^ 2"), 4)

    def test_product_of_powers(self):
        self.assertEqual(evaluate("2 ^ 2 * 3 ^ 2"), 36)

    def test_percent_binds_tightest(self):
        self.assertEqual(evaluate("50% ^ 2"), 0.25)


if __name__ == "__main__":
    unittest.main()
