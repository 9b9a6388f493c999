"""What a run needs, found out before the first sandbox starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uni_agent.errors import ConfigError
from uni_agent.tools.toolset import Toolset
from uni_agent.types import Task

if TYPE_CHECKING:
    from uni_agent.model.base import ChatModel
    from uni_agent.pipeline import PipelineConfig


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a run needs. `problem` is "" when it is there, otherwise a sentence with the cure."""

    what: str
    problem: str = ""


def preflight(config: PipelineConfig) -> list[Finding]:
    """Build every part that can be built without starting anything; one finding each."""

    def load_tasks() -> None:
        check_tasks(config, config.data.build().load())

    return [
        _find("tasks", load_tasks),
        _find("tools", lambda: Toolset([tool.build() for tool in config.tools])),
        _find("deployment", config.deployment.check),
        _find("reward", config.reward.build),
        _find("model", lambda: config.model.build(config.run.seed)),
    ]


def check_tasks(config: PipelineConfig, tasks: Sequence[Task]) -> None:
    """Resolve every task's own configuration. Raises ConfigError for the first that does not fit."""
    for task in tasks:
        resolved = config.for_task(task)
        try:
            resolved.agent.messages(task)
        except ValueError as error:
            raise ConfigError(f"task {task.id!r}: {error}") from error
        if resolved is config:
            continue
        if resolved.tools != config.tools:
            Toolset([tool.build() for tool in resolved.tools])
        if resolved.deployment != config.deployment:
            resolved.deployment.check()
        if resolved.reward != config.reward:
            resolved.reward.build()


async def probe_model(model: ChatModel) -> None:
    """Load the model and see that it answers. Raises ConfigError with the cure."""
    await model.start()
    await model.probe()


def _find(what: str, check: Callable[[], object]) -> Finding:
    try:
        check()
    except ConfigError as error:
        return Finding(what, str(error))
    return Finding(what)
