import unittest

from crumbs import Jar


class JarTest(unittest.TestCase):
    def setUp(self):
        self.now = 1000.0
        self.jar = Jar(clock=lambda: self.now)

    def test_host_only(self):
        self.jar.store("https://example.com/", "a=1")
        self.assertEqual(self.jar.header("https://example.com/x"), "a=1")
        self.assertEqual(self.jar.header("https://www.example.com/"), "")

    def test_domain(self):
        self.jar.store("https://shop.example.com/", "a=1; Domain=.Example.com")
        self.assertEqual(self.jar.header("https://www.example.com/"), "a=1")
        self.assertEqual(self.jar.header("https://example.com/"), "a=1")

    def test_foreign_domain_is_refused(self):
        self.assertFalse(self.jar.store("https://a.com/", "x=1; Domain=b.com"))

    def test_path(self):
        self.jar.store("https://a.com/docs/page", "x=1")
        self.assertEqual(self.jar.header("https://a.com/docs/other"), "x=1")
        self.assertEqual(self.jar.header("https://a.com/docsx"), "")
        self.assertEqual(self.jar.header("https://a.com/"), "")

    def test_max_age(self):
        self.jar.store("https://a.com/", "x=1; Max-Age=10")
        self.now += 9
        self.assertEqual(len(self.jar), 1)
        self.now += 1
        self.assertEqual(self.jar.header("https://a.com/"), "")

    def test_secure(self):
        self.jar.store("https://a.com/", "x=1; Secure")
        self.assertEqual(self.jar.header("http://a.com/"), "")
        self.assertFalse(self.jar.store("http://a.com/", "x=1; Secure"))

    def test_longest_path_first(self):
        self.jar.store("https://a.com/", "x=1; Path=/")
        self.jar.store("https://a.com/", "y=2; Path=/a/b")
        self.assertEqual(self.jar.header("https://a.com/a/b/c"), "y=2; x=1")


if __name__ == "__main__":
    unittest.main()
