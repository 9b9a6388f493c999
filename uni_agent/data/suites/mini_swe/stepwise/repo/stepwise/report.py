"""What came of a run."""

import enum


class Status(enum.Enum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SKIPPED = "skipped"


class Report:
    """The status of each step, with results, errors and reasons for skipping."""

    def __init__(self):
        self.statuses = {}
        self.results = {}
        self.errors = {}
        self.reasons = {}

    def succeeded(self, name, result):
        self.statuses[name] = Status.SUCCEEDED
        self.results[name] = result

    def failed(self, name, error):
        self.statuses[name] = Status.FAILED
        self.errors[name] = error

    def skipped(self, name, because):
        """`because` names the failed step at the root of it."""
        self.statuses[name] = Status.SKIPPED
        self.reasons[name] = because

    def first_failed(self, needs):
        """The first of these steps that failed, or None."""
        for name in needs:
            if self.statuses.get(name) is Status.FAILED:
                return name
        return None

    @property
    def ok(self):
        return all(status is Status.SUCCEEDED for status in self.statuses.values())

    def count(self, status):
        return sum(each is status for each in self.statuses.values())

    def summary(self):
        parts = ["%d %s" % (self.count(status), status.value) for status in Status if self.count(status)]
        return ", ".join(parts) or "nothing to do"

    def lines(self):
        """One line a step, as shown to people."""
        for name, status in self.statuses.items():
            if status is Status.FAILED:
                yield "%s: failed: %s" % (name, self.errors[name])
            elif status is Status.SKIPPED:
                yield "%s: skipped because %s failed" % (name, self.reasons[name])
            else:
                yield "%s: succeeded" % name
