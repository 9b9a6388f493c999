"""The vendors' SDKs with a tool loop: whole answers, streams and their helpers, in blocking and async form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.clients.conftest import Serve
from tests.gateway.clients.harness import Clients, call, run_client

pytestmark = [pytest.mark.slow]

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


def check(clients: Clients, serve: Serve, folder: Path, driver: list[str], path: str, endings: list[str]) -> None:
    gateway = serve(SCRIPT)
    session = gateway.open()
    env = {"BASE_URL": session.base_url + path, "API_KEY": session.api_key}
    done = run_client(clients.driver(*driver), folder, env)
    assert seen(done.stdout) == (TEXTS, ARGUMENTS, endings)
    gateway.finalize(session).check("main")


@pytest.mark.parametrize("mode", ["whole", "stream", "helper", "async", "async_stream"])
def test_the_openai_sdk_over_chat(clients: Clients, serve: Serve, tmp_path: Path, mode: str) -> None:
    check(clients, serve, tmp_path, ["openai_sdk", "chat", mode], "/v1", ["tool_calls", "tool_calls", "stop"])


@pytest.mark.parametrize("mode", ["whole", "stream", "helper", "async", "async_stream", "chained"])
def test_the_openai_sdk_over_responses(clients: Clients, serve: Serve, tmp_path: Path, mode: str) -> None:
    check(clients, serve, tmp_path, ["openai_sdk", "responses", mode], "/v1", ["completed"] * 3)


@pytest.mark.parametrize("mode", ["whole", "stream", "helper", "async", "async_helper", "runner"])
def test_the_anthropic_sdk(clients: Clients, serve: Serve, tmp_path: Path, mode: str) -> None:
    check(clients, serve, tmp_path, ["anthropic_sdk", mode], "", ["tool_use", "tool_use", "end_turn"])
