"""What several calendars have in common."""

from slotbook.interval import Interval, IntervalSet

WHOLE_DAY = "00:00-24:00"


def common_busy(calendars):
    """The minutes at which at least one of the calendars is taken."""
    taken = IntervalSet()
    for calendar in calendars:
        taken = taken.union(calendar.busy())
    return taken


def free_slots(calendars, day=WHOLE_DAY, at_least=1):
    """Intervals of `at_least` minutes or more inside `day` at which everyone is free, in order."""
    frame = Interval.parse(day)
    return [slot for slot in common_busy(calendars).complement(frame) if slot.length >= at_least]


def first_slot(calendars, length, day=WHOLE_DAY, not_before=None):
    """The first interval of exactly `length` minutes at which everyone is free, or None."""
    for slot in free_slots(calendars, day):
        start = slot.start if not_before is None else max(slot.start, not_before)
        if start + length <= slot.end:
            return Interval(start, start + length)
    return None


def conflicts(calendar):
    """Pairs of firm events of one calendar that overlap, in order of their start."""
    firm = sorted((e for e in calendar.events if not e.tentative), key=lambda e: e.interval.start)
    pairs = []
    for i, first in enumerate(firm):
        for second in firm[i + 1 :]:
            if second.interval.start >= first.interval.end:
                break
            pairs.append((first, second))
    return pairs
