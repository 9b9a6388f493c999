from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.store.helpers import chain, record, turn
from uni_agent.cli import export, show
from uni_agent.store import RunStore
from uni_agent.types import ExitReason, RolloutKey

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b[2J\x1b]0;owned\x07 [red]x[/] \u202egnp.exe \ud800 \0"
SUMMARY_KEYS = {
    "run_id",
    "name",
    "state",
    "rollouts",
    "tasks",
    "exit_reasons",
    "reward_mean",
    "resolved_rate",
    "tokens",
    "time",
    "turns_mean",
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "demo"
    with RunStore.create(folder, name="demo", config={}, digest="d") as store:
        endings = [
            record(),
            record(ExitReason.TOKEN_LIMIT, 0.0),
            record(ExitReason.SANDBOX_ERROR, None, error=f"SandboxError: {HOSTILE}"),
        ]
        for sample, ending in enumerate(endings):
            rollout = store.rollout_started(RolloutKey("org/repo#12", sample), 0)
            if sample < 2:
                store.turn(rollout, turn(0, HOSTILE, HOSTILE, HOSTILE))
                cache = chain()
                cache.response_logprobs = [-0.5, float("-inf"), 0.0]
                store.chains(rollout, [cache, chain([5], [6], "r-2")])
            store.finished(rollout, ending)
    return folder


def call(command: Any, *argv: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.execute(parser.parse_args(argv))


def test_show_prints_the_exit_reasons_and_the_numbers(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(show, str(run_dir)) == 0
    out = capsys.readouterr().out
    assert "✓ finished" in out
    assert "◷ token_limit" in out
    assert "⚠ sandbox_error" in out
    assert "33.3%" in out
    assert "3 rollouts of 0 tasks" in out
    assert "reward 0.500, resolved 50.0% over 2 trusted rewards" in out
    assert "sampled 30, trained 18, masked 3, dropped 9" in out


def test_show_json_is_one_object_on_stdout(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(show, str(run_dir), "--json") == 0
    out = capsys.readouterr().out
    data = json.loads(out)
    assert out.count("\n") == 1
    assert data.keys() >= SUMMARY_KEYS
    assert data["exit_reasons"] == {"finished": 1, "sandbox_error": 1, "token_limit": 1}
    assert data["tokens"] == {"sampled": 30, "trained": 18, "masked": 3, "dropped": 9}
    assert set(data["time"]) == {"start", "model", "tools", "reward", "teardown"}


@pytest.mark.parametrize("flags", [["--failed"], ["--turns"], ["--failed", "--turns"]])
def test_show_json_holds_the_lists_asked_for(
    run_dir: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(show, str(run_dir), "--json", *flags) == 0
    data = json.loads(capsys.readouterr().out)
    rows = data["failed" if "--failed" in flags else "rollout_list"]
    assert [row["sample"] for row in rows] == ([1, 2] if "--failed" in flags else [0, 1, 2])
    assert all(("turn_list" in row) == ("--turns" in flags) for row in rows)


def test_show_turns_prints_nothing_a_terminal_would_obey(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(show, str(run_dir), "--turns") == 0
    assert call(show, str(run_dir), "--failed") == 0
    assert call(show, str(run_dir), "--rollout", "org/repo#12#0", "--turns") == 0
    out = capsys.readouterr().out
    assert not set(out) & set("\x1b\x07\u202e\ud800\0")
    assert "\\u001b[2J" in out
    assert "SandboxError" in out
    assert "[system]\nbe good" in out
    assert "--- turn 0: completed, 1 tokens" in out


def test_show_one_rollout_as_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(show, str(run_dir), "--rollout", "org/repo#12#1", "--json", "--turns") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["task_id"], data["sample"], data["exit_reason"]) == ("org/repo#12", 1, "token_limit")
    assert data["turn_list"][0]["status"] == "completed"


def test_the_latest_run_is_the_default(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run_dir.parents[1])
    for argv in ([], ["latest"], ["demo"], ["runs/demo/run.db"]):
        assert call(show, *argv, "--json") == 0
        assert json.loads(capsys.readouterr().out)["name"] == "demo"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["/nowhere"], "no such run"),
        (["RUN", "--rollout", "nothing"], "write TASK#SAMPLE"),
        (["RUN", "--rollout", "org/repo#12#9"], "no rollout org/repo#12#9"),
        (["FILE"], "cannot be read as a run"),
        (["\x1b[2J"], "\\u001b[2J: no such run"),
    ],
)
def test_mistakes_are_explained_and_exit_2(
    run_dir: Path, argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_dir / "x.db").write_text("no database " * 1000)
    names = {"RUN": str(run_dir), "FILE": str(run_dir / "x.db")}
    assert call(show, *(names.get(arg, arg) for arg in argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_a_terminal_of_another_encoding_is_no_error(run_dir: Path) -> None:
    code = (
        "import argparse, sys; from uni_agent.cli import show as s; p = argparse.ArgumentParser(); s.add_arguments(p)"
    )
    code += "; sys.exit(s.execute(p.parse_args(sys.argv[1:])))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for flags in ([], ["--json", "--turns"], ["--turns"]):
        command = [sys.executable, "-c", code, str(run_dir), *flags]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"finished" in done.stdout


def test_a_reader_of_the_output_that_leaves_is_no_error(run_dir: Path) -> None:
    code = (
        "import argparse, sys; from uni_agent.cli import show as s; p = argparse.ArgumentParser(); s.add_arguments(p)\n"
        "sys.stdin.read(); sys.exit(s.execute(p.parse_args(sys.argv[1:])))"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", code, str(run_dir), "--turns"]
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


# ---------------------------------------------------------------------------------------------- export


def test_export_jsonl_has_the_whole_trajectory(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert call(export, str(run_dir), "--output", str(target)) == 0
    raw = target.read_bytes()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in raw.decode("utf-8").splitlines()]
    assert [line["sample"] for line in lines] == [0, 1, 2]
    first = lines[0]
    assert [message["role"] for message in first["messages"]] == ["system", "user", "assistant", "tool"]
    assert json.loads(first["messages"][2]["tool_calls"][0]["function"]["arguments"])
    one, two = first["chains"]
    assert (one["prompt_ids"], one["response_ids"], one["response_mask"]) == ([1, 2, 3], [7, 8, 9], [1, 1, 0])
    assert one["response_logprobs"] == [-0.5, None, 0.0]
    assert two["prompt_ids"] == [5]


def test_export_parquet_has_a_row_per_chain(run_dir: Path, tmp_path: Path) -> None:
    pq: Any = importlib.import_module("pyarrow.parquet")
    target = tmp_path / "out.parquet"
    assert call(export, str(run_dir), "--format", "parquet", "--output", str(target)) == 0
    rows: list[dict[str, Any]] = pq.read_table(target).to_pylist()
    assert [(row["sample"], row["chain"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, None)]
    assert (rows[0]["response_ids"], rows[0]["response_mask"]) == ([7, 8, 9], [1, 1, 0])
    assert rows[0]["response_logprobs"] == [-0.5, float("-inf"), 0.0]
    assert rows[4]["response_ids"] == []
    assert json.loads(rows[0]["messages"])[0] == {"role": "system", "content": "be good"}


def test_export_sft_is_openai_messages_and_can_be_filtered(run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert call(export, str(run_dir), "--format", "sft", "--output", str(target)) == 0
    assert len(target.read_text("utf-8").splitlines()) == 2
    assert call(export, str(run_dir), "--format", "sft", "--resolved", "--output", str(target)) == 0
    (line,) = target.read_text("utf-8").splitlines()
    data = json.loads(line)
    assert data["resolved"] is True
    assert data["messages"][2]["reasoning_content"] == "hm"
    assert data["messages"][3]["tool_call_id"] == data["messages"][2]["tool_calls"][0]["id"]


def test_export_writes_to_stdout(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw))
    assert call(export, str(run_dir)) == 0
    assert len(raw.getvalue().splitlines()) == 3


def test_an_export_that_fails_leaves_no_file(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(export, str(run_dir), "--output", str(tmp_path / "missing" / "out")) == 2
    assert "cannot be written" in capsys.readouterr().err
    target = tmp_path / "kept.jsonl"
    target.write_text("before")
    with pytest.raises(KeyboardInterrupt), export.atomic_file(target) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert target.read_text() == "before"
    assert list(tmp_path.glob(".kept*")) == []


@pytest.mark.parametrize("command", [show, export], ids=["show", "export"])
def test_runs_are_looked_for_where_the_environment_says(
    run_dir: Path, command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNI_AGENT_RUNS_DIR", str(run_dir.parent))
    output = ["--output", str(run_dir.parent / "out.jsonl")] if command is export else []
    assert call(command, "latest", *output) == 0
    monkeypatch.setenv("UNI_AGENT_RUNS_DIR", str(run_dir / "nothing"))
    assert call(command, "latest", *output) == 2
    assert "nothing" in capsys.readouterr().err
