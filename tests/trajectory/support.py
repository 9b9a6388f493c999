"""A small trajectory, and what must hold for all of a session's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.tokens.graph.support import Session
from uni_agent.engine.base import WeightSpan
from uni_agent.tokens.cache import Span
from uni_agent.trajectory import Trajectory
from uni_agent.types import Message


def small(**changes: Any) -> Trajectory:
    """Two turns of 3 and 2 tokens behind a prompt of 4, with 2 tokens of context between and 1 behind."""
    fields: dict[str, Any] = {
        "id": "s/1",
        "session_id": "s",
        "prompt_ids": [1, 2, 3, 4],
        "response_ids": [11, 12, 13, 21, 22, 14, 15, 23],
        "response_mask": [1, 1, 1, 0, 0, 1, 1, 0],
        "response_logprobs": [-0.1, -0.2, -0.3, 0.0, 0.0, -0.4, -0.5, 0.0],
        "spans": (
            Span("sampled", 0, 0, 3),
            Span("observation", 0, 3, 5),
            Span("sampled", 1, 5, 7),
            Span("closing", 1, 7, 8),
        ),
        "weight_spans": (WeightSpan("7", 0, 3), WeightSpan("9", 5, 7)),
        "reward": 0.5,
        "reward_info": {"acc": 1.0, "note": "fine", "nested": {"a": [1]}},
        "num_turns": 2,
        "scenario": "main",
        "tags": ("main", "main"),
        "messages": (
            Message("system", "rules"),
            Message("user", "go"),
            Message("assistant", "one"),
            Message("user", "more"),
            Message("assistant", "two"),
        ),
        "message_turns": (None, None, 0, None, 1),
        "turns": (0, 1),
    }
    return Trajectory(**{**fields, **changes})


def exported(session: Session, **options: Any) -> list[Trajectory]:
    """The trajectories of a session."""
    chains = session.graph.trajectories(**options)
    return [Trajectory.from_chain(chain, session_id=session.graph.session_id) for chain in chains]


def sampled_once(session: Session, trajectories: Sequence[Trajectory]) -> None:
    """Every sampled token is trained exactly once, in its place, and nothing else is."""
    found: dict[int, list[int]] = {}
    for t in trajectories:
        for span in t.spans:
            if span.kind == "sampled":
                turn = t.turns[span.turn]
                assert turn not in found
                found[turn] = t.response_ids[span.start : span.end]
                assert all(t.response_mask[span.start : span.end])
                assert len(t.prompt_ids) + span.start == len(session.prompts[turn])
        assert sum(t.response_mask) == sum(len(found[turn]) for turn in t.trained)
        assert t.accounting.balanced and t.accounting.sampled == t.accounting.trained
    assert found == session.sampled
