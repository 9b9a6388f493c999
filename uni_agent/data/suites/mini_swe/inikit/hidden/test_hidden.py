import unittest

from inikit import Config, dumps, loads


def back(value):
    return loads(dumps(Config({"s": {"k": value}}))).get("s", "k")


class CommentMarks(unittest.TestCase):
    def test_password_with_mark_after_space_survives(self):
        self.assertEqual(back("hunter2 #1"), "hunter2 #1")

    def test_value_that_starts_with_a_mark(self):
        self.assertEqual(back("#ff0000"), "#ff0000")
        self.assertEqual(back(";"), ";")

    def test_quoted_value_may_hold_marks(self):
        config = loads('[a]\nx = "one ; two # three"  # note\n')
        self.assertEqual(config.get("a", "x"), "one ; two # three")

    def test_escaped_quote_before_a_mark(self):
        self.assertEqual(loads('[a]\nx = "say \\" # hi"\n').get("a", "x"), 'say " # hi')
        self.assertEqual(back('5" # disc'), '5" # disc')

    def test_every_mark_everywhere(self):
        for mark in "#;":
            for value in (mark, mark + "a", "a " + mark, "a " + mark + " b", 'q" ' + mark + ' "q'):
                self.assertEqual(back(value), value)


class StillRight(unittest.TestCase):
    def test_comments_go(self):
        self.assertEqual(loads("[a]\nx = 1 # note\ny = 2\t; note\n; z = 3\n").to_dict(), {"a": {"x": "1", "y": "2"}})

    def test_mark_in_a_word(self):
        self.assertEqual(loads("[a]\nx = a#b;c\n").get("a", "x"), "a#b;c")

    def test_escapes(self):
        self.assertEqual(loads('[a]\nx = "a\\tb\\n\\\\"\n').get("a", "x"), "a\tb\n\\")


if __name__ == "__main__":
    unittest.main()
