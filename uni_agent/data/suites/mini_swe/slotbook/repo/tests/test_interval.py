import unittest

from slotbook.interval import Interval, IntervalSet


class IntervalTest(unittest.TestCase):
    def test_touching_intervals_do_not_overlap(self):
        self.assertFalse(Interval(0, 10).overlaps(Interval(10, 20)))
        self.assertTrue(Interval(0, 11).overlaps(Interval(10, 20)))

    def test_clip(self):
        self.assertEqual(Interval(0, 10).clip(Interval(5, 20)), Interval(5, 10))
        self.assertIsNone(Interval(0, 10).clip(Interval(10, 20)))

    def test_text(self):
        self.assertEqual(str(Interval.parse("9:05-17:00")), "09:05-17:00")

    def test_empty_is_refused(self):
        with self.assertRaises(ValueError):
            Interval(5, 5)


class IntervalSetTest(unittest.TestCase):
    def test_touching_and_overlapping_are_merged(self):
        made = IntervalSet([Interval(10, 20), Interval(0, 10), Interval(15, 30)])
        self.assertEqual(list(made), [Interval(0, 30)])

    def test_complement(self):
        made = IntervalSet([Interval(10, 20), Interval(30, 40)])
        self.assertEqual(list(made.complement(Interval(0, 35))), [Interval(0, 10), Interval(20, 30)])

    def test_length(self):
        self.assertEqual(IntervalSet([Interval(0, 5), Interval(10, 20)]).length, 15)


if __name__ == "__main__":
    unittest.main()
