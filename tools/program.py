"""Programs that tools install in the sandbox, and the bash line that calls them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from uni_agent.tools.base import ToolScript

_ARGUMENT_BYTES = 64 * 1024
"""Longer calls go through standard input: Linux allows 128 KiB for one argument."""
_LINE_CHARS = 512
"""Width of the base64 in a heredoc: a terminal in line mode keeps at most 4096 characters of a line."""
_DELIMITER = "__END_OF_CALL__"
"""Holds characters that base64 does not have, so no call can end its own heredoc."""


@cache
def load_program(name: str, *parts: str) -> ToolScript:
    """The program `name`: the launcher, then `parts` of the `scripts` folder, as one file of ASCII text."""
    folder = resources.files("uni_agent.tools").joinpath("scripts")
    sources = [folder.joinpath("launcher.sh").read_text("ascii")]
    for part in parts:
        lines = folder.joinpath(part).read_text("ascii").splitlines(keepends=True)
        sources.append("".join(line for line in lines if not line.rstrip().endswith("# bundled")))
    return ToolScript(name, "\n\n".join(sources).encode("ascii"))


def call_program(name: str, call: Mapping[str, Any]) -> str:
    """The bash line that runs program `name` with `call` as its argument.

    The call travels as base64 of JSON, so that no quoting of the shell, the terminal or the backend can change it, and
    through standard input once it is long. `UNI_AGENT_TOOL_DIR`, where it is set, names the folder of the programs:
    then the line also works after the agent has spoilt its PATH.
    """
    payload = base64.b64encode(json.dumps(call, ensure_ascii=True).encode("ascii")).decode("ascii")
    program = f'"${{UNI_AGENT_TOOL_DIR:+$UNI_AGENT_TOOL_DIR/}}{name}"'
    if len(payload) <= _ARGUMENT_BYTES:
        return f"{program} {payload}"
    lines = [payload[at : at + _LINE_CHARS] for at in range(0, len(payload), _LINE_CHARS)]
    return "\n".join([f"{program} - <<'{_DELIMITER}'", *lines, _DELIMITER])
