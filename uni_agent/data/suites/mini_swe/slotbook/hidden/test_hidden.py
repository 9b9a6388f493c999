import unittest

from slotbook import Calendar, Interval, IntervalSet, first_slot, free_slots


class NestedMeetings(unittest.TestCase):
    def test_short_meeting_inside_a_long_one(self):
        day = Calendar.from_lines(["09:00-12:00 workshop", "09:30-10:00 call"])
        slots = free_slots([day], day="09:00-13:00", at_least=15)
        self.assertEqual([str(slot) for slot in slots], ["12:00-13:00"])

    def test_nested_across_people(self):
        ann = Calendar.from_lines(["08:00-17:00 offsite"])
        bob = Calendar.from_lines(["09:00-09:30 a", "12:00-13:00 b", "17:00-17:30 c"])
        self.assertEqual([str(s) for s in free_slots([ann, bob], day="08:00-18:00")], ["17:30-18:00"])

    def test_length_counts_the_longer(self):
        self.assertEqual(IntervalSet([Interval(0, 100), Interval(10, 20), Interval(30, 40)]).length, 100)

    def test_first_slot_is_not_inside_a_meeting(self):
        day = Calendar.from_lines(["09:00-12:00 workshop", "09:30-10:00 call"])
        self.assertEqual(str(first_slot([day], 30, day="09:00-17:00")), "12:00-12:30")


class StillRight(unittest.TestCase):
    def test_same_start(self):
        made = IntervalSet([Interval(0, 5), Interval(0, 10)])
        self.assertEqual(list(made), [Interval(0, 10)])

    def test_gaps_stay(self):
        made = IntervalSet([Interval(0, 5), Interval(6, 10)])
        self.assertEqual(len(made), 2)

    def test_not_before(self):
        day = Calendar.from_lines(["09:00-10:00 a"])
        self.assertEqual(str(first_slot([day], 30, day="08:00-12:00", not_before=8 * 60 + 45)), "10:00-10:30")


if __name__ == "__main__":
    unittest.main()
