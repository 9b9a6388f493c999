"""Steps and what they need."""


class PlanError(ValueError):
    """A plan that cannot be run."""


class Step:
    """A named function and the names of the steps that have to succeed before it."""

    __slots__ = ("action", "name", "needs", "priority")

    def __init__(self, name, action, needs, priority):
        self.name = name
        self.action = action
        self.needs = tuple(dict.fromkeys(needs))
        self.priority = priority


class Plan:
    """Steps by name, in the order in which they were added."""

    def __init__(self):
        self._steps = {}

    def step(self, name, action, needs=(), priority=0):
        """Add a step. What it needs may be added later."""
        if name in self._steps:
            raise PlanError("there are two steps %r" % name)
        self._steps[name] = Step(name, action, needs, priority)

    def __iter__(self):
        return iter(self._steps.values())

    def __len__(self):
        return len(self._steps)

    def __getitem__(self, name):
        return self._steps[name]

    def __contains__(self, name):
        return name in self._steps

    def check(self):
        """Raise PlanError when a step needs one that is not there."""
        for step in self:
            for name in step.needs:
                if name not in self:
                    raise PlanError("%r needs %r, which is not there" % (step.name, name))

    def dependents(self, name):
        """The names of steps that need `name` directly."""
        return [step.name for step in self if name in step.needs]

    def subset(self, names):
        """A plan of the named steps and all that they need."""
        wanted, waiting = set(), list(names)
        while waiting:
            name = waiting.pop()
            if name not in self:
                raise PlanError("no step %r" % name)
            if name not in wanted:
                wanted.add(name)
                waiting.extend(self[name].needs)
        part = Plan()
        for step in self:
            if step.name in wanted:
                part.step(step.name, step.action, step.needs, step.priority)
        return part
