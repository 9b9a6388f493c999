"""Trajectories as flat rows, for tables and JSON lines."""

from __future__ import annotations

import json
import math
from typing import Any, cast

from uni_agent.optional import load
from uni_agent.trajectory.codec import trajectory_to_json
from uni_agent.trajectory.trajectory import Trajectory

SCHEMA: dict[str, str] = {
    "trajectory_id": "string",
    "session_id": "string",
    "scenario": "string",
    "prompt_ids": "list<int64>",
    "response_ids": "list<int64>",
    "response_mask": "list<int8>",
    "response_logprobs": "list<float64>?",
    "reward": "float64?",
    "num_turns": "int64",
    "tokens_sampled": "int64",
    "tokens_trained": "int64",
    "tokens_masked": "int64",
    "tokens_dropped": "int64",
    "materialization_reason": "string",
    "exit_reason": "string",
    "continues": "string?",
    "abandoned": "bool",
    "detail": "string",
}
"""Column → type; `?` marks columns that may be null. `detail` is JSON text of everything that has no column."""

_OWN_COLUMN = {*SCHEMA, "id", "accounting", "trained"}


def token_row(trajectory: Trajectory) -> dict[str, Any]:
    """One row with the columns of `SCHEMA`, in that order. Text is valid UTF-8: lone surrogates are escaped."""
    t, account = trajectory, trajectory.accounting
    data = trajectory_to_json(t)
    detail = {key: value for key, value in data.items() if key not in _OWN_COLUMN}
    detail["dropped"] = t.dropped
    return {
        "trajectory_id": _utf8(t.id),
        "session_id": _utf8(t.session_id),
        "scenario": _utf8(t.scenario),
        "prompt_ids": t.prompt_ids,
        "response_ids": t.response_ids,
        "response_mask": t.response_mask,
        "response_logprobs": t.response_logprobs,
        "reward": t.reward,
        "num_turns": t.num_turns,
        "tokens_sampled": account.sampled,
        "tokens_trained": account.trained,
        "tokens_masked": account.masked,
        "tokens_dropped": sum(account.dropped.values()),
        "materialization_reason": _utf8(t.materialization_reason),
        "exit_reason": _utf8(t.exit_reason),
        "continues": None if t.continues is None else _utf8(t.continues),
        "abandoned": t.abandoned,
        "detail": strict_json(detail),
    }


def json_line(trajectory: Trajectory) -> str:
    """The row as one line of strict JSON, without a line break at its end; a logprob that is not finite is null."""
    return strict_json(token_row(trajectory))


def arrow_schema() -> Any:
    """`SCHEMA` for pyarrow, e.g. `pyarrow.Table.from_pylist(rows, schema=arrow_schema())`.

    Raises MissingExtraError without pyarrow.
    """
    pa = load("pyarrow", extra="datasets", needed_for="a table")
    kinds: dict[str, Any] = {
        "string": pa.string(),
        "int64": pa.int64(),
        "float64": pa.float64(),
        "bool": pa.bool_(),
        "list<int64>": pa.list_(pa.int64()),
        "list<int8>": pa.list_(pa.int8()),
        "list<float64>": pa.list_(pa.float64()),
    }
    fields = [pa.field(n, kinds[kind.removesuffix("?")], nullable=kind.endswith("?")) for n, kind in SCHEMA.items()]
    return pa.schema(fields)


def strict_json(value: Any) -> str:
    """ASCII JSON on one line; NaN and infinities are null."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in cast("list[Any]", value)]
    return value


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
