"""`uni-agent check`: the resolved configuration, what it needs, and one clear message for whatever is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import write_jsonl, write_yaml
from uni_agent.cli import main
from uni_agent.config.load import load_config
from uni_agent.pipeline import PipelineConfig

OPENAI = {"type": "openai_compatible", "model": "m", "base_url": "http://127.0.0.1:9/v1"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "tasks.jsonl", [{"id": "t", "prompt": "go"}])
    write_jsonl(tmp_path / "turns.jsonl", [{"tool_calls": [{"name": "finish", "arguments": {"answer": "x"}}]}])
    return tmp_path


def pipeline(folder: Path, **change: Any) -> str:
    base: dict[str, Any] = {
        "data": {"type": "jsonl", "path": "tasks.jsonl"},
        "model": {"type": "scripted", "path": "turns.jsonl"},
        "tools": ["finish"],
        "deployment": {"type": "dummy"},
        "reward": {"type": "dummy"},
    }
    write_yaml(folder / "p.yaml", {**base, **change})
    return "p.yaml"


def test_it_prints_yaml_that_loads_as_the_same_configuration(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pipeline(folder)
    assert main(["check", path, "-o", "interaction.max-turns=3"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    (folder / "resolved.yaml").write_text(told.out)
    again = load_config(PipelineConfig, "resolved.yaml")
    assert again.config.interaction.max_turns == 3
    assert f"# digest   {again.digest}\n" in told.out
    assert "# ok       tasks\n" in told.out


def test_json_is_one_object(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", pipeline(folder), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is True
    assert record["config"]["name"] == "run"
    assert {"what": "model", "ok": True, "problem": ""} in record["findings"]


def test_json_tells_the_problems_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", pipeline(folder, nmae="x"), "--json"]) == 2
    told = capsys.readouterr()
    record = json.loads(told.out)
    assert record["ok"] is False
    assert [problem["path"] for problem in record["problems"]] == ["nmae"]
    assert re.fullmatch(r"p\.yaml:\d+  nmae: unknown key, did you mean `name`\?\n", told.err)


def test_secrets_are_not_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = {**OPENAI, "base_url": "http://user:pass1@127.0.0.1:9/v1", "extra_body": {"api_key": "sk-1"}}
    for flags in ([], ["--json"]):
        main(["check", pipeline(folder, model=model), *flags])
        told = capsys.readouterr()
        assert "sk-1" not in told.out + told.err
        assert "pass1" not in told.out + told.err


def test_online_starts_a_sandbox_and_asks_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", pipeline(folder), "--online"]) == 0
    out = capsys.readouterr().out
    for what in ("model answers", "sandbox starts", "disk"):
        assert f"# ok       {what}\n" in out


def test_online_tells_what_does_not_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", pipeline(folder, model=OPENAI), "--online"]) == 2
    told = capsys.readouterr()
    assert "# missing  model answers\n" in told.out
    assert "# ok       sandbox starts\n" in told.out
    assert "127.0.0.1:9" in told.err
    assert "Traceback" not in told.err


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"interaction": {"max_turn": 3}}, "interaction.max_turn: unknown key, did you mean `max_turns`?"),
    "key of another block": ({"max_turns": 3}, "max_turns: unknown key, `max_turns` belongs to `interaction`"),
    "type": ({"interaction": {"max_turns": "many"}}, "interaction.max_turns: expected an integer, got 'many'"),
    "tag": ({"deployment": {"type": "hots"}}, "deployment.type: unknown type 'hots', did you mean `host`?"),
    "missing tag": ({"reward": {"timeout": 3}}, "reward.type: missing, one of: "),
    "missing block": ({"model": None}, "model: expected a mapping with a `type` ("),
    "tool": ({"tools": ["finsh"]}, "tools[0].type: unknown type 'finsh', did you mean `finish`?"),
    "parser": ({"model": {**OPENAI, "tool_parser": "hermess"}}, "hermes"),
    "task file": ({"data": {"type": "jsonl", "path": "nope.jsonl"}}, "nope.jsonl"),
    "script": ({"model": {"type": "scripted", "path": "nope.jsonl"}}, "nope.jsonl"),
    "variable": ({"model": {**OPENAI, "api_key_env": "UNI_AGENT_NO_SUCH"}}, "UNI_AGENT_NO_SUCH"),
    "plug-in": ({"tools": [{"type": "no.such:Tool"}]}, "no.such"),
    "model folder": ({"model": {"type": "tokens", "engine": {"type": "embedded", "path": "no_such"}}}, "no_such"),
}


@pytest.mark.parametrize("what", list(WRONG))
def test_a_wrong_one_is_one_clear_message_and_exit_2(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, told = WRONG[what]
    assert main(["check", pipeline(folder, **change)]) == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("agnt.max_steps=5", "-o agnt.max_steps=5  agnt.max_steps: unknown key"),
        (
            "agent.sytem_prompt=5",
            "-o agent.sytem_prompt=5  agent.sytem_prompt: unknown key, did you mean `agent.system_",
        ),
        ("model.path", "-o model.path  expected key=value"),
        ("run.concurrency=x", "-o run.concurrency=x  run.concurrency: expected an integer, got 'x'"),
        ("tools=[", "-o tools=[  not valid YAML"),
        ("tools.3=finish", "-o tools.3=finish  tools[3]: the list has 1 item;"),
    ],
)
def test_cfg_02_a_bad_override_is_one_clear_message_and_exit_2(
    text: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", pipeline(folder), "-o", text]) == 2
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert len(err.splitlines()) == 1


def test_cfg_02_a_url_with_an_equals_sign_stays_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = pipeline(folder, model=OPENAI)
    assert main(["check", path, "-o", "model.base_url=http://h/?a=b", "-o", "model.model=007", "--json"]) == 0
    model = json.loads(capsys.readouterr().out)["config"]["model"]
    assert (model["base_url"], model["model"]) == ("http://h/?a=b", "007")


@pytest.mark.parametrize(
    ("text", "line"), [("a: [1", "b.yaml:1:6  not valid YAML"), ("- 1", "b.yaml:1  expected a mapping of keys")]
)
def test_cfg_02_a_broken_file_is_named_with_its_line(
    text: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "b.yaml").write_text(text)
    assert main(["check", "b.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(line)
    assert "Traceback" not in err
