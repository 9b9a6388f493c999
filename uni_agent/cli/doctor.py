"""`uni-agent doctor`: what this machine offers, and how to get what it lacks."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from uni_agent.cli.output import columns, print_json

_PROBE_SECONDS = 10.0
_LOW_DISK_GIB = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at. `missing`: nothing works without it; `warn`: some uses need it."""

    what: str
    state: Literal["ok", "warn", "missing"]
    detail: str
    cure: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def execute(args: argparse.Namespace) -> int:
    """Print what was found. 0 when nothing is `missing`, 1 otherwise."""
    lines = examine()
    if args.json:
        print_json([asdict(line) for line in lines])
    else:
        print(columns([(line.state, line.what, line.detail) for line in lines]))
        cures = [line for line in lines if line.cure]
        if cures:
            print("\n" + "\n".join(f"{line.what}: {line.cure}" for line in cures))
    return 1 if any(line.state == "missing" for line in lines) else 0


def examine() -> list[Line]:
    """Everything that is looked at, in the order in which it is shown."""
    return [
        Line("python", "ok", f"{platform.python_version()} in {sys.prefix}"),
        Line("platform", "ok", f"{platform.system()} {platform.release()} {platform.machine()}, {_cores()} cores"),
        _bubblewrap(),
        _program("bash", ["bash", "--version"], "missing", "install bash: every sandbox on this host runs it"),
        _program("git", ["git", "--version"], "warn", "install git: tasks with a repository need it"),
        _package("torch", "embedded", "the embedded engine"),
        _package("transformers", "embedded", "the embedded engine"),
        _package("datasets", "datasets", "parquet files and Hugging Face datasets"),
        _disk("disk of this folder", Path.cwd()),
        _disk("disk for sandboxes", Path(tempfile.gettempdir())),
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bubblewrap() -> Line:
    if platform.system() != "Linux":
        return Line("bubblewrap", "warn", "not on this system", "`deployment.type: host` isolates on Linux only")
    from uni_agent.deployment.host.bwrap import find_bwrap, probe

    problem = probe()
    if not problem:
        return Line("bubblewrap", "ok", f"isolates sandboxes on this host ({find_bwrap()})")
    cure = "allow unprivileged user namespaces, or use another deployment than `host`"
    return Line("bubblewrap", "warn", problem.strip().splitlines()[0], cure)


def _program(name: str, argv: list[str], otherwise: Literal["warn", "missing"], cure: str) -> Line:
    answer = _output(argv)
    return Line(name, "ok", answer.first) if answer.code == 0 else Line(name, otherwise, answer.first, cure)


def _package(name: str, extra: str, needed_for: str) -> Line:
    """Reads the version without importing: that would take seconds."""
    try:
        return Line(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Line(name, "warn", "not installed", f"only for {needed_for}: pip install 'uni-agent[{extra}]'")


def _disk(what: str, folder: Path) -> Line:
    free = shutil.disk_usage(folder).free / 2**30
    detail = f"{free:.1f} GiB free in {folder}"
    return Line(what, "ok", detail) if free >= _LOW_DISK_GIB else Line(what, "warn", detail, "free some space")


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    first: str


def _output(argv: list[str]) -> _Answer:
    """Exit code and first line that a program prints; code 127 when it is not there, 124 when it hangs."""
    try:
        done = subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
        )
    except OSError as error:
        return _Answer(127, error.strerror or str(error))
    except subprocess.TimeoutExpired:
        return _Answer(124, f"no answer within {_PROBE_SECONDS:g} s")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    text = lines[0] if done.returncode == 0 else lines[-1] if lines else ""
    return _Answer(done.returncode, text.strip() if lines else "")
