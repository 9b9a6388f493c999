import unittest

from crumbs import parse_date


class DateTest(unittest.TestCase):
    def test_usual(self):
        self.assertEqual(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), 784111777)

    def test_asctime(self):
        self.assertEqual(parse_date("Sun Nov  6 08:49:37 1994"), 784111777)

    def test_dashes(self):
        self.assertEqual(parse_date("Sun, 06-Nov-1994 08:49:37 GMT"), 784111777)

    def test_not_a_date(self):
        for text in ("", "soon", "Sun, 31 Feb 2021 00:00:00 GMT", "06 Nov 1994", "06 Nov 1994 25:00:00"):
            self.assertIsNone(parse_date(text), text)


if __name__ == "__main__":
    unittest.main()
