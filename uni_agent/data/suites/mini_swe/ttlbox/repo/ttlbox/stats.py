"""Counters of a cache."""


class Stats:
    """How often the cache had what was asked for. An expired entry counts as a miss and as an expiry."""

    def __init__(self):
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self.expiries = 0

    @property
    def ratio(self):
        """Hits per look-up, 0.0 before the first."""
        total = self.hits + self.misses
        return self.hits / total if total else 0.0

    def as_dict(self):
        return {
            "hits": self.hits,
            "misses": self.misses,
            "evictions": self.evictions,
            "expiries": self.expiries,
        }
