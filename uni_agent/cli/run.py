"""`uni-agent run CONFIG`: carry out the pipeline."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import shlex
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uni_agent.errors import ConfigError, boundary

if TYPE_CHECKING:
    from uni_agent.config.load import Loaded
    from uni_agent.model.base import ChatModel
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.runtime.controller import RunOutcome
    from uni_agent.runtime.preflight import Preflight
    from uni_agent.store.run import RunStore
    from uni_agent.types import Task

RESUMABLE = (
    "run.concurrency",
    "run.start_concurrency",
    "run.retries",
    "run.reward_retries",
    "run.progress",
    "run.output_dir",
)
"""Keys that may differ between a run and its resume: they do not change what a rollout is."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("config", type=Path, help="the YAML that describes the pipeline")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="set one key")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="the run's own folder (default: a new one)")
    parser.add_argument(
        "--resume", type=Path, metavar="DIR", help="go on with the run in DIR: redo only what is missing"
    )
    parser.add_argument("--dry-run", action="store_true", help="resolve, check, write resolved.yaml, and stop")
    parser.add_argument("--json", action="store_true", help="launch and done records on stdout, nothing else")


def execute(args: argparse.Namespace) -> int:
    """Run; 0 done, 1 the run failed, 130 interrupted. Raises ConfigError (exit 2) before any sandbox starts."""
    from uni_agent.config.load import load_config
    from uni_agent.pipeline import PipelineConfig

    overrides = list(args.override)
    if args.limit is not None:
        overrides.append(f"data.limit={args.limit}")
    loaded = load_config(PipelineConfig, args.config, overrides)
    _check_run_dir(args)
    if loaded.config.train is not None:
        return _train(args, loaded)
    tasks, model = _prepared(loaded.config)
    if args.dry_run:
        return _dry_run(loaded, _claim_run_dir(args, loaded.config))
    return asyncio.run(_run(args, loaded, tasks, model))


def _train(args: argparse.Namespace, loaded: Loaded[PipelineConfig]) -> int:
    """Train as the `train:` block says. Raises ConfigError before anything starts."""
    from uni_agent.cli.train import check_training, dry_run, train
    from uni_agent.runtime.preflight import preflight

    problems, tasks = _looked(found := preflight(loaded.config)), found.tasks
    if problems:
        raise ConfigError("\n".join(problems))
    check_training(loaded.config, tasks)
    if args.dry_run:
        resume, args.resume = args.resume is not None, None
        return dry_run(loaded, tasks, _claim_run_dir(args, loaded.config), resume=resume)
    run_dir = _claim_run_dir(args, loaded.config)
    return asyncio.run(train(args, loaded, tasks, run_dir, _open_store(args, loaded, tasks, run_dir)))


def _looked(found: Preflight) -> list[str]:
    return [finding.problem for finding in found.findings if finding.problem]


def _prepared(config: PipelineConfig) -> tuple[list[Task], ChatModel]:
    """The tasks and the model. Raises ConfigError with everything that is missing."""
    from uni_agent.runtime.preflight import preflight

    found = preflight(config)
    problems = _looked(found)
    if problems or found.model is None:
        raise ConfigError("\n".join(problems))
    return found.tasks, found.model


def _check_run_dir(args: argparse.Namespace) -> None:
    """Refuse folders that cannot be what the arguments say, before anything is loaded."""
    if args.resume is not None:
        if args.run_dir is not None:
            raise ConfigError("--resume names the folder already: leave out --run-dir")
        if not (args.resume / "run.db").is_file():
            raise ConfigError(f"--resume {args.resume}: no run.db there; name the folder of a run")
    elif args.run_dir is not None and (args.run_dir / "run.db").exists():
        raise ConfigError(f"--run-dir {args.run_dir} holds a run: use --resume {args.run_dir}, or another folder")


def _claim_run_dir(args: argparse.Namespace, config: PipelineConfig) -> Path:
    """The run's folder; a new one is made here and now, so that runs of the same second never share one."""
    named: Path | None = args.resume or args.run_dir
    if named is not None:
        return named
    base = config.run.output_dir / f"{config.name}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S')}"
    for number in range(10_000):
        run_dir = base.with_name(f"{base.name}-{number}") if number else base
        try:
            run_dir.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(f"run.output_dir: cannot make {run_dir}: {error.strerror}") from error
        return run_dir
    raise ConfigError(f"run.output_dir: {config.run.output_dir} has no free name like {base.name}")


def _dry_run(loaded: Loaded[PipelineConfig], run_dir: Path) -> int:
    from uni_agent.config.dump import dump_yaml

    target = run_dir / "resolved.yaml"
    with boundary(ConfigError, f"{target} cannot be written"):
        run_dir.mkdir(parents=True, exist_ok=True)
        target.write_text(dump_yaml(loaded.data), encoding="utf-8")
    print(f"{target}\n(nothing was run)")
    return 0


