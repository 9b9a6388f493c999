"""The writes of a run's store, each one all-or-nothing step over data that no longer changes."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from uni_agent.errors import StoreError
from uni_agent.store import blobs
from uni_agent.store.base import TokenChain
from uni_agent.store.records import RolloutRecord
from uni_agent.store.text import column, dumps
from uni_agent.types import ExitReason, RolloutKey, Task, Turn

Change = Callable[[sqlite3.Connection], None]

_LONGEST_NAME = 200


def task_key(task_id: str) -> str:
    """The exact id as ASCII: ids that differ stay different, even where their readable text is the same."""
    return json.dumps(task_id)


def key_of(stored: str, sample: int) -> RolloutKey:
    """The rollout key that a row's `task_key` and `sample` name."""
    return RolloutKey(json.loads(stored), sample)


def all_of(steps: Sequence[Change]) -> Change:
    """One change that makes all of `steps`, in order."""

    def change(db: sqlite3.Connection) -> None:
        for step in steps:
            step(db)

    return change


def write_meta(values: dict[str, Any]) -> Change:
    """Set keys of `meta`."""
    rows = [(key, dumps(value)) for key, value in values.items()]

    def change(db: sqlite3.Connection) -> None:
        db.executemany("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", rows)

    return change


def write_event(time: float, kind: str, rollout: int | None, data: dict[str, Any]) -> Change:
    """Append an event; `data` is encoded at once, so the caller may go on using it."""
    row = (time, column(kind), rollout, dumps(data))

    def change(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO events (time, kind, rollout, data) VALUES (?, ?, ?, ?)", row)

    return change


def write_task(task: Task, content_hash: str, spec: dict[str, Any]) -> Change:
    """Add or replace a task."""

    def change(db: sqlite3.Connection) -> None:
        db.execute(
            "INSERT OR REPLACE INTO tasks (task_key, id, content_hash, prompt, metadata, spec)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (
                task_key(task.id),
                column(task.id),
                content_hash,
                dumps(task.prompt),
                dumps(task.metadata),
                dumps(spec),
            ),
        )

    return change


def start_rollout(row: int, key: RolloutKey, attempt: int, time: float) -> Change:
    """Add a rollout; earlier attempts at the same sample no longer count."""
    stored = task_key(key.task_id)
    event = write_event(time, "rollout_started", row, {"task": key.task_id, "sample": key.sample, "attempt": attempt})

    def change(db: sqlite3.Connection) -> None:
        db.execute(
            "UPDATE rollouts SET superseded = 1 WHERE task_key = ? AND sample = ? AND superseded = 0",
            (stored, key.sample),
        )
        db.execute(
            "INSERT INTO rollouts (id, task_key, task_id, sample, attempt, state, started)"
            " VALUES (?, ?, ?, ?, ?, 'starting', ?)",
            (row, stored, column(key.task_id), key.sample, attempt, time),
        )
        event(db)

    return change


def set_state(row: int, state: str, time: float) -> Change:
    """Move an unfinished rollout to `state`; one that is done stays done."""
    event = write_event(time, "state", row, {"state": state})

    def change(db: sqlite3.Connection) -> None:
        if db.execute("UPDATE rollouts SET state = ? WHERE id = ? AND state != 'done'", (state, row)).rowcount:
            event(db)

    return change


def write_turn(row: int, turn: Turn, time: float) -> Change:
    """Add a turn and its tool calls; the same turn again replaces itself."""

    def change(db: sqlite3.Connection) -> None:
        db.execute(
            "INSERT OR REPLACE INTO turns (rollout, idx, status, finish_reason, span_start, span_end, model_seconds,"
            " tool_seconds, usage, message, results, observations) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                row,
                turn.index,
                str(turn.status),
                column(turn.finish_reason),
                *turn.token_span,
                _finite(turn.model_seconds),
                _finite(turn.tool_seconds),
                dumps(turn.usage),
                dumps(turn.message),
                dumps(turn.results),
                dumps(turn.observations),
            ),
        )
        db.executemany(
            "INSERT OR REPLACE INTO tool_calls (rollout, turn, idx, name, status, exit_code, seconds)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (row, turn.index, i, column(r.name[:_LONGEST_NAME]), r.status, r.exit_code, _finite(r.seconds))
                for i, r in enumerate(turn.results)
            ],
        )
        write_event(time, "turn", row, {"index": turn.index, "status": turn.status})(db)

    return change


