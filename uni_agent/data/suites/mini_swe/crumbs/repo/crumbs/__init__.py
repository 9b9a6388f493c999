"""A cookie jar."""

from crumbs.dates import parse_date
from crumbs.jar import Jar
from crumbs.parse import Cookie, parse_set_cookie

__all__ = ["Cookie", "Jar", "parse_date", "parse_set_cookie"]
