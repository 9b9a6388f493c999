"""What `uni-agent export` says of trajectories whose tokens are no exact render of their messages."""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from uni_agent.tokens.base import Renderer
    from uni_agent.trajectory import Trajectory

KEY = "render_difference"


@dataclass(slots=True)
class RenderChecks:
    """Compares trajectories by one model's chat template, and counts; without a renderer it does neither."""

    renderer: Renderer | None = None
    counts: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def of(cls, args: argparse.Namespace) -> RenderChecks:
        """Those that `--render` asks for. Raises ConfigError for a folder without tokenizer or chat template."""
        from uni_agent.tokens.config import RendererConfig

        return cls() if args.render is None else cls(RendererConfig().build(args.render))

    def noted(self, trajectory: Trajectory) -> Trajectory:
        """`trajectory` with its difference in `extra`, null when it is exact, absent where nothing can be compared."""
        from uni_agent.trajectory.render_check import checked_render

        if self.renderer is None:
            return trajectory
        kind, difference = checked_render(trajectory, self.renderer)
        self.counts[kind or "not compared"] += 1
        if kind is None:
            return trajectory
        told = None if difference is None else difference.to_json()
        return replace(trajectory, extra={**trajectory.extra, KEY: told})

    def summary(self) -> str:
        """The counts by kind, one line; "" when nothing was compared."""
        found = ", ".join(f"{count} {kind}" for kind, count in self.counts.most_common())
        return found and f"tokens beside the chat template's render of their messages: {found}"
