"""A cache with a size and a time to live."""

from ttlbox.cache import Cache
from ttlbox.memo import memoize
from ttlbox.stats import Stats

__all__ = ["Cache", "Stats", "memoize"]
