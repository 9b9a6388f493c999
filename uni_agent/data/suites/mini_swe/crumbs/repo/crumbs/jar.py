"""Keeping cookies."""

import time
from urllib.parse import urlsplit

from crumbs.match import default_path, domain_matches, path_matches
from crumbs.parse import parse_set_cookie


class Jar:
    """Cookies of any number of hosts."""

    def __init__(self, clock=time.time):
        self._clock = clock
        self._cookies = {}

    def __len__(self):
        now = self._clock()
        return sum(not cookie.expired(now) for cookie in self._cookies.values())

    def store(self, url, header):
        """Take in one Set-Cookie header of a response from `url`; says whether it was accepted."""
        parts = urlsplit(url)
        host = (parts.hostname or "").lower()
        now = self._clock()
        cookie = parse_set_cookie(header, now)
        if cookie is None or not host:
            return False
        if cookie.host_only:
            cookie.domain = host
        elif not domain_matches(host, cookie.domain):
            return False
        if cookie.secure and parts.scheme != "https":
            return False
        cookie.path = cookie.path or default_path(parts.path)
        key = (cookie.domain, cookie.path, cookie.name)
        if cookie.expired(now):
            self._cookies.pop(key, None)
        else:
            self._cookies[key] = cookie
        return True

    def header(self, url):
        """The Cookie header for a request to `url`, longest paths first; empty when there is nothing to send."""
        parts = urlsplit(url)
        host, path, now = (parts.hostname or "").lower(), parts.path or "/", self._clock()
        chosen = [
            cookie
            for cookie in self._cookies.values()
            if not cookie.expired(now)
            and (host == cookie.domain if cookie.host_only else domain_matches(host, cookie.domain))
            and path_matches(path, cookie.path)
            and (parts.scheme == "https" or not cookie.secure)
        ]
        chosen.sort(key=lambda cookie: -len(cookie.path))
        return "; ".join("%s=%s" % (cookie.name, cookie.value) for cookie in chosen)

    def clear(self):
        self._cookies.clear()
