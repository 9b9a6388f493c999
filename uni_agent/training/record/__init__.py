"""How a training run's rollouts and step metrics get into the run's store.

Rollouts happen in worker processes, perhaps on other hosts that share the run's folder. Each writes a `RolloutJournal`
there; the run's own process, the only one that writes the store, reads them with a `JournalCollector`, and the
trainer's metrics with a `StepTail`.
"""

from uni_agent.training.record.collector import Collected, JournalCollector
from uni_agent.training.record.journal import JournalLog, RolloutJournal
from uni_agent.training.record.steps import StepMetrics, StepTail

__all__ = ["Collected", "JournalCollector", "JournalLog", "RolloutJournal", "StepMetrics", "StepTail"]
