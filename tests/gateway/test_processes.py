"""The command as a process, several of them behind one address, and what a kill -9 leaves."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.process import GatewayProcess, gateway_process
from tests.tokens.small import TEMPLATES, train, write_folder

TURNS = 4


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("model"), train())
    (folder / "chat_template.jinja").write_text((TEMPLATES / "qwen2_5.jinja").read_text())
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps({"text": f"answer {i}"}) + "\n" for i in range(12)))
    return path


def arguments(script: Path, tokenizer: Path) -> list[str | Path]:
    return ["--engine", "scripted", "--script", script, "--tokenizer", tokenizer]


def talk(gateway: GatewayProcess, key: str, messages: list[Any], turns: int) -> None:
    """`turns` more turns of a conversation, which grows in place."""
    for _ in range(turns):
        messages.append({"role": "user", "content": f"question {len(messages)}"})
        answer = gateway.chat(key, messages)
        assert answer.status_code == 200, answer.text
        messages.append(answer.json()["choices"][0]["message"])


def records(finished: dict[str, Any]) -> Any:
    """What must be the same, whoever served the session."""
    names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "spans", "turns", "tags")
    return [[trajectory[name] for name in names] for trajectory in finished["trajectories"]], finished["accounting"]


def test_several_processes_serve_as_one(tokenizer: Path, script: Path, tmp_path: Path) -> None:
    exports: list[Any] = []
    for processes in (1, 3):
        extra = ["--processes", processes, "--journal", tmp_path / f"journal{processes}"]
        with gateway_process(*arguments(script, tokenizer), *map(str, extra)) as gateway:
            sessions = [gateway.admin("POST", "/sessions", {"session_id": f"session-{i}"}) for i in range(6)]
            for session in sessions:
                assert session["base_url"].startswith(gateway.url)
                messages: list[Any] = []
                talk(gateway, session["api_key"], messages, 2)
                gateway.http.cookies.clear()
                path = f"{session['base_url']}/v1/chat/completions"
                headers = {"x-api-key": session["api_key"], "Connection": "close"}
                body = {"messages": [*messages, {"role": "user", "content": "more"}], "stream": True}
                assert gateway.http.post(path, json=body, headers=headers).text.rstrip().endswith("[DONE]")
            health = gateway.http.get(f"{gateway.url}/healthz").json()
            assert health["sessions"] == 6 and health["status"] == "ok"
            listed: list[str] = []
            behind = ""
            while behind is not None:
                page = gateway.admin("GET", f"/sessions?limit=4&after={behind}")
                listed += [session["session_id"] for session in page["sessions"]]
                behind = page["next"]
            assert listed == [session["session_id"] for session in sessions]
            metrics = gateway.http.get(f"{gateway.url}/metrics").text
            assert "uni_agent_gateway_sampled_tokens_total" in metrics
            total = next(line for line in metrics.splitlines() if line.startswith("uni_agent_gateway_sampled_tokens_t"))
            done = [gateway.admin("POST", f"/sessions/{s['session_id']}/finalize") for s in sessions]
            assert float(total.split()[-1]) == sum(d["accounting"]["sampled"] for d in done)
            exports.append([records(finished) for finished in done])
    assert exports[0] == exports[1]


def test_a_process_that_dies_comes_back_with_its_sessions(tokenizer: Path, script: Path, tmp_path: Path) -> None:
    extra = ["--processes", "2", "--journal", str(tmp_path / "journal")]
    with gateway_process(*arguments(script, tokenizer), *extra) as gateway:
        sessions = [gateway.admin("POST", "/sessions", {"session_id": f"s{i}"}) for i in range(4)]
        talks: list[list[Any]] = [[] for _ in sessions]
        for session, messages in zip(sessions, talks, strict=True):
            talk(gateway, session["api_key"], messages, 2)
        for child in children(gateway.process.pid):
            os.kill(child, signal.SIGKILL)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                health = gateway.http.get(f"{gateway.url}/healthz", timeout=5)
                if health.status_code == 200 and health.json()["sessions"] == 4:
                    break
            except Exception:
                pass
            time.sleep(0.2)
        for session, messages in zip(sessions, talks, strict=True):
            talk(gateway, session["api_key"], messages, 1)
            finished = gateway.admin("POST", f"/sessions/{session['session_id']}/finalize")
            assert len(finished["trajectories"]) == 1
            assert finished["trajectories"][0]["num_turns"] == 3


def children(pid: int) -> list[int]:
    """The gateway's own processes, without multiprocessing's resource tracker."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if int(stat[1]) == pid and "resource_tracker" not in command:
                found.append(int(entry.name))
    return found


def test_another_number_of_processes_does_not_read_the_journals_wrongly(
    tokenizer: Path, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "layout.json").write_text('{"processes": 3}')
    with (
        pytest.raises(AssertionError, match="3 processes"),
        gateway_process(*arguments(script, tokenizer), "--processes", "2", "--journal", tmp_path),
    ):
        pass


@pytest.mark.parametrize("kills", [1, 3])
def test_a_gateway_that_is_killed_goes_on_with_the_same_tokens(
    tokenizer: Path, tmp_path: Path, script: Path, kills: int
) -> None:
    """Every committed turn is there after kill -9, and the export is that of a gateway that was never killed."""
    exports: list[Any] = []
    for dead in (0, kills):
        folder = tmp_path / f"journal-{dead}"
        # One script for all sessions, so that a new process goes on where the conversation stands.
        messages: list[Any] = []
        key, done = "", 0
        for life in range(dead + 1):
            lines = script.read_text().splitlines(keepends=True)[done:]
            rest = tmp_path / f"script-{dead}-{life}.jsonl"
            rest.write_text("".join(lines))
            with gateway_process(*arguments(rest, tokenizer), "--journal", folder) as gateway:
                if not key:
                    key = gateway.admin("POST", "/sessions", {"session_id": "one"})["api_key"]
                turns = 8 if not dead else 2
                talk(gateway, key, messages, turns if life < dead or not dead else 8 - done)
                done += turns
                if life < dead:
                    gateway.kill()
                    continue
                exports.append(records(gateway.admin("POST", "/sessions/one/finalize")))
    assert exports[0] == exports[1]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--engine", "scripted"], "--script"),
        (["--engine", "vllm", "--tokenizer", "."], "--url"),
        ([], "engine"),
        (["--engine", "embedded"], "--model"),
        (["--engine", "scripted", "--script", "nowhere.jsonl", "--tokenizer", "nowhere"], "nowhere"),
        (["no-such-file.yaml"], "no-such-file.yaml"),
    ],
)
def test_what_cannot_be_served_is_said_and_exits_with_2(
    extra: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from uni_agent.cli.main import main

    assert main(["gateway", *extra]) == 2
    assert words in capfd.readouterr().err
