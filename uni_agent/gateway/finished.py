"""What a session leaves: trajectories, their account, the reward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from uni_agent.gateway.scenario import Scenario
from uni_agent.gateway.session import Phase, Session, accounting
from uni_agent.tokens.graph import Chain
from uni_agent.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class FinishedSession:
    """What a finished session left. `accounting` holds sampled == trained + masked + dropped."""

    session_id: str
    phase: Phase
    reason: str
    trajectories: list[Trajectory]
    accounting: dict[str, Any]
    reward_info: dict[str, Any] | None
    metadata: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As the admin API answers."""
        return {
            "session_id": self.session_id,
            "phase": self.phase.value,
            "reason": self.reason,
            "trajectories": [trajectory.to_json() for trajectory in self.trajectories],
            "accounting": self.accounting,
            "reward_info": self.reward_info,
            "metadata": self.metadata,
        }


def finished_session(session: Session, *, active: str = "active") -> FinishedSession:
    """What the session holds now. `active` is the materialization reason of one that has not ended."""
    policy = session.settings.abandoned
    reason = session.limit_hit or session.reason or active
    return FinishedSession(
        session.id,
        session.phase,
        session.reason,
        [_trajectory(session, chain, reason) for chain in session.graph.trajectories(abandoned=policy)],
        accounting(session.graph.account(abandoned=policy)),
        session.reward_info,
        session.settings.metadata,
    )


def _trajectory(session: Session, chain: Chain, reason: str) -> Trajectory:
    """The reward is the main conversation's; what a retry replaced has not come to the outcome that it judges."""
    plain = Trajectory.from_chain(chain, session_id=session.id, materialization_reason=reason)
    if plain.scenario != Scenario.MAIN or chain.abandoned or session.reward_info is None:
        return plain
    return replace(plain, reward=reward_of(session.reward_info), reward_info=dict(session.reward_info))


def reward_of(info: Mapping[str, Any]) -> float | None:
    """The number under `reward` or `score`; None when there is none."""
    for name in ("reward", "score"):
        value = info.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None
