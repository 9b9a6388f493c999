"""Find time for meetings."""

from slotbook.calendar import Calendar, Event
from slotbook.finder import conflicts, first_slot, free_slots
from slotbook.interval import Interval, IntervalSet

__all__ = ["Calendar", "Event", "Interval", "IntervalSet", "conflicts", "first_slot", "free_slots"]
