"""The vendors' SDKs with a tool loop: whole answers, streams and their helpers, in blocking and async form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.clients.conftest import Serve
from tests.gateway.clients.harness import Clients, call, run_client

# Some clients import for ten seconds, and for minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

COMMANDS = ["echo one", "echo \"zwei\n\" | tr 'z' 漢", "echo three"]
SCRIPT = [
    call("bash", {"command": COMMANDS[0]}, "I look."),
    call("bash", {"command": COMMANDS[1]}) + "\n" + call("bash", {"command": COMMANDS[2]}),
    "It prints words: 漢字, “quoted”.",
]
ARGUMENTS = [[COMMANDS[0]], COMMANDS[1:], []]
TEXTS = ["I look.", "", "It prints words: 漢字, “quoted”."]


def seen(stdout: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Texts, commands and endings, turn by turn."""
    turns: list[Any] = json.loads(stdout)
    commands = [[json.loads(one)["command"] for one in arguments] for _, arguments, _ in turns]
    return [text.strip() for text, _, _ in turns], commands, [ended for _, _, ended in turns]


def check(
    clients: Clients, serve: Serve, folder: Path, driver: list[str], modes: list[str], endings: list[str]
) -> None:
    """Run one driver in all modes, each in a session of its own, and hold each to the script."""
    gateway = serve(SCRIPT)
    sessions = [gateway.open() for _ in modes]
    path = "/v1" if driver[0] == "openai_sdk" else ""
    options = [{"base_url": session.base_url + path, "api_key": session.api_key} for session in sessions]
    done = run_client(clients.driver(*driver, *modes), folder, {"SESSIONS": json.dumps(options)})
    lines = done.stdout.splitlines()
    assert [seen(line) for line in lines] == [(TEXTS, ARGUMENTS, endings)] * len(modes), dict(
        zip(modes, lines, strict=False)
    )
    for session in sessions:
        gateway.finalize(session).check("main")


def test_the_openai_sdk_over_chat(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    modes = ["whole", "stream", "helper", "async", "async_stream"]
    check(clients, serve, tmp_path, ["openai_sdk", "chat"], modes, ["tool_calls", "tool_calls", "stop"])


def test_the_openai_sdk_over_responses(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    modes = ["whole", "stream", "helper", "async", "async_stream", "chained"]
    check(clients, serve, tmp_path, ["openai_sdk", "responses"], modes, ["completed"] * 3)


def test_the_anthropic_sdk(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    modes = ["whole", "stream", "helper", "async", "async_helper", "runner"]
    check(clients, serve, tmp_path, ["anthropic_sdk"], modes, ["tool_use", "tool_use", "end_turn"])