@dataclass(frozen=True, slots=True)
class ChainSnapshot:
    """A token chain as it was when handed over; the chain itself may grow on."""

    request_id: str
    prompt_ids: bytes
    response_ids: bytes
    mask: bytes
    logprobs: bytes | None
    spans: str
    weight_spans: str
    metrics: str
    extra: str

    @classmethod
    def of(cls, chain: TokenChain) -> ChainSnapshot:
        """Copy `chain`. Raises StoreError when its arrays do not belong together or hold what is no token id."""
        per_token = (chain.response_ids, chain.response_mask, chain.response_logprobs)
        lengths = {len(values) for values in per_token if values is not None}
        if len(lengths) > 1:
            raise StoreError(f"chain {chain.request_id!r}: ids, mask and logprobs differ in length: {sorted(lengths)}")
        try:
            logprobs = chain.response_logprobs
            return cls(
                request_id=column(chain.request_id),
                prompt_ids=blobs.ids_bytes(chain.prompt_ids),
                response_ids=blobs.ids_bytes(chain.response_ids),
                mask=blobs.mask_bytes(chain.response_mask),
                logprobs=None if logprobs is None else blobs.floats_bytes(logprobs),
                spans=dumps([[s.kind, s.turn, s.start, s.end] for s in chain.spans]),
                weight_spans=dumps([[w.version, w.start, w.end] for w in chain.weight_spans]),
                metrics=dumps(chain.metrics),
                extra=dumps(chain.extra_fields),
            )
        except (ValueError, TypeError) as error:
            raise StoreError(f"chain {chain.request_id!r} cannot be stored: {error}") from error


def finish_rollout(row: int, record: RolloutRecord, chains: Sequence[ChainSnapshot], time: float) -> Change:
    """End a rollout together with its chains: both stand, or neither."""
    columns = _ending(record, time)
    assignments = ", ".join(f"{name} = ?" for name in columns)
    values = [*columns.values(), row]
    reward = record.reward
    event = write_event(
        time,
        "rollout_finished",
        row,
        {
            "exit_reason": record.exit_reason,
            "score": reward.score if reward else None,
            "resolved": reward.resolved if reward else None,
        },
    )

    def change(db: sqlite3.Connection) -> None:
        db.execute(f"UPDATE rollouts SET {assignments} WHERE id = ?", values)  # noqa: S608 - our own column names
        db.executemany("INSERT OR REPLACE INTO chains VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _rows(row, chains))
        event(db)

    return change


def _rows(row: int, chains: Sequence[ChainSnapshot]) -> list[tuple[Any, ...]]:
    return [
        (
            row,
            i,
            c.request_id,
            blobs.pack(c.prompt_ids),
            blobs.pack(c.response_ids),
            blobs.pack(c.mask),
            None if c.logprobs is None else blobs.pack(c.logprobs),
            c.spans,
            c.weight_spans,
            c.metrics,
            c.extra,
        )
        for i, c in enumerate(chains)
    ]


def is_settled(reason: ExitReason, trusted: bool | None) -> bool:
    """Whether a rollout that ended so is kept at `--resume`."""
    return not reason.retryable and trusted is not False


def trust(record: RolloutRecord) -> bool | None:
    """Whether the score says something about the model; None when nothing was graded."""
    return None if record.reward is None else record.reward.trusted and record.exit_reason.trusted


def _ending(record: RolloutRecord, time: float) -> dict[str, Any]:
    reward, account, timing = record.reward, record.account, record.timing
    return {
        "state": "done",
        "ended": time,
        "exit_reason": str(record.exit_reason),
        "exit_class": str(record.exit_reason.exit_class),
        "score": None if reward is None else _score(reward.score),
        "resolved": None if reward is None or reward.resolved is None else bool(reward.resolved),
        "trusted": trust(record),
        "turns": record.turns,
        "tokens_sampled": account.sampled,
        "tokens_trained": account.trained,
        "tokens_masked": account.masked,
        "tokens_dropped": sum(account.dropped.values()),
        **{f"time_{phase}": _finite(seconds) for phase, seconds in timing.to_dict().items()},
        "dropped_reasons": dumps(account.dropped),
        "reward_breakdown": dumps(reward.breakdown if reward else {}),
        "reward_error": column(reward.error) if reward else "",
        "error": column(record.error),
        "answer": column(record.answer),
        "opening": dumps(record.opening),
        "reward_log": column(reward.log) if reward else "",
    }


def _finite(seconds: float) -> float:
    return float(seconds) if math.isfinite(seconds) else 0.0


def _score(score: float | None) -> float | None:
    """A score that can be averaged and written as JSON, or None."""
    return float(score) if score is not None and math.isfinite(score) else None
