"""Which entry goes when the cache is full."""

from collections import OrderedDict


class RecencyOrder:
    """Keys from the least to the most recently used."""

    def __init__(self):
        self._keys = OrderedDict()

    def touch(self, key):
        """The key was used just now."""
        self._keys[key] = None
        self._keys.move_to_end(key)

    def forget(self, key):
        self._keys.pop(key, None)

    def clear(self):
        self._keys.clear()

    def __iter__(self):
        return iter(self._keys)

    def __len__(self):
        return len(self._keys)

    def victim(self):
        """The key that goes next."""
        return next(iter(self._keys))
