"""`schema`, `list` and `doctor`: what there is to write, and what this machine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from uni_agent.cli import main
from uni_agent.cli.list import KINDS


def test_the_schema_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    text = capsys.readouterr().out
    target = tmp_path / "deep" / "s.json"
    assert main(["schema", "--write", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == text
    assert json.loads(text)["properties"]["interaction"]


def test_a_schema_that_cannot_be_written_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["schema", "--write", str(tmp_path / "file" / "s.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("tools", {"execute_bash", "str_replace_editor", "finish", "submit", "package.module:Class"}),
        ("deployments", {"host"}),
        ("rewards", {"command", "dummy"}),
        ("models", {"tokens", "openai_compatible", "scripted"}),
        ("engines", {"embedded", "scripted"}),
        ("parsers", {"hermes", "qwen3_coder"}),
        ("harnesses", {"interaction"}),
        ("sources", {"jsonl", "parquet", "huggingface"}),
    ],
)
def test_the_parts_of_a_kind_are_listed(kind: str, names: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[kind]
    assert names <= {choice["name"] for choice in found}
    assert all(choice["summary"] for choice in found)


def test_everything_is_listed_without_a_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    assert all(f"{kind} (`" in out for kind in KINDS)


def test_the_doctor_gives_a_cure_for_whatever_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json"])
    lines = json.loads(capsys.readouterr().out)
    assert {"python", "platform", "git", "torch"} <= {line["what"] for line in lines}
    assert all(line["state"] in {"ok", "warn", "missing"} for line in lines)
    assert all(bool(line["cure"]) == (line["state"] != "ok") for line in lines)
    assert code == (1 if any(line["state"] == "missing" for line in lines) else 0)


def test_the_doctor_s_report_is_readable(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor"])
    assert "python" in capsys.readouterr().out.splitlines()[0]
