"""The command line as a user runs it: a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uni_agent.config.dump import dump_yaml

ARGV = (sys.executable, "-m", "uni_agent")


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The last line of stdout as JSON."""
        return json.loads(self.out.strip().splitlines()[-1])


async def uni_agent(*args: str | Path, timeout: float = 120, env: dict[str, str] | None = None) -> Done:
    """Run `uni-agent ARGS` to its end."""
    process = await asyncio.create_subprocess_exec(
        *ARGV,
        *map(str, args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), timeout)
    except TimeoutError:
        process.kill()
        out, err = await process.communicate()
        raise AssertionError(f"no end within {timeout} s: {err.decode()[-2000:]}") from None
    return Done(process.returncode or 0, out.decode(), err.decode())


def write_yaml(path: Path, data: dict[str, Any]) -> Path:
    """`data` as a configuration file."""
    path.write_text(dump_yaml(data), encoding="utf-8")
    return path


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    """`rows` as a task file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
