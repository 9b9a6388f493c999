import unittest

from crumbs import Jar, parse_date


class TwoDigitYears(unittest.TestCase):
    def test_last_century(self):
        self.assertEqual(parse_date("Sunday, 06-Nov-94 08:49:37 GMT"), 784111777)
        self.assertEqual(parse_date("Thu, 01-Jan-70 00:00:01 GMT"), 1)

    def test_this_century(self):
        self.assertEqual(parse_date("Sat, 01-Jan-00 00:00:00 GMT"), 946684800)
        self.assertEqual(parse_date("Tue, 31-Dec-69 23:59:59 GMT"), 3155759999)

    def test_log_out_removes_the_cookie(self):
        jar = Jar(clock=lambda: 1_600_000_000.0)
        jar.store("https://a.com/", "session=abc; Path=/")
        jar.store("https://a.com/", "session=; Path=/; Expires=Thu, 01-Jan-70 00:00:01 GMT")
        self.assertEqual((len(jar), jar.header("https://a.com/")), (0, ""))


class DomainBoundaries(unittest.TestCase):
    def setUp(self):
        self.jar = Jar(clock=lambda: 0.0)

    def test_not_sent_to_a_name_that_only_ends_alike(self):
        self.jar.store("https://example.com/", "id=7; Domain=example.com")
        self.assertEqual(self.jar.header("https://badexample.com/"), "")
        self.assertEqual(self.jar.header("https://a.b.example.com/"), "id=7")

    def test_not_taken_from_a_name_that_only_ends_alike(self):
        self.assertFalse(self.jar.store("https://badexample.com/", "id=7; Domain=example.com"))
        self.assertEqual(len(self.jar), 0)


class StillRight(unittest.TestCase):
    def test_addresses_have_no_parents(self):
        jar = Jar(clock=lambda: 0.0)
        self.assertFalse(jar.store("http://10.0.0.1/", "x=1; Domain=0.0.1"))
        self.assertTrue(jar.store("http://10.0.0.1/", "x=1; Domain=10.0.0.1"))

    def test_max_age_wins(self):
        jar = Jar(clock=lambda: 1000.0)
        jar.store("https://a.com/", "x=1; Expires=Thu, 01 Jan 1970 00:00:01 GMT; Max-Age=60")
        self.assertEqual(len(jar), 1)

    def test_four_digits(self):
        self.assertEqual(parse_date("Thu, 01 Jan 1970 00:00:00 GMT"), 0)


if __name__ == "__main__":
    unittest.main()