async def _run(args: argparse.Namespace, loaded: Loaded[PipelineConfig], tasks: list[Task], model: ChatModel) -> int:
    from uni_agent.config.settings import load_settings
    from uni_agent.runtime.preflight import probe_model

    config = loaded.config
    level = load_settings().log_level
    if not args.json:
        print(f"{config.name}: {len(tasks)} tasks; starting the model …", file=sys.stderr, flush=True)
    try:
        try:
            await probe_model(model)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(f"model: {type(error).__name__}: {error}") from error
        run_dir = _claim_run_dir(args, config)
        store = _open_store(args, loaded, tasks, run_dir)
        with _log_file(run_dir, level):
            return await _with_store(args, config, tasks, run_dir, store, model)
    finally:
        await model.close()


async def _with_store(
    args: argparse.Namespace,
    config: PipelineConfig,
    tasks: list[Task],
    run_dir: Path,
    store: RunStore,
    model: ChatModel,
) -> int:
    from uni_agent.runtime.board import make_board
    from uni_agent.runtime.controller import Controller
    from uni_agent.runtime.rollout import RolloutParts

    total = len(tasks) * config.run.samples_per_task
    if args.json:
        print(
            json.dumps({"event": "launch", "run_dir": str(run_dir), "tasks": len(tasks), "rollouts": total}), flush=True
        )
    kind = "none" if args.json else config.run.progress
    parts = RolloutParts(model, asyncio.Semaphore(config.run.start_concurrency))
    kept = len(store.completed())
    state = "failed"
    try:
        with make_board(kind, total=total, done=kept, stream=sys.stderr, name=f"{config.name} · {run_dir}") as board:
            controller = Controller(config, tasks, parts, store, board)
            outcome = await _until_interrupted(controller)
        state = "interrupted" if outcome.interrupted else "failed" if outcome.all_broken else "done"
    finally:
        store.close(state)
    return _report(args, run_dir, outcome)


async def _until_interrupted(controller: Any) -> RunOutcome:
    """Run; SIGINT or SIGTERM cancels and waits for teardown, further ones only repeat that it is under way."""
    loop = asyncio.get_running_loop()
    work = asyncio.ensure_future(controller.run())

    def stop() -> None:
        print("\nstopping: waiting for sandboxes to be torn down …", file=sys.stderr, flush=True)
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        with contextlib.suppress(asyncio.CancelledError):
            await work
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return controller.outcome


def _open_store(args: argparse.Namespace, loaded: Loaded[PipelineConfig], tasks: list[Task], run_dir: Path) -> RunStore:
    from uni_agent.cli.train import RESUMABLE as TRAINING
    from uni_agent.store.run import RunStore

    if args.resume is not None:
        ignore = (*RESUMABLE, *TRAINING) if loaded.config.train is not None else RESUMABLE
        store = RunStore.resume(run_dir, config=loaded.data, digest=loaded.digest, ignore=ignore)
        # A training run also holds the tasks of its validation, which may be exchanged.
        gone = store.task_ids - {task.id for task in tasks} if loaded.config.train is None else set[str]()
        if gone:
            store.close("interrupted")
            raise ConfigError(
                f"--resume {run_dir}: the run holds tasks that the data no longer has, such as {min(gone)!r}; "
                "start a new run for other tasks"
            )
        return store
    return RunStore.create(run_dir, name=loaded.config.name, config=loaded.data, digest=loaded.digest)


@contextlib.contextmanager
def _log_file(run_dir: Path, level: str) -> Any:
    """Send all logging to the run's file: a board on the terminal must stay readable."""
    handler = logging.FileHandler(run_dir / "run.log", encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


def _report(args: argparse.Namespace, run_dir: Path, outcome: RunOutcome) -> int:
    from uni_agent.cli.show import print_summary
    from uni_agent.store.reader import RunReader

    with RunReader(run_dir) as reader:
        summary, reasons = reader.summary(), reader.exit_reasons()
    if args.json:
        print(json.dumps({"event": "done", "run_dir": str(run_dir), **summary.to_dict()}), flush=True)
    else:
        print_summary(summary, reasons)
        print(f"\nResults: {run_dir}\n  uni-agent show {run_dir} --turns     every trajectory")
        if outcome.interrupted:
            print(f"  {_resume_command(args, run_dir)}     go on where it stopped")
    if outcome.interrupted:
        return 130
    if outcome.all_broken:
        print(f"every rollout failed for a reason outside the model; see {run_dir / 'run.log'}", file=sys.stderr)
        return 1
    return 0


def _resume_command(args: argparse.Namespace, run_dir: Path) -> str:
    """The command that goes on with this run: with the same overrides, or the configuration would be another."""
    words = ["uni-agent", "run", str(args.config), "--resume", str(run_dir)]
    words += [word for override in args.override for word in ("-o", override)]
    words += ["--limit", str(args.limit)] if args.limit is not None else []
    return shlex.join(words)
