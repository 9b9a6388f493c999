import unittest

from ttlbox import Cache


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class ExpiredFirst(unittest.TestCase):
    def setUp(self):
        self.clock = Clock()

    def test_live_entry_survives_while_an_expired_one_is_there(self):
        cache = Cache(max_size=2, clock=self.clock)
        cache.set("live", 1)
        cache.set("dead", 2, ttl=5)
        self.clock.now = 6
        cache.set("new", 3)
        self.assertEqual(cache.get("live"), 1)
        self.assertEqual(cache.get("new"), 3)

    def test_expiry_is_not_an_eviction(self):
        cache = Cache(max_size=2, clock=self.clock)
        cache.set("live", 1)
        cache.set("dead", 2, ttl=5)
        self.clock.now = 6
        cache.set("new", 3)
        self.assertEqual((cache.stats.evictions, cache.stats.expiries), (0, 1))

    def test_expired_least_recent_counts_as_expiry(self):
        cache = Cache(max_size=1, ttl=5, clock=self.clock)
        cache.set("a", 1)
        self.clock.now = 5
        cache.set("b", 2)
        self.assertEqual(cache.stats.as_dict(), {"hits": 0, "misses": 0, "evictions": 0, "expiries": 1})

    def test_many(self):
        cache = Cache(max_size=10, clock=self.clock)
        for number in range(10):
            cache.set(number, number, ttl=None if number % 2 else 1)
        self.clock.now = 2
        for number in range(10, 15):
            cache.set(number, number)
        self.assertEqual(sorted(cache.keys()), [1, 3, 5, 7, 9, 10, 11, 12, 13, 14])
        cache.set(15, 15)
        self.assertNotIn(1, cache)
        self.assertEqual((cache.stats.evictions, cache.stats.expiries), (1, 5))


class StillRight(unittest.TestCase):
    def test_recency_decides_among_the_living(self):
        cache = Cache(max_size=3, ttl=100)
        for key in "abc":
            cache.set(key, key)
        cache.get("a")
        cache.set("d", "d")
        self.assertEqual(cache.keys(), ["c", "a", "d"])

    def test_pop_and_clear(self):
        cache = Cache()
        cache.set("a", 1)
        self.assertEqual((cache.pop("a"), cache.pop("a", 0)), (1, 0))
        cache.set("b", 1)
        cache.clear()
        self.assertEqual(len(cache), 0)

    def test_ratio(self):
        cache = Cache()
        self.assertEqual(cache.stats.ratio, 0.0)
        cache.set("a", 1)
        cache.get("a")
        cache.get("b")
        self.assertEqual(cache.stats.ratio, 0.5)


if __name__ == "__main__":
    unittest.main()
