"""One entry of the cache."""


class Entry:
    """A value and the moment from which on it is no longer good; None never expires."""

    __slots__ = ("value", "expires_at")

    def __init__(self, value, expires_at=None):
        self.value = value
        self.expires_at = expires_at

    def expired(self, now):
        return self.expires_at is not None and now >= self.expires_at
