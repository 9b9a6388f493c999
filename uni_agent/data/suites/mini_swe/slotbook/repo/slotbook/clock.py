"""Times of day as text."""

MINUTES_PER_DAY = 24 * 60


class ClockError(ValueError):
    """Text that is no time of day."""


def parse_time(text):
    """Minutes since midnight of `HH:MM`; `24:00` is the end of the day."""
    hours, colon, minutes = text.strip().partition(":")
    if not colon or not hours.isdigit() or not minutes.isdigit() or len(minutes) != 2:
        raise ClockError("not a time of day: %r" % text)
    value = int(hours) * 60 + int(minutes)
    if int(minutes) >= 60 or value > MINUTES_PER_DAY:
        raise ClockError("not a time of day: %r" % text)
    return value


def format_time(minutes):
    """`HH:MM` of minutes since midnight."""
    if not 0 <= minutes <= MINUTES_PER_DAY:
        raise ClockError("not inside a day: %r" % minutes)
    return "%02d:%02d" % divmod(minutes, 60)


def parse_span(text):
    """(start, end) of `HH:MM-HH:MM`."""
    start, dash, end = text.partition("-")
    if not dash:
        raise ClockError("not a span: %r" % text)
    start, end = parse_time(start), parse_time(end)
    if end <= start:
        raise ClockError("ends before it starts: %r" % text)
    return start, end
