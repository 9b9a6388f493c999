import os
import tempfile
import unittest

from inikit import Config, dump, dumps, load, loads


class WriterTest(unittest.TestCase):
    def test_plain(self):
        config = Config({"a": {"x": "1", "y": "two words"}, "b": {}})
        self.assertEqual(dumps(config), "[a]\nx = 1\ny = two words\n\n[b]\n")

    def test_quotes_where_needed(self):
        self.assertEqual(dumps(Config({"a": {"x": " 1 "}})), '[a]\nx = " 1 "\n')

    def test_round_trip(self):
        for value in ["", "a b", " pad ", 'say "hi"', "two\nlines", "tab\there", "a=b", "[x]", "back\\slash"]:
            config = Config({"s": {"k": value}})
            self.assertEqual(loads(dumps(config)), config, value)

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.ini")
            dump(Config({"a": {"x": "é"}}), path)
            self.assertEqual(load(path).get("a", "x"), "é")


if __name__ == "__main__":
    unittest.main()
