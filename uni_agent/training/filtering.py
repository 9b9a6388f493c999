"""DAPO's filter of groups without a signal, over samples that can be trusted."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from uni_agent.training.algorithms.context import Row, chains, side_of

_REWARD = "reward"
_NOTHING = float("nan")
"""What a group without a trusted sample is counted under: it has no signal either, and is replaced."""


def trust(buffer: Any) -> Any:
    """`buffer`, a replay buffer of verl's, which then looks at trusted samples alone; itself without a filter.

    verl's own takes a masked sample of a failed sandbox for one of reward 0, and ends the training at a group of which
    every sample was left out.
    """
    if getattr(buffer, "filter_groups_metric", None) is not None:
        buffer._dapo_filtered_keys = partial(_filtered, buffer)
    return buffer


def _filtered(buffer: Any, partition_id: str) -> tuple[set[str], Counter[float]]:
    """As verl's `_dapo_filtered_keys`: the groups to replace, and how many there are of each value."""
    if partition_id == "val":
        return set(), Counter()
    finished: set[str] = buffer.finished_keys[partition_id]
    known: dict[str, float | None] = buffer._dapo_classification_cache[partition_id]
    for uid in known.keys() - finished:
        del known[uid]
    new = finished - known.keys()
    keys = [key for key in buffer.partitions[partition_id] if key.split("_")[0] in new]
    tags = [buffer.partitions[partition_id][key] for key in keys]
    values = group_values(keys, tags, *_fetch(keys, partition_id), metric=buffer.filter_groups_metric)
    for uid in new:
        scores = values.get(uid, [])
        known[uid] = _NOTHING if not scores else scores[0] if len(scores) > 1 and len(set(scores)) == 1 else None
    filtered = {uid: value for uid, value in known.items() if value is not None}
    return set(filtered), Counter(filtered.values())


def _fetch(keys: list[str], partition_id: str) -> tuple[list[Any], list[float]]:
    if not keys:
        return [], []
    tq: Any = importlib.import_module("transfer_queue")
    data = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields", "rm_scores"])
    return data.pop("extra_fields").tolist(), [float(row.sum()) for row in data["rm_scores"].unbind()]


def group_values(
    keys: list[str], tags: list[Mapping[str, Any]], extras: list[Any], scores: list[float], *, metric: str
) -> dict[str, list[float]]:
    """Group → the metric of each trusted sample, one value for all chains of a sample.

    Raises RuntimeError for a trusted sample without the metric.
    """
    rows = [Row.of(key, tag, side_of(extra)) for key, tag, extra in zip(keys, tags, extras, strict=True)]
    found: dict[str, list[float]] = {}
    for numbers in chains(rows).values():
        last = numbers[-1]
        if rows[last].trusted is False:
            continue
        value: Any = scores[last] if metric == _REWARD else _info(extras[last]).get(metric)
        if value is None:
            raise RuntimeError(
                f"algorithm.filter_groups.metric: {metric!r} is not in reward_extra_info of {keys[last]}"
            )
        found.setdefault(rows[last].group, []).append(float(value))
    return found


def _info(extra: Any) -> Mapping[str, Any]:
    info: Any = cast("Mapping[str, Any]", extra).get("reward_extra_info") if isinstance(extra, Mapping) else None
    return cast("Mapping[str, Any]", info) if isinstance(info, Mapping) else {}
