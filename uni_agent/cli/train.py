"""What `uni-agent run` does with a pipeline that has a `train:` block."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uni_agent.errors import ConfigError, MissingExtraError, boundary

if TYPE_CHECKING:
    from uni_agent.config.load import Loaded
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.store.run import RunState, RunStore
    from uni_agent.training.command import VerlCommand
    from uni_agent.types import Task

RESUMABLE = ("train.steps", "train.validation", "train.checkpoint", "train.loggers", "train.failures")
"""Keys of `train` that may differ between a run and its resume."""


def check_training(config: PipelineConfig, tasks: Sequence[Task]) -> None:
    """See that the training can start. Raises ConfigError, MissingExtraError with the extra to install."""
    from uni_agent.runtime.preflight import check_tasks
    from uni_agent.training.command import check_data, verl_command
    from uni_agent.training.resolve import composed

    for package in ("verl", "transfer_queue", "wrapt"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train", "a `train:` block")
    train = config.train
    if train is None:
        raise ConfigError("train: there is no `train:` block in this pipeline")
    held_out = train.validation.data.build().load() if train.validation is not None else []
    check_tasks(config, held_out)
    check_data(train, tasks, held_out)
    with tempfile.TemporaryDirectory() as folder:
        command = verl_command(config, Path(folder))
        command.write()
        composed(command.folders.verl)


def dry_run(loaded: Loaded[PipelineConfig], tasks: list[Task], run_dir: Path, *, resume: bool) -> int:
    """Write everything that a run would read, print verl's command and its whole configuration, start nothing.

    `run_dir` is a folder of its own, also where a run would be resumed: that one's files belong to its trainer.
    """
    from uni_agent.config.dump import dump_yaml

    command = _written(loaded, tasks, run_dir, resume=resume)
    print(dump_yaml(command.resolved()), end="")
    print("\n# " + command.shell.replace("\n", "\n# "))
    print(f"{command.folders.pipeline}\n{command.folders.verl / 'train.yaml'}\n(nothing was run)", file=sys.stderr)
    return 0


async def train(
    args: argparse.Namespace, loaded: Loaded[PipelineConfig], tasks: list[Task], run_dir: Path, store: RunStore
) -> int:
    """Train; 0 done, 1 the trainer failed, 130 interrupted. `store` is closed."""
    from uni_agent.training.board import make_step_board
    from uni_agent.training.launch import TrainingRun, last_words, latest_policy

    state: RunState = "failed"
    code, interrupted = 1, False
    try:
        resume = args.resume is not None
        command = _written(loaded, tasks, run_dir, resume=resume)
        if args.json:
            print(json.dumps({"event": "launch", "run_dir": str(run_dir), "tasks": len(tasks)}), flush=True)
        config = loaded.config
        assert config.train is not None  # noqa: S101 - the caller looked
        kind = "none" if args.json else config.run.progress
        with make_step_board(
            kind, total=config.train.steps, name=f"{config.name} · {run_dir}", stream=sys.stderr
        ) as board:
            run = TrainingRun(command, store, board, resumed=resume)
            code, interrupted = await _until_interrupted(run)
        state = "interrupted" if interrupted else "done" if code == 0 else "failed"
    finally:
        store.close(state)
    if code and not interrupted:
        print(last_words(command.folders.log), file=sys.stderr)
        print(f"\nthe trainer ended with {code}; all of it is in {command.folders.log}", file=sys.stderr)
    policy = latest_policy(command.folders.checkpoints)
    _report(args, run_dir, policy, code)
    return 130 if interrupted else 1 if code else 0


def _written(loaded: Loaded[PipelineConfig], tasks: list[Task], run_dir: Path, *, resume: bool) -> VerlCommand:
    from uni_agent.config.dump import dump_yaml
    from uni_agent.training.command import Folders, verl_command, write_data

    folders = Folders(run_dir.absolute())
    # verl's file logger begins a file anew: each start has one of its own.
    metrics = folders.verl / f"metrics-{int(time.time())}.jsonl"
    command = verl_command(loaded.config, run_dir, resume=resume, metrics=metrics)
    with boundary(ConfigError, f"{run_dir}: cannot be written"):
        folders.run_dir.mkdir(parents=True, exist_ok=True)
        folders.pipeline.write_text(dump_yaml(loaded.data), encoding="utf-8")
    write_data(loaded.config, tasks, folders)
    command.write()
    return command


async def _until_interrupted(run: Any) -> tuple[int, bool]:
    """Run; SIGINT or SIGTERM stops the trainer and waits for it, further ones only repeat that it is under way."""
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(run.run())

    def stop() -> None:
        print("\nstopping: waiting for the trainer and its sandboxes …", file=sys.stderr, flush=True)
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        return await work, False
    except asyncio.CancelledError:
        return 130, True
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _report(args: argparse.Namespace, run_dir: Path, policy: Path | None, code: int) -> None:
    if args.json:
        done = {
            "event": "done",
            "run_dir": str(run_dir),
            "policy": None if policy is None else str(policy),
            "code": code,
        }
        print(json.dumps(done), flush=True)
        return
    print(f"\nResults: {run_dir}\n  uni-agent show {run_dir}     every step")
    if policy is not None:
        print(f"  model.engine: {{type: embedded, path: {policy}}}     runs the trained policy")
