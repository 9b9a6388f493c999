import unittest

from tablemark import render


class RenderTest(unittest.TestCase):
    def test_alignment(self):
        expected = "| name  | size |\n|:------|-----:|\n| a.txt |   12 |\n"
        self.assertEqual(render([["name", "size"], ["a.txt", 12]], align="lr"), expected)

    def test_short_rows_are_filled(self):
        expected = "| a   | b   |\n|:----|:----|\n| 1   |     |\n"
        self.assertEqual(render([["a", "b"], [1]]), expected)

    def test_wide_characters(self):
        lines = render([["名前", "x"], ["a", "b"]]).splitlines()
        self.assertEqual(lines[0], "| 名前 | x   |")
        self.assertEqual(lines[2], "| a    | b   |")

    def test_line_breaks(self):
        self.assertIn("| one<br>two |", render([["h"], ["one\ntwo"]]))

    def test_bad_alignment(self):
        with self.assertRaises(ValueError):
            render([["a"]], align="lr")


if __name__ == "__main__":
    unittest.main()
