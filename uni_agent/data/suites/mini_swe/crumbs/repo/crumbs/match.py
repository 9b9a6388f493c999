"""Which cookie goes where."""

import re

_ADDRESS = re.compile(r"^\d+\.\d+\.\d+\.\d+$|:")


def is_address(host):
    """Whether a host is an IP address; an address has no domain above it."""
    return bool(_ADDRESS.search(host))


def domain_matches(host, domain):
    """Whether `host` is `domain` or lies below it."""
    if host == domain:
        return True
    return host.endswith(domain) and not is_address(host)


def path_matches(path, cookie_path):
    """Whether a request's path is `cookie_path` or lies below it."""
    if path == cookie_path:
        return True
    if not path.startswith(cookie_path):
        return False
    return cookie_path.endswith("/") or path[len(cookie_path)] == "/"


def default_path(path):
    """The path of a cookie that names none: the folder of the request."""
    folder = path.rpartition("/")[0]
    return folder if path.startswith("/") and folder else "/"
