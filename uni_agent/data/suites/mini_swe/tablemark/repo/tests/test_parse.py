import unittest

from tablemark import TableError, parse, render


class ParseTest(unittest.TestCase):
    def test_plain(self):
        self.assertEqual(parse("|a|b|\n|-|:-:|\n| 1 | 2 |\n"), [["a", "b"], ["1", "2"]])

    def test_without_outer_bars(self):
        self.assertEqual(parse("a | b\n--- | ---\n1 | 2"), [["a", "b"], ["1", "2"]])

    def test_escaped_bar(self):
        self.assertEqual(parse("|a|\n|-|\n|x \\| y|"), [["a"], ["x | y"]])

    def test_no_table(self):
        for text in ("", "a", "a|b\nc|d", "a|b\n-|-|-"):
            with self.assertRaises(TableError):
                parse(text)

    def test_round_trip(self):
        rows = [["a", "b"], ["1", "two words"], ["é", "名"]]
        self.assertEqual(parse(render(rows)), rows)


if __name__ == "__main__":
    unittest.main()
