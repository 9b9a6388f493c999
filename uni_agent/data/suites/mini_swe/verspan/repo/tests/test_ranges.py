import unittest

from verspan import Range, VersionError, best


class RangeTest(unittest.TestCase):
    def check(self, text, inside, outside):
        for version in inside:
            self.assertIn(version, Range(text), text)
        for version in outside:
            self.assertNotIn(version, Range(text), text)

    def test_caret(self):
        self.check("^1.2.3", ["1.2.3", "1.9.0"], ["1.2.2", "2.0.0", "0.9.0"])

    def test_tilde(self):
        self.check("~1.2.3", ["1.2.3", "1.2.9"], ["1.3.0", "1.2.2"])
        self.check("~1", ["1.0.0", "1.9.9"], ["2.0.0"])

    def test_wildcards(self):
        self.check("1.2.x", ["1.2.0", "1.2.9"], ["1.3.0"])
        self.check("1", ["1.0.0", "1.9.0"], ["2.0.0"])
        self.check("*", ["0.0.0", "9.9.9"], ["1.0.0-rc.1"])

    def test_several(self):
        self.check(">=1.2 <1.4 || 3.x", ["1.2.0", "1.3.9", "3.1.0"], ["1.4.0", "2.0.0"])

    def test_part_of_a_version(self):
        self.check(">1.2", ["1.3.0"], ["1.2.5"])
        self.check("<=1.2", ["1.2.9"], ["1.3.0"])

    def test_bad(self):
        for text in ("1.2.3.4", "=>1", "^", "1.2-rc"):
            with self.assertRaises(VersionError):
                Range(text)

    def test_best(self):
        self.assertEqual(best(["1.0.0", "1.2.0", "2.0.0", "junk"], "^1"), "1.2.0")
        self.assertIsNone(best(["1.0.0"], ">2"))


if __name__ == "__main__":
    unittest.main()
