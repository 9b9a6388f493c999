"""verl's replay buffers with a poll interval that suits small models, and with verl's own settings.

verl looks every 2 s whether a batch is complete, which no key changes, and gives a custom sampler neither
`algorithm.filter_groups` nor `trainer.v1.sampler.sync_refill_failed_groups` (`PPOTrainer._build_replay_buffer`). Both
therefore stand in `sampler_kwargs`; `uni_agent.training.cpu.overrides` writes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, cast

from uni_agent.errors import ConfigError

_verl: Any = importlib.import_module("verl.trainer.ppo.v1.replay_buffer")
_ReplayBuffer = cast("type[Any]", _verl.ReplayBuffer)
_ReplayBufferAsync = cast("type[Any]", _verl.ReplayBufferAsync)

POLL_SECONDS: Final = 0.05
_WHERE = "trainer.v1.sampler.sampler_kwargs"
_SYNC = ("train_batch_size", "gen_batch_size", "max_inflight_gen_batches")
_KNOWN = ("poll_interval", "filter_groups_metric", "sync_refill_failed_groups", *_SYNC)


def options(sampler_kwargs: Mapping[str, Any] | None, *, sync: bool) -> dict[str, Any]:
    """Constructor arguments of verl's buffers from `sampler_kwargs`.

    `poll_interval` (seconds), `filter_groups_metric` (DAPO: groups whose metric is the same in all samples are
    replaced; `reward` or a name in `reward_extra_info`), `sync_refill_failed_groups`, and for filtering in sync mode
    `train_batch_size` (prompts) and `max_inflight_gen_batches`. Raises ConfigError for other keys, for values that are
    none of theirs and for what does not go together.
    """
    given = dict(sampler_kwargs or {})
    unknown = sorted(set(given) - set(_KNOWN))
    if unknown:
        raise ConfigError(f"{_WHERE} has no key {', '.join(unknown)}; it has {', '.join(_KNOWN)}")
    found: dict[str, Any] = {"poll_interval": _positive(given, "poll_interval", POLL_SECONDS)}
    metric: Any = given.get("filter_groups_metric")
    refill: Any = given.get("sync_refill_failed_groups", False)
    if metric is not None and not isinstance(metric, str):
        raise ConfigError(f"{_WHERE}.filter_groups_metric is {metric!r}, not the name of a metric")
    if not isinstance(refill, bool):
        raise ConfigError(f"{_WHERE}.sync_refill_failed_groups is {refill!r}, not true or false")
    found["filter_groups_metric"] = metric
    # verl itself ignores it in the asynchronous modes, where failed groups are always replaced.
    found["sync_refill_failed_groups"] = refill and sync
    if not sync:
        return found
    batch: Any = given.get("train_batch_size")
    if metric is not None and not isinstance(batch, int):
        raise ConfigError(f"{_WHERE}.train_batch_size is missing: filter_groups_metric needs the value of data's")
    found["train_batch_size"] = batch
    # verl fetches single prompts where groups are replaced, else whole batches.
    found["gen_batch_size"] = 1 if metric is not None or refill else given.get("gen_batch_size", batch)
    found["max_inflight_gen_batches"] = given.get("max_inflight_gen_batches", 1)
    return found


def _positive(given: Mapping[str, Any], key: str, default: float) -> float:
    value: Any = given.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{_WHERE}.{key} is {value!r}, not a number above 0")
    return float(value)


class _Configured:
    """Goes before one of verl's buffers among the bases of a class; see `options` for `sampler_kwargs`."""

    sync: ClassVar[bool]

    def __init__(
        self,
        *,
        trainer_mode: str,
        trainer_config: Any,
        max_off_policy_threshold: int | None,
        max_off_policy_strategy: str,
        sampler_kwargs: Mapping[str, Any] | None = None,
        refill_fn: Callable[[int], None] | None = None,
    ) -> None:
        base: Any = super()
        base.__init__(
            trainer_mode=trainer_mode,
            trainer_config=trainer_config,
            max_off_policy_threshold=max_off_policy_threshold,
            max_off_policy_strategy=max_off_policy_strategy,
            sampler_kwargs=sampler_kwargs,
            refill_fn=refill_fn,
            **options(sampler_kwargs, sync=self.sync),
        )


class CpuReplayBuffer(_Configured, _ReplayBuffer):
    """verl's buffer of the sync trainer."""

    sync = True


class CpuReplayBufferAsync(_Configured, _ReplayBufferAsync):
    """verl's buffer of the asynchronous trainers."""

    sync = False
