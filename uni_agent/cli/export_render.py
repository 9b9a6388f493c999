"""What `uni-agent export` says of trajectories whose tokens are no exact render of their messages."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from uni_agent.errors import UniAgentError
from uni_agent.types import Message, ToolCall

if TYPE_CHECKING:
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.store import RunReader
    from uni_agent.store.records import ChainRow, RolloutRow
    from uni_agent.tokens.base import Renderer, ToolSchema
    from uni_agent.trajectory import Trajectory

KEY = "render_difference"
MASK = "(redacted)"
"""What the store writes for a secret."""


@dataclass(slots=True)
class RenderChecks:
    """Compares trajectories by one model's chat template, and counts; without a renderer it does neither."""

    renderer: Renderer | None = None
    counts: Counter[str] = field(default_factory=Counter[str])
    _config: PipelineConfig | None = None
    _tools: dict[str, tuple[ToolSchema, ...]] = field(default_factory=dict[str, "tuple[ToolSchema, ...]"])

    @classmethod
    def of(cls, args: argparse.Namespace) -> RenderChecks:
        """Those that `--render` asks for. Raises ConfigError for a folder without tokenizer or chat template."""
        from uni_agent.tokens.config import RendererConfig

        return cls() if args.render is None else cls(RendererConfig().build(args.render))

    def noted(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with its difference in `extra`, null when it is exact, absent where nothing can be compared."""
        return replace(trajectory, extra={**trajectory.extra, **self.told(trajectory)}) if self.renderer else trajectory

    def told(self, trajectory: Trajectory | None) -> dict[str, Any]:
        """What to add to a record about `trajectory`, None being one that is not known."""
        from uni_agent.trajectory.render_check import checked_render

        if self.renderer is None:
            return {}
        kind, difference = (None, None) if trajectory is None else checked_render(trajectory, self.renderer)
        self.counts[kind or "not compared"] += 1
        if kind is None:
            return {}
        return {KEY: None if difference is None else difference.to_json()}

    def tools(self, reader: RunReader, task_id: str) -> tuple[ToolSchema, ...]:
        """What the agent of a run's task was offered, by the run's configuration. Raises ConfigError."""
        from uni_agent.config.load import from_data
        from uni_agent.data.source import validate_task
        from uni_agent.pipeline import PipelineConfig
        from uni_agent.tools.toolset import Toolset

        if task_id not in self._tools:
            if self._config is None:
                self._config = from_data(PipelineConfig, reader.meta()["config"])
            stored = reader.task(task_id)
            raw: dict[str, Any] = {
                **(cast("dict[str, Any]", stored["spec"] or {})),
                "id": task_id,
                "prompt": stored["prompt"],
            }
            config = self._config.for_task(validate_task(raw, f"task {task_id!r}"))
            self._tools[task_id] = tuple(Toolset([tool.build() for tool in config.tools]).schemas())
        return self._tools[task_id]

    def summary(self) -> str:
        """The counts by kind, one line; "" when nothing was compared."""
        found = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return found and f"tokens beside the chat template's render of their messages: {found}"


def stored_trajectory(
    reader: RunReader, rollout: RolloutRow, chains: Sequence[ChainRow], checks: RenderChecks
) -> Trajectory | None:
    """The one chain of a run's rollout with its messages and tools.

    None where the store does not say what its tokens say: a conversation of several chains, one with images or masked
    secrets, a turn that is in no chain, or a configuration that cannot be read any more.
    """
    from uni_agent.engine.base import WeightSpan
    from uni_agent.tokens.cache import Span
    from uni_agent.trajectory import Trajectory

    turns = reader.turns(rollout.id)
    messages = [(None, message) for message in rollout.opening]
    for turn in turns:
        messages += [(turn.index, turn.message), *((None, message) for message in turn.observations)]
    while messages and messages[-1][0] is None:
        messages.pop()  # what answered the last turn was never read
    if len(chains) != 1 or not messages or any(MASK in str(message) or message.get("parts") for _, message in messages):
        return None
    (chain,) = chains
    try:
        return Trajectory(
            id=rollout.id,
            session_id=rollout.id,
            prompt_ids=chain.prompt_ids,
            response_ids=chain.response_ids,
            response_mask=chain.response_mask,
            response_logprobs=chain.response_logprobs,
            spans=tuple(Span(*span) for span in chain.spans),
            weight_spans=tuple(WeightSpan(*span) for span in chain.weight_spans),
            turns=tuple(turn.index for turn in turns),
            messages=tuple(_message(message) for _, message in messages),
            message_turns=tuple(index for index, _ in messages),
            tools=checks.tools(reader, rollout.task_id),
        )
    except (UniAgentError, ValueError, TypeError, KeyError):
        return None


def _message(stored: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in stored["tool_calls"])
    fields: dict[str, Any] = {**stored, "tool_calls": calls, "parts": ()}
    return Message(**fields)
