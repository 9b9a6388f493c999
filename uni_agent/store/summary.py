"""The numbers of a run, added up inside SQLite."""

from __future__ import annotations

import dataclasses
import sqlite3
from dataclasses import dataclass
from typing import Any

from uni_agent.store.text import loads

PHASES = ("start", "model", "tools", "reward", "teardown")
TOKENS = ("sampled", "trained", "masked", "dropped")


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of a run. Rollouts that were retried or redone count nowhere but in `superseded`.

    `state` is `running`, `done`, `failed` or `interrupted`; a run whose writer died reads `interrupted`. `rollouts` is
    how many ended and equals the sum of `exit_reasons`; `running` how many are at work now; `unfinished` how many a
    dead writer left. `tasks` counts the recorded tasks. `reward_mean` and `resolved_rate` are over trusted rewards,
    None without any. `tokens` are sums, `dropped_reasons` their fourth part by reason. `time` is in seconds summed over
    rollouts. `turns_mean` is None without rollouts. `created` and `ended` are Unix seconds.
    """

    run_id: str
    name: str
    state: str
    rollouts: int
    tasks: int
    exit_reasons: dict[str, int]
    reward_mean: float | None
    resolved_rate: float | None
    tokens: dict[str, int]
    time: dict[str, float]
    turns_mean: float | None
    running: int
    unfinished: int
    superseded: int
    trusted: int
    dropped_reasons: dict[str, int]
    created: float
    ended: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that is valid JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class ReasonRow:
    """The rollouts that ended for one reason; `reward_mean` over those with a trusted score, None without any."""

    exit_reason: str
    count: int
    reward_mean: float | None


@dataclass(frozen=True, slots=True)
class ToolRow:
    """How one tool was used; `seconds_mean` is per call."""

    name: str
    calls: int
    failed: int
    seconds_mean: float


def summarise(db: sqlite3.Connection, *, alive: bool) -> Summary:
    """The summary of an open run file; `alive` says whether a process writes it now."""
    meta = {key: loads(value) for key, value in db.execute("SELECT key, value FROM meta WHERE key != 'config'")}
    sums = ", ".join(
        [*(f"coalesce(sum(tokens_{name}), 0)" for name in TOKENS), *(f"total(time_{name})" for name in PHASES)]
    )
    row = db.execute(
        "SELECT count(*), avg(score) FILTER (WHERE trusted), avg(resolved) FILTER (WHERE trusted),"  # noqa: S608
        f" count(*) FILTER (WHERE trusted), avg(turns), {sums}"
        " FROM rollouts INDEXED BY rollouts_summary WHERE superseded = 0 AND state = 'done'"
    ).fetchone()
    numbers = row[5:]
    (unfinished,) = _one(db, "SELECT count(*) FROM rollouts WHERE superseded = 0 AND state != 'done'")
    (superseded,) = _one(db, "SELECT count(*) FROM rollouts WHERE superseded = 1")
    (tasks,) = _one(db, "SELECT count(*) FROM tasks")
    return Summary(
        run_id=meta["run_id"],
        name=meta["name"],
        state="interrupted" if meta["state"] == "running" and not alive else meta["state"],
        rollouts=row[0],
        tasks=tasks,
        exit_reasons={reason.exit_reason: reason.count for reason in reasons(db)},
        reward_mean=row[1],
        resolved_rate=row[2],
        tokens=dict(zip(TOKENS, numbers[:4], strict=True)),
        time=dict(zip(PHASES, numbers[4:], strict=True)),
        turns_mean=row[4],
        running=unfinished if alive else 0,
        unfinished=0 if alive else unfinished,
        superseded=superseded,
        trusted=row[3],
        dropped_reasons=_dropped(db),
        created=meta["created"],
        ended=meta.get("ended"),
    )


def reasons(db: sqlite3.Connection) -> list[ReasonRow]:
    """Exit reasons, most frequent first."""
    query = (
        "SELECT exit_reason, count(*) AS n, avg(score) FILTER (WHERE trusted)"
        " FROM rollouts INDEXED BY rollouts_summary WHERE superseded = 0 AND state = 'done'"
        " GROUP BY exit_reason ORDER BY n DESC, exit_reason"
    )
    return [ReasonRow(*row) for row in db.execute(query)]


def tools(db: sqlite3.Connection) -> list[ToolRow]:
    """Tools by how often they were called in rollouts that count."""
    query = (
        "SELECT c.name, count(*) AS n, sum(c.status != 'ok'), avg(c.seconds) FROM tool_calls c"
        " JOIN rollouts r ON r.id = c.rollout WHERE r.superseded = 0 GROUP BY c.name ORDER BY n DESC, c.name"
    )
    return [ToolRow(*row) for row in db.execute(query)]


def quantiles(db: sqlite3.Connection, phase: str, shares: tuple[float, ...]) -> list[float | None]:
    """Seconds of `phase` below which each of `shares` of the rollouts lie (nearest rank); None without rollouts."""
    if phase not in PHASES:
        raise ValueError(f"{phase!r} is none of {', '.join(PHASES)}")
    where = "FROM rollouts INDEXED BY rollouts_summary WHERE superseded = 0 AND state = 'done'"
    (count,) = _one(db, f"SELECT count(*) {where}")
    found: list[float | None] = []
    for share in shares:
        rank = min(int(share * count), max(count - 1, 0))
        query = f"SELECT time_{phase} {where} ORDER BY time_{phase} LIMIT 1 OFFSET {rank}"
        row = db.execute(query).fetchone()
        found.append(None if row is None else row[0])
    return found


def _dropped(db: sqlite3.Connection) -> dict[str, int]:
    query = (
        "SELECT e.key, sum(e.value) FROM rollouts r, json_each(r.dropped_reasons) e"
        " WHERE r.superseded = 0 AND r.tokens_dropped > 0 GROUP BY e.key ORDER BY e.key"
    )
    return dict(db.execute(query))


def _one(db: sqlite3.Connection, query: str) -> tuple[Any, ...]:
    return db.execute(query).fetchone()
