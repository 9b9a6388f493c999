"""Steps with dependencies."""

from stepwise.order import CycleError, execution_order
from stepwise.plan import Plan, PlanError
from stepwise.report import Report, Status
from stepwise.runner import run

__all__ = ["CycleError", "Plan", "PlanError", "Report", "Status", "execution_order", "run"]
