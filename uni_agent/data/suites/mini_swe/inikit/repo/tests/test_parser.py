import unittest

from inikit import IniError, MissingKey, loads

TEXT = """\
# settings
[server]
host = localhost  ; for now
port = 80
debug = yes
url = http://localhost:80/#top

[paths]
list = one
  two
  three
name = "  padded  "
"""


class ParserTest(unittest.TestCase):
    def setUp(self):
        self.config = loads(TEXT)

    def test_values(self):
        self.assertEqual(self.config.sections(), ["server", "paths"])
        self.assertEqual(self.config.get("server", "host"), "localhost")
        self.assertEqual(self.config.get_int("server", "port"), 80)
        self.assertIs(self.config.get_bool("server", "debug"), True)

    def test_mark_inside_a_word_is_no_comment(self):
        self.assertEqual(self.config.get("server", "url"), "http://localhost:80/#top")

    def test_continued(self):
        self.assertEqual(self.config.get("paths", "list"), "one\ntwo\nthree")

    def test_quoted(self):
        self.assertEqual(self.config.get("paths", "name"), "  padded  ")

    def test_defaults_and_missing(self):
        self.assertEqual(self.config.get("server", "x", "d"), "d")
        with self.assertRaises(MissingKey):
            self.config.get("nope", "x")

    def test_errors_name_the_line(self):
        for text, line in [("a = 1", 1), ("[a]\nb", 2), ("[a]\n[", 2), ('[a]\nb = "x', 2), ("  x", 1)]:
            with self.assertRaises(IniError) as caught:
                loads(text)
            self.assertEqual(caught.exception.line, line)


if __name__ == "__main__":
    unittest.main()
