"""In which order steps run."""

import heapq

from stepwise.plan import PlanError


class CycleError(PlanError):
    """Steps that need each other; `cycle` names them, the first one again at the end."""

    def __init__(self, cycle):
        super().__init__("steps need each other: " + " -> ".join(cycle))
        self.cycle = cycle


def execution_order(plan):
    """Names such that each comes after all it needs. Raises PlanError and CycleError."""
    plan.check()
    place = {step.name: index for index, step in enumerate(plan)}
    open_needs = {step.name: len(step.needs) for step in plan}
    ready = [(-step.priority, place[step.name], step.name) for step in plan if not step.needs]
    heapq.heapify(ready)
    order = []
    while ready:
        _, _, name = heapq.heappop(ready)
        order.append(name)
        for dependent in plan.dependents(name):
            open_needs[dependent] -= 1
            if not open_needs[dependent]:
                heapq.heappush(ready, (-plan[dependent].priority, place[dependent], dependent))
    if len(order) < len(plan):
        raise CycleError(_find_cycle(plan, set(place) - set(order)))
    return order


def _find_cycle(plan, names):
    # Each of `names` needs another of them, so walking along the needs comes round.
    name = min(names)
    path = []
    while name not in path:
        path.append(name)
        name = next(need for need in plan[name].needs if need in names)
    return path[path.index(name) :] + [name]
