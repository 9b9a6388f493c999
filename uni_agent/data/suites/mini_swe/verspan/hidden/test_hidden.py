import unittest

from verspan import Range, best


class CaretBelowOne(unittest.TestCase):
    def test_zero_major(self):
        self.assertIn("0.2.9", Range("^0.2.3"))
        self.assertNotIn("0.3.0", Range("^0.2.3"))
        self.assertNotIn("0.9.0", Range("^0.2"))

    def test_zero_minor(self):
        self.assertIn("0.0.3", Range("^0.0.3"))
        self.assertNotIn("0.0.4", Range("^0.0.3"))

    def test_best_stays_compatible(self):
        self.assertEqual(best(["0.2.3", "0.2.7", "0.3.0", "0.10.0"], "^0.2.3"), "0.2.7")

    def test_short_forms(self):
        self.assertIn("0.0.9", Range("^0.0"))
        self.assertNotIn("0.1.0", Range("^0.0"))


class PreReleases(unittest.TestCase):
    def test_upper_end_keeps_out_its_own_pre_releases(self):
        self.assertNotIn("2.0.0-rc.1", Range("^1.2.3"))
        self.assertFalse(Range("^0.2.3").allows("0.3.0"))

    def test_named_pre_release(self):
        self.assertIn("1.2.3-rc.2", Range("^1.2.3-rc.1"))
        self.assertNotIn("1.2.4-rc.2", Range("^1.2.3-rc.1"))


class StillRight(unittest.TestCase):
    def test_all_zero(self):
        self.assertIn("0.0.0", Range("^0.0.0"))
        self.assertIn("0.5.0", Range("^0"))
        self.assertNotIn("1.0.0", Range("^0"))

    def test_major(self):
        self.assertIn("1.9.9", Range("^1"))
        self.assertNotIn("2.0.0", Range("^1.0"))

    def test_space_after_operator(self):
        self.assertIn("1.5.0", Range(">= 1.2 < 2"))


if __name__ == "__main__":
    unittest.main()
