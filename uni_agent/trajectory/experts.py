"""Which experts each token of a trajectory was routed to, as one array."""

from __future__ import annotations

from typing import Any

from uni_agent.optional import load
from uni_agent.trajectory.trajectory import Trajectory


def missing_experts(trajectory: Trajectory) -> int:
    """How many tokens have no row, the last token left out: no logprob depends on its routing."""
    return sum(not known for known in _known(trajectory)[:-1])


def aligned_experts(trajectory: Trajectory) -> Any:
    """`routed_experts` as an array [P + T, layers, top_k] by absolute position, or None when there are none.

    Row i belongs to token i of prompt and response; tokens without a row have zeros (see `missing_experts`). Raises
    ValueError when the rows differ in shape, MissingExtraError without numpy.
    """
    pieces = [(start, rows) for start, rows in trajectory.routed_experts or () if len(rows)]
    if not pieces:
        return None
    numpy = load("numpy", extra="embedded", needed_for="routed_experts")
    arrays: list[tuple[int, Any]] = [(start, numpy.asarray(rows)) for start, rows in pieces]
    shape, kind = arrays[0][1].shape[1:], arrays[0][1].dtype
    if len(shape) != 2 or any(rows.shape[1:] != shape for _, rows in arrays):
        raise ValueError(f"trajectory {trajectory.id!r}: routed_experts are not rows [layers, top_k] of one shape")
    prompt = len(trajectory.prompt_ids)
    out: Any = numpy.zeros((prompt + len(trajectory.response_ids), *shape), dtype=kind)
    for start, rows in arrays:
        out[prompt + start : prompt + start + len(rows)] = rows
    return out


def _known(trajectory: Trajectory) -> list[bool]:
    prompt = len(trajectory.prompt_ids)
    known = [False] * (prompt + len(trajectory.response_ids))
    for start, rows in trajectory.routed_experts or ():
        at = prompt + start
        known[at : at + len(rows)] = [True] * len(rows)
    return known
