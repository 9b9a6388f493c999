"""Where every sampled token went."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from uni_agent.tokens.cache import RolloutCache
from uni_agent.types import TokenAccount


def account(caches: Iterable[RolloutCache], *, masked: bool) -> TokenAccount:
    """The account of one rollout's chains; always balanced, all zero for models without tokens.

    Tokens in sampled spans are trained where the mask is 1 and masked where it is 0; with `masked` (an ending that does
    not train) all of them are masked. Tokens that were sampled but stand in no chain are those of `record_drop`. Raises
    ValueError when a mask is set outside the sampled spans or the arrays of a chain differ in length.
    """
    total = TokenAccount()
    for cache in caches:
        _check(cache)
        trained = 0 if masked else sum(cache.response_mask)
        total.trained += trained
        total.masked += cache.sampled - trained
        for reason, count in drops(cache).items():
            total.dropped[reason] = total.dropped.get(reason, 0) + count
    total.sampled = total.trained + total.masked + sum(total.dropped.values())
    return total


def drops(cache: RolloutCache) -> Mapping[str, int]:
    """Reason → sampled tokens that were left out of the chain."""
    return cast(dict[str, int], cache.extra_fields.get("dropped") or {})


def record_drop(cache: RolloutCache, reason: str, count: int) -> None:
    """Note that `count` sampled tokens never entered the chain. Raises ValueError for a negative count."""
    if count < 0:
        raise ValueError(f"cannot drop {count} tokens")
    if count:
        dropped: dict[str, int] = cache.extra_fields.setdefault("dropped", {})
        dropped[reason] = dropped.get(reason, 0) + count


def masked_copy(cache: RolloutCache, reason: str) -> RolloutCache:
    """A copy of `cache` that trains on nothing; the original is left alone.

    Its spans still say which tokens were sampled, and `extra_fields` has `masked_reason`. Ids and logprobs stay.
    """
    extra: dict[str, Any] = {**cache.extra_fields, "masked_reason": reason}
    if "dropped" in extra:
        extra["dropped"] = dict(drops(cache))
    logprobs = None if cache.response_logprobs is None else list(cache.response_logprobs)
    return replace(
        cache,
        prompt_ids=list(cache.prompt_ids),
        response_ids=list(cache.response_ids),
        response_mask=[0] * len(cache.response_mask),
        response_logprobs=logprobs,
        spans=list(cache.spans),
        weight_spans=list(cache.weight_spans),
        metrics=dict(cache.metrics),
        extra_fields=extra,
    )


def _check(cache: RolloutCache) -> None:
    length = len(cache.response_ids)
    if len(cache.response_mask) != length:
        raise ValueError(f"chain {cache.request_id}: {length} ids but {len(cache.response_mask)} mask entries")
    if cache.response_logprobs is not None and len(cache.response_logprobs) != length:
        raise ValueError(f"chain {cache.request_id}: {length} ids but {len(cache.response_logprobs)} logprobs")
    inside = sum(sum(cache.response_mask[span.start : span.end]) for span in cache.sampled_spans())
    if inside != sum(cache.response_mask):
        raise ValueError(f"chain {cache.request_id}: the mask trains tokens that were not sampled")
