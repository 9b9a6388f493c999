"""One person's day."""

from slotbook.clock import ClockError
from slotbook.interval import Interval, IntervalSet


class Event:
    """Something in a calendar. Tentative events do not keep anyone from a meeting."""

    def __init__(self, interval, title="", tentative=False):
        self.interval = interval
        self.title = title
        self.tentative = tentative

    @classmethod
    def parse(cls, line):
        """`HH:MM-HH:MM title`; a title that starts with `?` is tentative."""
        span, _, title = line.strip().partition(" ")
        title = title.strip()
        tentative = title.startswith("?")
        return cls(Interval.parse(span), title.lstrip("? "), tentative)

    def __repr__(self):
        return "Event(%s %s)" % (self.interval, self.title)


class Calendar:
    """Events of one person on one day."""

    def __init__(self, name="", events=()):
        self.name = name
        self.events = list(events)

    @classmethod
    def from_lines(cls, lines, name=""):
        """A calendar of text lines; blank lines and lines that start with `#` are left out."""
        events = []
        for number, line in enumerate(lines, start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            try:
                events.append(Event.parse(line))
            except ClockError as error:
                raise ClockError("line %d: %s" % (number, error)) from None
        return cls(name, events)

    def busy(self):
        """The minutes that are taken."""
        return IntervalSet(event.interval for event in self.events if not event.tentative)

    def add(self, event):
        self.events.append(event)

    def at(self, minute):
        """The events that are on at a minute."""
        return [event for event in self.events if minute in event.interval]
