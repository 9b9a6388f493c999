"""HTTP dates."""

import calendar
import re

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_TIME = re.compile(r"^(\d{1,2}):(\d{2}):(\d{2})$")
_SEPARATORS = re.compile(r"[\s,;-]+")


def parse_date(text):
    """Seconds since 1970 (UTC) of a date, or None when there is none in `text`.

    Reads `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` and `Sun Nov  6 08:49:37 1994`: the parts are
    known by their form, not by their place.
    """
    clock = day = month = year = None
    for token in _SEPARATORS.split(text.strip()):
        match = _TIME.match(token)
        if match and clock is None:
            clock = tuple(int(part) for part in match.groups())
        elif token.isdigit() and len(token) <= 2 and day is None:
            day = int(token)
        elif token[:3].lower() in _MONTHS and month is None:
            month = _MONTHS.index(token[:3].lower()) + 1
        elif token.isdigit() and len(token) in (2, 4) and year is None:
            year = _full_year(int(token), len(token))
    if None in (clock, day, month, year) or not _plausible(clock, day, month, year):
        return None
    return calendar.timegm((year, month, day, *clock))


def _full_year(number, digits):
    if digits == 4:
        return number
    return number + 2000


def _plausible(clock, day, month, year):
    hour, minute, second = clock
    if year < 1601 or hour > 23 or minute > 59 or second > 59:
        return False
    return 1 <= day <= calendar.monthrange(year, month)[1]
