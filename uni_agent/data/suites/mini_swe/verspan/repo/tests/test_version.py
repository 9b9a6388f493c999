import unittest

from verspan import Version, VersionError, sort_versions


class VersionTest(unittest.TestCase):
    def test_order(self):
        texts = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta", "1.0.0-rc.2", "1.0.0-rc.11", "1.0.0", "1.0.1", "1.10.0"]
        self.assertEqual(sort_versions(reversed(texts)), texts)

    def test_build_is_ignored(self):
        self.assertEqual(Version("1.0.0+a"), Version("1.0.0+b"))

    def test_text(self):
        self.assertEqual(str(Version("v1.2.3-rc.1+x")), "1.2.3-rc.1+x")

    def test_bad(self):
        for text in ("1", "1.2", "01.2.3", "1.2.3-", "a.b.c", ""):
            with self.assertRaises(VersionError):
                Version(text)


if __name__ == "__main__":
    unittest.main()
