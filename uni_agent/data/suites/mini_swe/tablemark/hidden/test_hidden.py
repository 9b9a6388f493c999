import unittest

from tablemark import parse, render
from tablemark.width import text_width


class BarsAndBackslashes(unittest.TestCase):
    def test_bar_in_a_cell_keeps_the_columns(self):
        rows = [["command", "what"], ["ls | wc", "count"], ["a||b", "or"]]
        self.assertEqual(parse(render(rows)), rows)

    def test_columns_line_up_with_bars(self):
        lines = render([["command", "what"], ["ls | wc -l", "count"], ["x", "y"]]).splitlines()
        self.assertEqual(len({text_width(line) for line in lines}), 1)
        self.assertEqual(lines[2], "| ls \\| wc -l | count |")

    def test_backslash_before_a_bar(self):
        rows = [["h", "i"], ["C:\\", "x"], ["a\\|b", "c\\\\"]]
        self.assertEqual(parse(render(rows)), rows)


class StillRight(unittest.TestCase):
    def test_other_backslashes(self):
        self.assertEqual(parse("|a|\n|-|\n|\\d+ \\*|"), [["a"], ["\\d+ \\*"]])

    def test_none_is_empty(self):
        self.assertEqual(parse(render([["a", "b"], [None, 1]])), [["a", "b"], ["", "1"]])

    def test_centre(self):
        self.assertEqual(render([["abcd"], ["x"]], align="c").splitlines()[2], "|  x   |")

    def test_line_breaks_come_back(self):
        self.assertEqual(parse(render([["a"], ["one\ntwo"]])), [["a"], ["one\ntwo"]])


if __name__ == "__main__":
    unittest.main()
