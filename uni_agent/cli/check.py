"""`uni-agent check CONFIG`: what a YAML comes to, and what it needs."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from uni_agent.cli.output import print_json
from uni_agent.errors import ConfigError, UniAgentError

if TYPE_CHECKING:
    from uni_agent.config.load import Loaded
    from uni_agent.pipeline import PipelineConfig
    from uni_agent.runtime.preflight import Finding
    from uni_agent.types import Task

_LOW_DISK = 2**30
"""Bytes below which a run's folder will soon be full."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("config", help="the YAML that describes the pipeline")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="set one key")
    parser.add_argument("--online", action="store_true", help="also load the model, start a sandbox, look at the disk")
    parser.add_argument("--json", action="store_true", help="everything as one JSON object on stdout")


def execute(args: argparse.Namespace) -> int:
    """Print the resolved YAML on stdout, what is missing on stderr. 0: it can run; 2: it cannot."""
    from uni_agent.config.load import load_config
    from uni_agent.config.problems import ConfigReport
    from uni_agent.pipeline import PipelineConfig

    try:
        loaded = load_config(PipelineConfig, args.config, args.override)
    except ConfigReport as report:
        if args.json:
            problems = [{"where": p.where, "path": p.path, "message": p.message} for p in report.problems]
            print_json({"ok": False, "problems": problems})
        raise
    findings = _findings(loaded, online=args.online)
    if args.json:
        print_json(_record(loaded, findings))
    else:
        _print(loaded, findings)
    missing = [finding for finding in findings if finding.problem]
    for finding in missing:
        print(finding.problem, file=sys.stderr)
    return 2 if missing else 0


def _findings(loaded: Loaded[PipelineConfig], *, online: bool) -> list[Finding]:
    from uni_agent.runtime.preflight import preflight

    found = preflight(loaded.config)
    findings = found.findings
    if loaded.config.train is not None:
        findings.append(_trainable(loaded.config, found.tasks))
    told = "\n".join(finding.problem for finding in findings)
    findings += [finding for name, finding in _variables(loaded) if name not in told]
    # A model or sandbox that cannot even be built would only fail a second time.
    if online and not any(finding.problem for finding in findings):
        findings += asyncio.run(_probed(loaded.config))
    return findings


def _trainable(config: PipelineConfig, tasks: Sequence[Task]) -> Finding:
    """Whether verl is there and takes the configuration that the `train:` block comes to."""
    import tempfile
    from pathlib import Path

    from uni_agent.cli.train import check_training
    from uni_agent.runtime.preflight import Finding
    from uni_agent.training.command import verl_command

    try:
        check_training(config, tasks)
        with tempfile.TemporaryDirectory() as folder:
            command = verl_command(config, Path(folder))
            command.write()
            command.resolved()
    except ConfigError as error:
        return Finding("train", str(error))
    return Finding("train")


def _variables(loaded: Loaded[PipelineConfig]) -> Iterator[tuple[str, Finding]]:
    """The environment variables that keys named `…_env` ask for."""
    from uni_agent.config.nodes import DEFAULT, Leaf, dotted, leaves, lift
    from uni_agent.config.secrets import secret
    from uni_agent.runtime.preflight import Finding

    for path, node in leaves(lift(loaded.data, DEFAULT)):
        name = node.value if isinstance(node, Leaf) else None
        if not isinstance(name, str) or not str(path[-1]).endswith("_env"):
            continue
        try:
            secret(name, dotted(path))
        except ConfigError as error:
            yield name, Finding(f"variable {name}", f"{loaded.origin(path)}  {error}")
        else:
            yield name, Finding(f"variable {name}")


async def _probed(config: PipelineConfig) -> list[Finding]:
    return [
        await _probe("model answers", _model, config),
        await _probe("sandbox starts", _sandbox, config),
        await _probe("disk", _disk, config),
    ]


async def _probe(what: str, probe: Callable[[PipelineConfig], Awaitable[None]], config: PipelineConfig) -> Finding:
    from uni_agent.errors import boundary
    from uni_agent.runtime.preflight import Finding

    try:
        with boundary(ConfigError, what):
            await probe(config)
    except UniAgentError as error:
        return Finding(what, str(error))
    return Finding(what)


async def _model(config: PipelineConfig) -> None:
    from uni_agent.runtime.preflight import probe_model

    model = config.model.build(config.run.seed)
    try:
        await probe_model(model)
    finally:
        await model.close()


async def _sandbox(config: PipelineConfig) -> None:
    """Start the sandbox of the first task, and stop it."""
    from uni_agent.deployment.base import SandboxSpec

    task = next(iter(config.data.build().load()), None)
    spec = SandboxSpec(name="check", image=task.image if task else None, workdir=task.workdir if task else None)
    deployment = cast("Any", config.deployment.build(spec))  # swerex types `start` and `stop` in part only
    limit = config.deployment.startup_timeout
    try:
        async with asyncio.timeout(limit):
            await deployment.start()
            alive = await deployment.is_alive()
        if not alive:
            raise ConfigError(f"deployment: the sandbox started and does not answer: {alive.message}")
    except TimeoutError as error:
        raise ConfigError(f"deployment: no sandbox within startup_timeout ({limit:g} s)") from error
    finally:
        await deployment.stop()


async def _disk(config: PipelineConfig) -> None:
    folder = config.run.output_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < _LOW_DISK:
        raise ConfigError(f"run.output_dir: only {free / 2**20:.0f} MiB are free in {folder}; free some, or move it")


def _record(loaded: Loaded[PipelineConfig], findings: list[Finding]) -> dict[str, Any]:
    from uni_agent.config.redact import redact

    return {
        "ok": not any(finding.problem for finding in findings),
        "config": redact(loaded.data),
        "digest": loaded.digest,
        "findings": [{"what": f.what, "ok": not f.problem, "problem": f.problem} for f in findings],
    }


def _print(loaded: Loaded[PipelineConfig], findings: list[Finding]) -> None:
    from uni_agent.config.dump import dump_yaml
    from uni_agent.config.redact import redact

    print(dump_yaml(redact(loaded.data)), end="")
    print(f"# digest   {loaded.digest}")
    for finding in findings:
        print(f"# {'missing' if finding.problem else 'ok':7}  {finding.what}")
