import unittest

from stepwise import Plan, Status, run


def fail(*_):
    raise RuntimeError("broken")


def chain(length):
    plan = Plan()
    plan.step("s0", fail)
    for i in range(1, length):
        plan.step("s%d" % i, lambda before: before, needs=["s%d" % (i - 1)])
    return plan


class Transitive(unittest.TestCase):
    def test_chain_is_skipped_to_its_end(self):
        report = run(chain(5))
        self.assertEqual([s.value for s in report.statuses.values()], ["failed"] + ["skipped"] * 4)

    def test_reason_is_the_root(self):
        report = run(chain(4))
        self.assertEqual(set(report.reasons.values()), {"s0"})
        self.assertIn("s3: skipped because s0 failed", list(report.lines()))

    def test_diamond(self):
        ran = []
        plan = Plan()
        plan.step("root", lambda: ran.append("root"))
        plan.step("left", fail, needs=["root"])
        plan.step("right", lambda _: ran.append("right"), needs=["root"])
        plan.step("after_left", lambda _: ran.append("after_left"), needs=["left"])
        plan.step("join", lambda *_: ran.append("join"), needs=["right", "after_left"])
        report = run(plan)
        self.assertEqual(ran, ["root", "right"])
        self.assertEqual(report.statuses["join"], Status.SKIPPED)
        self.assertEqual(report.reasons["join"], "left")

    def test_the_rest_still_runs(self):
        plan = chain(3)
        plan.step("free", lambda: 1)
        plan.step("after", lambda one: one + 1, needs=["free"])
        report = run(plan)
        self.assertEqual(report.results, {"free": 1, "after": 2})
        self.assertFalse(report.ok)


class StillRight(unittest.TestCase):
    def test_all_well(self):
        plan = Plan()
        plan.step("a", lambda: 1)
        plan.step("b", lambda a: a + 1, needs=["a"])
        self.assertEqual(run(plan).summary(), "2 succeeded")

    def test_error_is_kept(self):
        plan = Plan()
        plan.step("a", fail)
        self.assertEqual(str(run(plan).errors["a"]), "broken")

    def test_none_is_a_result(self):
        plan = Plan()
        plan.step("a", lambda: None)
        plan.step("b", lambda a: a is None, needs=["a"])
        self.assertTrue(run(plan).results["b"])


if __name__ == "__main__":
    unittest.main()
