"""What `uni-agent export` writes for verl: a run's tasks, and its token chains."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from uni_agent.cli.export_render import MASK, RenderChecks, stored_trajectory
from uni_agent.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from uni_agent.store import RunReader
    from uni_agent.store.records import ChainRow, RolloutRow
    from uni_agent.types import Task


def export_verl(reader: RunReader, args: argparse.Namespace, file: BinaryIO) -> int:
    """Write the rows that `args` asks for as parquet; how many they are."""
    from uni_agent.cli.export import write_parquet
    from uni_agent.data.verl_rows import verl_rows, write_rows

    if args.format == "verl-tokens":
        return write_parquet(token_rows(reader, resolved_only=args.resolved, checks=args.checks), _token_schema, file)
    tasks = run_tasks(reader, resolved_only=args.resolved)
    return write_rows(verl_rows(tasks, split="train", data_source=_name(reader)), file)


def run_tasks(reader: RunReader, *, resolved_only: bool = False) -> Iterator[Task]:
    """The tasks of a run in the order in which they were first tried, each once.

    `resolved_only` leaves those that a rollout solved. Raises ConfigError for a task that the store does not keep as it
    was: it masks secrets.
    """
    from uni_agent.data.source import validate_task
    from uni_agent.store.sameness import content_hash

    rollouts = reader.each_rollout(resolved=True if resolved_only else None)
    for task_id in dict.fromkeys(rollout.task_id for rollout in rollouts):
        stored = reader.task(task_id)
        where = f"{reader.path}: task {task_id!r}"
        spec = cast("dict[str, Any]", stored["spec"] or {})
        raw: dict[str, Any] = {**spec, "id": task_id, "prompt": stored["prompt"], "metadata": stored["metadata"]}
        task = validate_task(raw, where)
        if content_hash(task) != stored["content_hash"]:
            key = _masked(raw)
            what = f"{key}: holds a secret, which a run does not keep" if key else "is not kept whole in the run"
            cure = "convert the tasks themselves with `uni-agent data to-verl` and the run's resolved.yaml"
            raise ConfigError(f"{where}: {what}; {cure}")
        yield task


def token_rows(
    reader: RunReader, *, resolved_only: bool = False, checks: RenderChecks | None = None
) -> Iterator[dict[str, Any]]:
    """One row per token chain with a response, ragged: prompts [P], the other lists [T].

    `uid` is the task's id, `session` the sample, `index` the chain of it. `rm_scores` has the rollout's score at the
    last token. What is not trusted is left out: it would enter a group as a 0. `checks` add to `extra_fields` where a
    chain and the render of its messages part.
    """
    name = _name(reader)
    for rollout in reader.each_rollout(state="done", resolved=True if resolved_only else None):
        if rollout.score is None or not rollout.trusted:
            continue
        chains = [chain for chain in reader.chains(rollout.id) if chain.response_ids]
        told: dict[str, Any] = {}
        if checks is not None and checks.renderer is not None:
            told = checks.told(stored_trajectory(reader, rollout, chains, checks))
        for chain in chains:
            size = len(chain.response_ids)
            yield {
                "uid": rollout.task_id,
                "session": rollout.sample,
                "index": chain.index,
                "data_source": name,
                "prompts": chain.prompt_ids,
                "responses": chain.response_ids,
                "response_mask": chain.response_mask,
                "rollout_log_probs": chain.response_logprobs,
                "rm_scores": [0.0] * (size - 1) + [rollout.score],
                "num_turns": rollout.turns,
                "extra_fields": _extra(rollout, chain, len(chains), told),
            }


def _extra(rollout: RolloutRow, chain: ChainRow, chains: int, told: dict[str, Any]) -> str:
    from uni_agent.store.text import dumps

    side = {
        "trusted": True,
        "exit_reason": rollout.exit_reason,
        "exit_class": rollout.exit_class,
        "task_id": rollout.task_id,
        "attempts": rollout.attempt + 1,
        "turns": [span[1:] for span in chain.spans if span[0] == "sampled"],
        "weight_spans": chain.weight_spans,
        "chain": chain.index,
        "chains": chains,
    }
    return dumps({"reward_extra_info": rollout.reward_breakdown, "uni_agent": side, **told})


def _masked(value: Any, key: str = "") -> str:
    """The dotted key of the first masked secret, "" for none."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        inner = [(f"{key}.{name}" if key else name, item) for name, item in items]
    elif isinstance(value, list):
        inner = [(f"{key}[{at}]", item) for at, item in enumerate(cast("list[Any]", value))]
    elif isinstance(value, str) and MASK in value:
        return key
    return next((found for name, item in inner if (found := _masked(item, name))), "")


def _name(reader: RunReader) -> str:
    try:
        return str(reader.meta().get("name") or "run")
    except StoreError:
        return "run"


def _token_schema() -> Any:
    from uni_agent.optional import load

    pa = load("pyarrow", extra="datasets", needed_for="export --format verl-tokens")
    text, ids, floats = pa.string(), pa.list_(pa.int64()), pa.list_(pa.float32())
    return pa.schema(
        [
            ("uid", text),
            ("session", pa.int32()),
            ("index", pa.int32()),
            ("data_source", text),
            ("prompts", ids),
            ("responses", ids),
            ("response_mask", ids),
            ("rollout_log_probs", floats),
            ("rm_scores", floats),
            ("num_turns", pa.int32()),
            ("extra_fields", text),
        ]
    )
