"""Half-open intervals of whole minutes, and sets of them."""

from slotbook.clock import format_time, parse_span


class Interval:
    """Minutes from `start` up to, not including, `end`."""

    __slots__ = ("start", "end")

    def __init__(self, start, end):
        if end <= start:
            raise ValueError("an interval ends after it starts: %r, %r" % (start, end))
        self.start = start
        self.end = end

    @classmethod
    def parse(cls, text):
        return cls(*parse_span(text))

    @property
    def length(self):
        return self.end - self.start

    def overlaps(self, other):
        return self.start < other.end and other.start < self.end

    def clip(self, other):
        """The part of this interval inside `other`, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Interval(start, end) if start < end else None

    def __contains__(self, minute):
        return self.start <= minute < self.end

    def __eq__(self, other):
        if not isinstance(other, Interval):
            return NotImplemented
        return (self.start, self.end) == (other.start, other.end)

    def __hash__(self):
        return hash((self.start, self.end))

    def __repr__(self):
        return "Interval(%r, %r)" % (self.start, self.end)

    def __str__(self):
        return "%s-%s" % (format_time(self.start), format_time(self.end))


class IntervalSet:
    """Minutes covered by any of some intervals, kept as sorted intervals that neither overlap nor touch."""

    def __init__(self, intervals=()):
        self._parts = _merged(intervals)

    def __iter__(self):
        return iter(self._parts)

    def __len__(self):
        return len(self._parts)

    def __eq__(self, other):
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._parts == other._parts

    def __contains__(self, minute):
        return any(minute in part for part in self._parts)

    def __repr__(self):
        return "IntervalSet([%s])" % ", ".join(map(repr, self._parts))

    @property
    def length(self):
        """How many minutes are covered."""
        return sum(part.length for part in self._parts)

    def union(self, other):
        return IntervalSet([*self._parts, *other])

    def within(self, frame):
        """The covered minutes inside the interval `frame`."""
        clipped = (part.clip(frame) for part in self._parts)
        return IntervalSet(part for part in clipped if part is not None)

    def complement(self, frame):
        """The minutes of `frame` that are not covered."""
        gaps = []
        cursor = frame.start
        for part in self.within(frame):
            if part.start > cursor:
                gaps.append(Interval(cursor, part.start))
            cursor = part.end
        if cursor < frame.end:
            gaps.append(Interval(cursor, frame.end))
        return IntervalSet(gaps)


def _merged(intervals):
    merged = []
    for interval in sorted(intervals, key=lambda each: each.start):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, interval.end)
        else:
            merged.append(interval)
    return merged
