"""Remember what a function gave."""

import functools

from ttlbox.cache import Cache

_MISSING = object()


def memoize(max_size=128, ttl=None, **options):
    """A decorator that keeps results by their arguments. The function gets an attribute `cache`."""

    def decorate(function):
        cache = Cache(max_size=max_size, ttl=ttl, **options)

        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            key = (args, tuple(sorted(kwargs.items())))
            value = cache.get(key, _MISSING)
            if value is _MISSING:
                value = function(*args, **kwargs)
                cache.set(key, value)
            return value

        wrapper.cache = cache
        return wrapper

    return decorate
