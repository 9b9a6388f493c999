"""One trajectory to train on, in no framework's own words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from uni_agent.engine.base import WeightSpan
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import Span
from uni_agent.tokens.graph import Chain
from uni_agent.trajectory import check
from uni_agent.types import Media, Message, TokenAccount


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A prompt, and the tokens behind it of which some were sampled. Building one that contradicts itself raises.

    `prompt_ids` [P]; `response_ids`, `response_mask` (1: trained here) and `response_logprobs` (0.0 where the mask is
    0; None when an engine gave none) all [T]. `spans` tile [0, T): what each token is, and which of `turns`, by index,
    it came in with; a `sampled` span whose mask is 0 is masked. `weight_spans` index the response.

    `routed_experts` is None or a list of (start, rows): rows [n, layers, top_k] for the tokens from `start` on, which
    counts from the first token of the response (negative in the prompt). `multi_modal_data` are the images of
    `messages`, in their order.

    `turns` are the ids of all turns in the session, `tags` their scenarios, `drift` how the history of each was
    recognised (`new`, `clean`, `realigned`, `forked`); `scenario` is that of the trajectory.
    `messages` with `tools` are what the tokens say, and `message_turns` which turn each message is (None: context).
    `branched_from` is the last turn shared with an earlier trajectory, `continues` the trajectory that a compaction
    ended, `abandoned` whether a retry replaced the last turn.

    `reward` is None until somebody gave one; `reward_info` is what came with it. `materialization_reason` says how the
    session came to its export (`finalized`, `aborted`, `expired`, `limit`, …), `exit_reason` how the episode ended
    ("" when nobody said). `num_turns` counts turns of the model. `dropped` maps a reason to sampled tokens that were
    left out of this trajectory. `extra` is free JSON data.

    Raises ValueError that names the trajectory and what does not fit.
    """

    id: str
    session_id: str
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None
    spans: tuple[Span, ...]
    weight_spans: tuple[WeightSpan, ...] = ()
    routed_experts: list[tuple[int, Any]] | None = None
    multi_modal_data: tuple[Media, ...] = ()
    reward: float | None = None
    reward_info: dict[str, Any] = field(default_factory=dict[str, Any])
    num_turns: int = 0
    scenario: str = ""
    tags: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    materialization_reason: str = ""
    exit_reason: str = ""
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    messages: tuple[Message, ...] = ()
    message_turns: tuple[int | None, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    turns: tuple[int, ...] = ()
    branched_from: int | None = None
    continues: str | None = None
    abandoned: bool = False
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        try:
            check.lengths(self.response_ids, self.response_mask, self.response_logprobs)
            check.spans(self.spans, self.response_mask, len(self.turns))
            check.weights(self.weight_spans, len(self.response_ids))
            check.experts(self.routed_experts, len(self.prompt_ids), len(self.response_ids))
            check.turns(self.turns, self.tags, self.drift, self.messages, self.message_turns)
        except ValueError as error:
            raise ValueError(f"trajectory {self.id!r}: {error}") from error

    @classmethod
    def from_chain(
        cls,
        chain: Chain,
        *,
        session_id: str,
        materialization_reason: str = "",
        reward: float | None = None,
        reward_info: Mapping[str, Any] | None = None,
        exit_reason: str = "",
        extra: Mapping[str, Any] | None = None,
    ) -> Trajectory:
        """The trajectory of a chain of a session graph; its lists are copies."""
        cache = chain.cache
        media = (part for message in chain.messages for part in message.parts if isinstance(part, Media))
        return cls(
            id=chain.id,
            session_id=session_id,
            prompt_ids=list(cache.prompt_ids),
            response_ids=list(cache.response_ids),
            response_mask=list(cache.response_mask),
            response_logprobs=None if cache.response_logprobs is None else list(cache.response_logprobs),
            spans=tuple(cache.spans),
            weight_spans=tuple(cache.weight_spans),
            routed_experts=None if cache.routed_experts is None else list(cache.routed_experts),
            multi_modal_data=tuple(media),
            reward=reward,
            reward_info=dict(reward_info or {}),
            num_turns=len(chain.turns),
            scenario=_scenario(chain),
            tags=chain.tags,
            drift=chain.drift,
            materialization_reason=materialization_reason,
            exit_reason=exit_reason,
            dropped=dict(cache.extra_fields.get("dropped") or {}),
            messages=chain.messages,
            message_turns=chain.message_turns,
            tools=tuple(chain.tools),
            turns=chain.turns,
            branched_from=chain.branched_from,
            continues=chain.continues,
            abandoned=chain.abandoned,
            extra=dict(extra or {}),
        )

    @property
    def ids(self) -> list[int]:
        """All tokens [P + T], in a new list."""
        return self.prompt_ids + self.response_ids

    @property
    def accounting(self) -> TokenAccount:
        """Where the sampled tokens of this trajectory went; always balanced.

        Turns that another trajectory trains are context here and count there.
        """
        trained = sum(self.response_mask)
        sampled = sum(span.end - span.start for span in self.spans if span.kind == "sampled")
        total = sampled + sum(self.dropped.values())
        return TokenAccount(total, trained, sampled - trained, dict(self.dropped))

    @property
    def trained(self) -> tuple[int, ...]:
        """The turns, by their ids in the session, of which this trajectory trains at least one token."""
        ids: list[int] = []
        for span in self.spans:
            if span.kind == "sampled" and 1 in self.response_mask[span.start : span.end]:
                ids.append(self.turns[span.turn])
        return tuple(dict.fromkeys(ids))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, from which `from_json` makes an equal trajectory; see docs/trajectories.md."""
        from uni_agent.trajectory.codec import trajectory_to_json

        return trajectory_to_json(self)

    @classmethod
    def from_json(cls, data: Any) -> Trajectory:
        """The inverse of `to_json`; unknown keys are passed over. Raises ValueError for other data."""
        from uni_agent.trajectory.codec import trajectory_from_json

        return trajectory_from_json(data)


def _scenario(chain: Chain) -> str:
    """The tag of what is trained: `main` when any of it is, else that of its first turn, else that of the last turn."""
    trained = set(chain.trained)
    tags: Sequence[str] = [tag for turn, tag in zip(chain.turns, chain.tags, strict=True) if turn in trained]
    if "main" in tags:
        return "main"
    return next(iter(tags or chain.tags[-1:]), "")
