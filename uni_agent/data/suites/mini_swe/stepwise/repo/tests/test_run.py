import unittest

from stepwise import Plan, PlanError, Status, run


def fail(*_):
    raise RuntimeError("broken")


class RunTest(unittest.TestCase):
    def test_results_are_handed_on(self):
        plan = Plan()
        plan.step("one", lambda: 1)
        plan.step("two", lambda: 2)
        plan.step("sum", lambda a, b: a + b, needs=["one", "two"])
        report = run(plan)
        self.assertTrue(report.ok)
        self.assertEqual(report.results["sum"], 3)

    def test_direct_dependents_are_skipped(self):
        plan = Plan()
        plan.step("a", fail)
        plan.step("b", lambda a: a, needs=["a"])
        plan.step("c", lambda: "c")
        report = run(plan)
        self.assertEqual(report.statuses["b"], Status.SKIPPED)
        self.assertEqual(report.statuses["c"], Status.SUCCEEDED)
        self.assertEqual(report.summary(), "1 succeeded, 1 failed, 1 skipped")
        self.assertIn("b: skipped because a failed", list(report.lines()))

    def test_only(self):
        plan = Plan()
        plan.step("a", lambda: 1)
        plan.step("b", lambda a: a, needs=["a"])
        plan.step("c", fail)
        self.assertEqual(list(run(plan, only=["b"]).statuses), ["a", "b"])
        with self.assertRaises(PlanError):
            run(plan, only=["x"])

    def test_empty(self):
        self.assertEqual(run(Plan()).summary(), "nothing to do")


if __name__ == "__main__":
    unittest.main()
