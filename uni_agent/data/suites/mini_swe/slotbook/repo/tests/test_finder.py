import unittest

from slotbook import Calendar, conflicts, first_slot, free_slots
from slotbook.clock import ClockError


class FinderTest(unittest.TestCase):
    def setUp(self):
        self.ann = Calendar.from_lines(["09:00-10:30 stand-up", "", "# lunch", "13:00-14:00 lunch"])
        self.bob = Calendar.from_lines(["10:00-11:00 call", "16:00-17:00 ? maybe"])

    def test_free_slots(self):
        slots = free_slots([self.ann, self.bob], day="09:00-17:00", at_least=30)
        self.assertEqual([str(slot) for slot in slots], ["11:00-13:00", "14:00-17:00"])

    def test_first_slot(self):
        self.assertEqual(str(first_slot([self.ann, self.bob], 60, day="09:00-17:00")), "11:00-12:00")
        self.assertIsNone(first_slot([self.ann], 600, day="09:00-17:00"))

    def test_conflicts(self):
        self.ann.add(self.bob.events[0])
        self.assertEqual([(a.title, b.title) for a, b in conflicts(self.ann)], [("stand-up", "call")])

    def test_bad_line_is_named(self):
        with self.assertRaisesRegex(ClockError, "line 2"):
            Calendar.from_lines(["09:00-10:00 a", "9-10 b"])


if __name__ == "__main__":
    unittest.main()
