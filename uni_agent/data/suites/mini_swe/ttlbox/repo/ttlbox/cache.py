"""The cache."""

import time

from ttlbox.entry import Entry
from ttlbox.policy import RecencyOrder
from ttlbox.stats import Stats

_MISSING = object()


class Cache:
    """At most `max_size` entries, each good for `ttl` seconds (None: for ever)."""

    def __init__(self, max_size=128, ttl=None, clock=time.monotonic):
        if max_size < 1:
            raise ValueError("max_size is at least 1")
        self.max_size = max_size
        self.ttl = ttl
        self.stats = Stats()
        self._clock = clock
        self._entries = {}
        self._order = RecencyOrder()

    def set(self, key, value, ttl=_MISSING):
        """Store a value; `ttl` replaces the cache's own for this entry."""
        now = self._clock()
        seconds = self.ttl if ttl is _MISSING else ttl
        if key not in self._entries and len(self._entries) >= self.max_size:
            self._make_room()
        self._entries[key] = Entry(value, None if seconds is None else now + seconds)
        self._order.touch(key)

    def get(self, key, default=None):
        """The value, or `default`. Counts as a use."""
        entry = self._live(key)
        if entry is None:
            self.stats.misses += 1
            return default
        self.stats.hits += 1
        self._order.touch(key)
        return entry.value

    def peek(self, key, default=None):
        """The value, or `default`. Does not count as a use."""
        entry = self._entries.get(key)
        return default if entry is None or entry.expired(self._clock()) else entry.value

    def pop(self, key, default=None):
        entry = self._live(key)
        if entry is None:
            return default
        self._remove(key)
        return entry.value

    def purge(self):
        """Drop what has expired; returns how many entries that were."""
        now = self._clock()
        gone = [key for key, entry in self._entries.items() if entry.expired(now)]
        for key in gone:
            self._expire(key)
        return len(gone)

    def clear(self):
        self._entries.clear()
        self._order.clear()

    def __contains__(self, key):
        return self.peek(key, _MISSING) is not _MISSING

    def __len__(self):
        """How many entries are still good."""
        now = self._clock()
        return sum(not entry.expired(now) for entry in self._entries.values())

    def keys(self):
        """The keys of entries that are still good, least recently used first."""
        now = self._clock()
        return [key for key in self._order if not self._entries[key].expired(now)]

    def _live(self, key):
        entry = self._entries.get(key)
        if entry is not None and entry.expired(self._clock()):
            self._expire(key)
            return None
        return entry

    def _make_room(self):
        self._remove(self._order.victim())
        self.stats.evictions += 1

    def _expire(self, key):
        self._remove(key)
        self.stats.expiries += 1

    def _remove(self, key):
        del self._entries[key]
        self._order.forget(key)
