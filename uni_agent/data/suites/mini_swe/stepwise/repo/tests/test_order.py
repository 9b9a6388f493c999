import unittest

from stepwise import CycleError, Plan, PlanError, execution_order


def plan_of(**needs):
    plan = Plan()
    for name, names in needs.items():
        plan.step(name, lambda *a: None, needs=names.split())
    return plan


class OrderTest(unittest.TestCase):
    def test_needs_come_first(self):
        self.assertEqual(execution_order(plan_of(c="b", b="a", a="")), ["a", "b", "c"])

    def test_order_of_adding(self):
        self.assertEqual(execution_order(plan_of(x="", y="", z="")), ["x", "y", "z"])

    def test_priority(self):
        plan = plan_of(x="")
        plan.step("y", lambda: None, priority=5)
        self.assertEqual(execution_order(plan), ["y", "x"])

    def test_cycle_is_named(self):
        with self.assertRaises(CycleError) as caught:
            execution_order(plan_of(a="c", b="a", c="b", d="a"))
        self.assertEqual(caught.exception.cycle, ["a", "c", "b", "a"])

    def test_missing(self):
        with self.assertRaisesRegex(PlanError, "'zz'"):
            execution_order(plan_of(a="zz"))


if __name__ == "__main__":
    unittest.main()
