"""verl's v1 trainers with what Uni-Agent knows about each trajectory.

`trainer.v1.trainer_mode` names them: `uni_agent_sync`, `uni_agent_colocate_async`, `uni_agent_separate_async`. They do
what verl's do, and two things more: our advantage estimators see the side information of trajectories, and what it says
about a batch is among the step's metrics, so that every logger of verl has it. Rows of other agent loops, which have
none, are trained as verl trains them.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from uni_agent.training.algorithms import ESTIMATORS
from uni_agent.training.algorithms.context import AdvantageContext, Row, side_of, use
from uni_agent.training.algorithms.metrics import Sides, batch_metrics
from uni_agent.training.batches import GroupLog, spread_padding
from uni_agent.training.config import CreditConfig
from uni_agent.training.filtering import trust

PREFIX = "uni_agent_"
MODES = ("sync", "colocate_async", "separate_async")
"""verl's trainers that have a twin here, called `PREFIX` and its name."""


def register() -> None:
    """Give verl our trainers, once it imports its own; more calls change nothing."""
    wrapt: Any = importlib.import_module("wrapt")
    wrapt.when_imported("verl.trainer.ppo.v1")(_register)


def _register(v1: Any) -> None:
    registry = importlib.import_module("verl.trainer.ppo.v1.trainer_base").TRAINER_REGISTRY
    for mode in MODES:
        if PREFIX + mode not in registry:
            base = v1.get_trainer_cls(mode)
            members = {"plain_mode": mode, "__module__": __name__, "__doc__": base.__doc__}
            v1.register_trainer(PREFIX + mode)(type(f"UniAgent{base.__name__}", (UniAgentTrainer, base), members))


if TYPE_CHECKING:

    class _Trainer:
        """What is used of verl's PPOTrainer."""

        config: Any
        global_steps: int

        def __init__(self, config: Any) -> None: ...

        actor_rollout_wg: Any

        def _build_replay_buffer(self) -> Any: ...

        def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any: ...

        def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any: ...

        def _compute_metrics(
            self, batch: Any, metrics: dict[str, Any], timing_raw: Any, global_steps: int, epoch: int
        ) -> None: ...
else:
    _Trainer = object


class UniAgentTrainer(_Trainer):
    """Goes before one of verl's trainers among the bases of a class. `plain_mode` is verl's name of that trainer."""

    plain_mode: ClassVar[str]

    def __init__(self, config: Any) -> None:
        # verl compares the mode with its own names, and finds the trainer's settings under it.
        config.trainer.v1.trainer_mode = self.plain_mode
        self._counts: dict[str, float] = {}
        self._groups = _group_log(config)
        super().__init__(config)

    def _build_replay_buffer(self) -> Any:
        return trust(super()._build_replay_buffer())

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        padding = [bool(tag.get("is_padding")) for tag in batch.tags]
        if any(padding):
            actor = self.config.actor_rollout_ref
            minis = len(padding) // (actor.actor.ppo_mini_batch_size * actor.rollout.n)
            ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
            batch.reorder(spread_padding(padding, ranks, max(1, minis)))
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        if self.config.algorithm.adv_estimator not in ESTIMATORS:
            return super()._compute_advantage(batch, metrics)
        sides = _sides(_fetch(batch, ("extra_fields",)).get("extra_fields"), len(batch.keys))
        context = AdvantageContext(
            rows=_rows(batch, sides),
            credit=_credit(self.config),
            version=self.global_steps - 1,
            max_response=self.config.data.max_response_length,
            counts=self._counts,
        )
        with use(context):
            batch = super()._compute_advantage(batch, metrics)
        if self._groups is not None:
            self._groups.write(self.global_steps, _group_rows(batch, context.rows, sides))
        return batch

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: Any, global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        fields = _fetch(batch, ("extra_fields", "rm_scores"))
        sides = _sides(fields.get("extra_fields"), len(batch.keys))
        scores = [float(row.sum()) for row in fields["rm_scores"].unbind()]
        counts, self._counts = self._counts, {}
        metrics.update(
            batch_metrics(
                Sides(_rows(batch, sides), sides, scores),
                group_size=self.config.actor_rollout_ref.rollout.n,
                version=global_steps - 1,
                counts=counts,
            )
        )


def _group_log(config: Any) -> GroupLog | None:
    """A file for each start of the trainer, in the run's folder; None for a run without one."""
    conf: Any = importlib.import_module("omegaconf").OmegaConf
    run_dir = conf.select(config, "actor_rollout_ref.rollout.custom.uni_agent.run_dir")
    return None if run_dir is None else GroupLog(Path(run_dir) / "verl" / f"groups-{int(time.time())}.jsonl")


def _group_rows(batch: Any, rows: Sequence[Row], sides: Sequence[Mapping[str, Any] | None]) -> list[dict[str, Any]]:
    """What is written down of a batch's rows; padding is none of them."""
    fields = _fetch(batch, ("advantages", "response_mask", "rm_scores"))
    columns = [fields[name].unbind() for name in ("advantages", "response_mask", "rm_scores")]
    found: list[dict[str, Any]] = []
    for key, row, side, advantages, mask, scores in zip(batch.keys, rows, sides, *columns, strict=True):
        if row.padding:
            continue
        trained = mask.nonzero()[:, 0].tolist()
        found.append(
            {
                "key": key,
                "uid": row.group,
                "session": row.sample.rpartition("_")[2],
                "chain": row.index,
                "task_id": side.get("task_id", "") if side else "",
                "exit_reason": side.get("exit_reason", "") if side else "",
                "trusted": bool(trained) if row.trusted is None else row.trusted,
                "score": float(scores.sum()),
                "advantage": float(advantages[trained[0]]) if trained else 0.0,
                "trained_tokens": len(trained),
            }
        )
    return found


def _fetch(batch: Any, fields: Sequence[str]) -> dict[str, Any]:
    """Fields of the batch's rows in TransferQueue; those that are in no row are left out."""
    tq: Any = importlib.import_module("transfer_queue")
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields))
    return {name: data.pop(name) for name in fields if name in data.keys()}  # noqa: SIM118  # a TensorDict is no mapping


def _sides(extra_fields: Any, size: int) -> list[Mapping[str, Any] | None]:
    if extra_fields is None:
        return [None] * size
    return [side_of(extra) for extra in extra_fields.tolist()]


def _rows(batch: Any, sides: Sequence[Mapping[str, Any] | None]) -> tuple[Row, ...]:
    return tuple(Row.of(key, tag, side) for key, tag, side in zip(batch.keys, batch.tags, sides, strict=True))


def _credit(config: Any) -> CreditConfig:
    """`train.credit`, where the run was started with it."""
    conf: Any = importlib.import_module("omegaconf").OmegaConf
    credit = conf.select(config, "actor_rollout_ref.rollout.custom.uni_agent.train.credit")
    return CreditConfig() if credit is None else CreditConfig.model_validate(conf.to_container(credit, resolve=True))
