"""What a run needs, found out before the first sandbox starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from uni_agent.errors import ConfigError
from uni_agent.model.config import VerlModelConfig
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


@dataclass(slots=True)
class Preflight:
    """What was built while looking: the tasks (empty) and the model (None) when they could not be."""

    findings: list[Finding] = field(default_factory=list[Finding])
    tasks: list[Task] = field(default_factory=list[Task])
    model: ChatModel | None = None

    def look(self, what: str, check: Callable[[], object]) -> None:
        """Note whether `check` raises ConfigError."""
        try:
            check()
        except ConfigError as error:
            self.findings.append(Finding(what, str(error)))
        else:
            self.findings.append(Finding(what))


def preflight(config: PipelineConfig) -> Preflight:
    """Build every part that can be built without starting anything; one finding each."""
    found = Preflight()

    def tasks() -> None:
        loaded = config.data.build().load()
        check_tasks(config, loaded)
        found.tasks = loaded

    def model() -> None:
        found.model = config.model.build(config.run.seed)

    found.look("tasks", tasks)
    found.look("tools", lambda: Toolset([tool.build() for tool in config.tools]))
    found.look("deployment", config.deployment.check)
    found.look("reward", config.reward.build)
    if config.train is None:
        found.look("model", model)
    else:
        found.look("policy", lambda: _policy(config))
    return found


def _policy(config: PipelineConfig) -> None:
    """Look at the weights and the chat template that will be trained, through the renderer that will be used."""
    if isinstance(config.model, VerlModelConfig):
        config.model.renderer.build(config.model.path)


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
