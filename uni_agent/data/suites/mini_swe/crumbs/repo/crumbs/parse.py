"""The text of Set-Cookie."""

from crumbs.dates import parse_date


class Cookie:
    """One cookie. `domain` is None when none was given, `expires` None when it lasts as long as the jar."""

    __slots__ = ("domain", "expires", "host_only", "name", "path", "secure", "value")

    def __init__(self, name, value, domain=None, path=None, secure=False, expires=None):
        self.name = name
        self.value = value
        self.domain = domain
        self.path = path
        self.secure = secure
        self.expires = expires
        self.host_only = domain is None

    def expired(self, now):
        return self.expires is not None and self.expires <= now

    def __repr__(self):
        return "Cookie(%s=%s)" % (self.name, self.value)


def parse_set_cookie(text, now):
    """The Cookie of a Set-Cookie header, or None when it has no name."""
    pair, *attributes = text.split(";")
    name, equals, value = pair.partition("=")
    if not equals or not name.strip():
        return None
    cookie = Cookie(name.strip(), value.strip().strip('"'))
    max_age = expires = None
    for attribute in attributes:
        key, _, argument = attribute.partition("=")
        key, argument = key.strip().lower(), argument.strip()
        if key == "domain" and argument.strip("."):
            cookie.domain = argument.lstrip(".").lower()
            cookie.host_only = False
        elif key == "path" and argument.startswith("/"):
            cookie.path = argument
        elif key == "secure":
            cookie.secure = True
        elif key == "max-age" and argument.lstrip("-").isdigit():
            max_age = int(argument)
        elif key == "expires":
            expires = parse_date(argument)
    if max_age is not None:
        cookie.expires = now + max_age if max_age > 0 else 0
    else:
        cookie.expires = expires
    return cookie
