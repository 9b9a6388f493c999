"""A sandbox of the plainest kind: a folder with the installed programs, and bash."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from uni_agent.tools import Toolset
from uni_agent.tools.config import SearchConfig
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.finish import Finish
from uni_agent.tools.search_arxiv import SearchArxiv
from uni_agent.tools.str_replace_editor import StrReplaceEditor
from uni_agent.tools.submit import Submit
from uni_agent.types import ToolCall


@dataclass
class Ran:
    """What one call gave."""

    code: int
    out: str
    err: str


@dataclass
class Box:
    """Runs calls as the agent's shell would: through `bash -c`, with the programs on the PATH."""

    root: Path
    tools: Toolset
    env: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def work(self) -> Path:
        return self.root / "work"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def install(self) -> None:
        with tarfile.open(fileobj=io.BytesIO(self.tools.install_archive())) as archive:
            archive.extractall(self.root / "bin", filter="data")
        self.work.mkdir(exist_ok=True)
        (self.root / "home").mkdir(exist_ok=True)

    def bash(self, command: str, **env: str) -> Ran:
        base = {
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.root / "home"),
            "UNI_AGENT_STATE_DIR": str(self.state),
            "LC_ALL": "C",
        }
        # The shell reads its commands as an agent's shell does, not from one argument that Linux limits to 128 KiB.
        done = subprocess.run(
            ["bash", "-s"],
            input=(command + "\n").encode(),
            cwd=self.work,
            env={**base, **self.env, **env},
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def command(self, tool: str, arguments: dict[str, Any]) -> str:
        bound = self.tools.bind(ToolCall("1", tool, arguments))
        assert not isinstance(bound, str), bound
        return bound.command

    def call(self, tool: str, **arguments: Any) -> Ran:
        return self.bash(self.command(tool, arguments))

    def edit(self, command: str, path: Path | str, **arguments: Any) -> Ran:
        return self.call("str_replace_editor", command=command, path=str(path), **arguments)

    def file(self, data: bytes | str, name: str = "file.txt") -> Path:
        path = self.work / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return path


@pytest.fixture
def make_box(tmp_path: Path) -> Callable[..., Box]:
    """Makes a box around a search server's configuration."""

    def make(**search: Any) -> Box:
        config = SearchConfig.model_validate({"base_url": "http://127.0.0.1:9", **search})
        arxiv = SearchArxiv(config.base_url, options=config.build().options)
        tools = [ExecuteBash(), StrReplaceEditor(), Finish(), Submit(), config.build(), arxiv]
        box = Box(tmp_path, Toolset(tools))
        box.install()
        return box

    return make


@pytest.fixture
def box(make_box: Callable[..., Box]) -> Box:
    """A box whose search server is not there."""
    return make_box()
