"""Running a plan."""

from stepwise.order import execution_order
from stepwise.report import Report


def run(plan, only=None):
    """Run all steps, or the ones named and what they need. An action gets the results of what its step needs.

    Errors of actions end up in the report; PlanError is raised before anything runs.
    """
    if only is not None:
        plan = plan.subset(only)
    report = Report()
    for name in execution_order(plan):
        step = plan[name]
        because = report.first_failed(step.needs)
        if because is not None:
            report.skipped(name, because)
            continue
        arguments = [report.results.get(need) for need in step.needs]
        try:
            result = step.action(*arguments)
        except Exception as error:
            report.failed(name, error)
        else:
            report.succeeded(name, result)
    return report
