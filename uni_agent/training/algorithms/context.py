"""What an advantage estimator knows about a batch beyond verl's tensors."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self, cast

from uni_agent.training.config import CreditConfig

SIDE = "uni_agent"
"""The key of `extra_fields` under which a trajectory's side information stands."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch: one chain of one sample of one group.

    `index` orders the chains of a sample. `trusted` is None where nobody said: then a row with a trained token is.
    `length` is that of the response in tokens, None where it is not known. All positions are half-open and count from
    the response's first token; turns are numbered through the whole session, so that chains can be put in order.
    """

    group: str
    sample: str
    index: int = 0
    padding: bool = False
    trusted: bool | None = None
    length: int | None = None
    turns: tuple[tuple[int, int, int], ...] = ()
    segments: tuple[tuple[str, int, int], ...] = ()
    turn_scores: tuple[tuple[int, float], ...] = ()
    weight_spans: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of(cls, key: str, tag: Mapping[str, Any], side: Mapping[str, Any] | None) -> Self:
        """The row of a TransferQueue key `{uid}_{session}_{index}`; `side` is None for a row of another agent loop."""
        group, sample, index = _split(key)
        if tag.get("is_padding"):  # its side information is a copy of another row's
            return cls(group, sample, index, padding=True, trusted=False)
        if side is None:
            return cls(group, sample, index, length=tag.get("response_len"))
        return cls(
            group=group,
            sample=sample,
            index=index,
            trusted=bool(side.get("trusted", True)),
            length=tag.get("response_len"),
            turns=tuple((int(turn), int(start), int(end)) for turn, start, end in side.get("turns") or ()),
            segments=tuple((str(kind), int(start), int(end)) for kind, _, start, end in side.get("segments") or ()),
            turn_scores=tuple((int(turn), float(score)) for turn, score in side.get("turn_scores") or ()),
            weight_spans=tuple(spans_of(side)),
        )


@dataclass(frozen=True, slots=True)
class AdvantageContext:
    """The rows in the batch's order, and the settings.

    `version` is that of the weights that are about to be trained, `max_response` the response budget in tokens; None
    where they are not known. `counts` collects what the estimator did, in numbers that may be added up over batches.
    """

    rows: tuple[Row, ...]
    credit: CreditConfig = CreditConfig()
    version: int | None = None
    max_response: int | None = None
    counts: dict[str, float] = field(default_factory=dict[str, float])

    def count(self, name: str, amount: float = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + amount


_context: ContextVar[AdvantageContext | None] = ContextVar("uni_agent_advantage_context", default=None)


@contextmanager
def use(context: AdvantageContext) -> Generator[None]:
    """Estimators called inside the block know `context`."""
    token = _context.set(context)
    try:
        yield
    finally:
        _context.reset(token)


def current(index: Iterable[Any]) -> AdvantageContext:
    """The context in use; without one, each row is a sample of the group that `index` names for it."""
    context = _context.get()
    if context is not None:
        return context
    return AdvantageContext(tuple(Row(str(group), str(number)) for number, group in enumerate(index)))


def side_of(extra_fields: Any) -> Mapping[str, Any] | None:
    """The side information in a row's `extra_fields`; None without."""
    side = cast("Mapping[str, Any]", extra_fields).get(SIDE) if isinstance(extra_fields, Mapping) else None
    return cast("Mapping[str, Any]", side) if isinstance(side, Mapping) else None


def spans_of(side: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """(version, start, end) of the weights that sampled; spans whose version is no number are left out."""
    spans: list[tuple[int, int, int]] = []
    for version, start, end in side.get("weight_spans") or ():
        try:
            spans.append((int(version), int(start), int(end)))
        except (TypeError, ValueError):
            continue
    return spans


def chains(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Sample → its rows' numbers in the order of its chains. Padding is left out."""
    samples: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        if not row.padding:
            samples.setdefault(row.sample, []).append(number)
    for numbers in samples.values():
        numbers.sort(key=lambda number: rows[number].index)
    return samples


def _split(key: str) -> tuple[str, str, int]:
    """Group, sample and number of the chain; a key of another form is a sample and a group of its own."""
    sample, _, index = key.rpartition("_")
    group, _, session = sample.rpartition("_")
    return (group, sample, int(index)) if group and session and index.isdecimal() else (key, key, 0)
