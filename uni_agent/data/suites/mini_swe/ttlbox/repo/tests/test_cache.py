import unittest

from ttlbox import Cache, memoize


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class CacheTest(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()
        self.cache = Cache(max_size=2, ttl=10, clock=self.clock)

    def test_set_get(self):
        self.cache.set("a", 1)
        self.assertEqual(self.cache.get("a"), 1)
        self.assertEqual(self.cache.get("b", "none"), "none")

    def test_least_recently_used_goes(self):
        self.cache.set("a", 1)
        self.cache.set("b", 2)
        self.cache.get("a")
        self.cache.set("c", 3)
        self.assertEqual(self.cache.keys(), ["a", "c"])
        self.assertEqual(self.cache.stats.evictions, 1)

    def test_expires(self):
        self.cache.set("a", 1)
        self.clock.now = 10
        self.assertNotIn("a", self.cache)
        self.assertIsNone(self.cache.get("a"))
        self.assertEqual(self.cache.stats.expiries, 1)

    def test_own_ttl(self):
        self.cache.set("a", 1, ttl=None)
        self.clock.now = 1000
        self.assertEqual(self.cache.get("a"), 1)

    def test_purge_and_len(self):
        self.cache.set("a", 1)
        self.clock.now = 5
        self.cache.set("b", 2)
        self.clock.now = 12
        self.assertEqual(len(self.cache), 1)
        self.assertEqual(self.cache.purge(), 1)

    def test_overwrite_keeps_the_size(self):
        for value in range(5):
            self.cache.set("a", value)
        self.assertEqual(self.cache.get("a"), 4)
        self.assertEqual(self.cache.stats.evictions, 0)

    def test_peek_is_no_use(self):
        self.cache.set("a", 1)
        self.cache.set("b", 2)
        self.cache.peek("a")
        self.cache.set("c", 3)
        self.assertNotIn("a", self.cache)


class MemoTest(unittest.TestCase):
    def test_called_once(self):
        calls = []

        @memoize(max_size=2)
        def double(x):
            calls.append(x)
            return 2 * x

        self.assertEqual([double(2), double(2), double(3)], [4, 4, 6])
        self.assertEqual(calls, [2, 3])


if __name__ == "__main__":
    unittest.main()
