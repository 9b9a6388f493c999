"""Faults in files: one form, the right line, all of them, and what was meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.config.trees import Pipeline, write
from uni_agent.config import ConfigReport
from uni_agent.config.load import load_config
from uni_agent.config.report import problems

Told = Callable[[str | bytes], list[str]]
API = "model: {type: api}\n"


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    monkeypatch.chdir(tmp_path)

    def told(text: str | bytes) -> list[str]:
        (tmp_path / "p.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(ConfigReport) as caught:
            load_config(Pipeline, "p.yaml")
        return str(caught.value).splitlines()

    return told


# ------------------------------------------------------------------------------------------ the tree


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model:\n  type: api\n  timout: 3\n", "p.yaml:3  model.timout: unknown key, did you mean `timeout`?"),
        (API + "max_turns: 3\n", "p.yaml:2  max_turns: unknown key, `max_turns` belongs to `interaction`"),
        (API + "agent:\n  image: x\n", "p.yaml:3  agent.image: unknown key, `image` belongs to `deployment`"),
        (
            API + "interaction: {max-turns: 3}\n",
            "p.yaml:2  interaction.max-turns: unknown key, did you mean `max_turns`?",
        ),
        (
            API + "interaction: {maxTurns: 3}\n",
            "p.yaml:2  interaction.maxTurns: unknown key, did you mean `max_turns`?",
        ),
        (
            API + "deployment:\n  type: host\n  image: x\n",
            "p.yaml:4  deployment.image: unknown key, `image` belongs to type `local`, not to `host`",
        ),
        (API + "agent: {q: 1}\n", "p.yaml:2  agent.q: unknown key, known here: type, max_steps, prompt"),
        ("model: {}\n", "p.yaml:1  model.type: missing, one of: api, tokens, or package.module:Class"),
        ("name: x\n", "p.yaml:1  model: missing"),
        ("model:\n  type: tokens\n", "p.yaml:1  model.engine: missing"),
        ("model:\n  type: tokens\n  engine:\n    type: a\n", "p.yaml:3  model.engine.path: missing"),
        (
            "model:\n  type: tokens\n  engine:\n    type: c\n",
            "p.yaml:4  model.engine.type: unknown type 'c' (one of: a, b)",
        ),
        ("model:\n  type: tokens\n  engine: {}\n", "p.yaml:3  model.engine.type: missing, one of: a, b"),
        (
            API + "tools:\n  - type: bash\n  - type: finsh\n",
            "p.yaml:4  tools[1].type: unknown type 'finsh', did you mean `finish`? (one of: bash, finish)",
        ),
        (
            API + "tools:\n  - bash\n",
            "p.yaml:3  tools[0]: expected a mapping with a `type` (bash, finish), got 'bash'; write {type: bash}",
        ),
        (API + "tools:\n  - {type: bash, timeout: x}\n", "p.yaml:3  tools[0].timeout: expected a number, got 'x'"),
        (API + "deployment:\n", "p.yaml:2  deployment: expected a mapping with a `type` (local, host, "),
        (API + "env: {A: [1]}\n", "p.yaml:2  env.A: expected a string, got a list"),
        (API + "either: {type: finish, q: 1}\n", "p.yaml:2  either.q: unknown key, known here: type"),
        (API + "interaction: {max_turns: true}\n", "p.yaml:2  interaction.max_turns: expected a number, got true"),
    ],
)
def test_one_fault_is_one_line(told: Told, text: str, line: str) -> None:
    found = told(text)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_all_faults_are_told_in_the_order_of_the_file(told: Told) -> None:
    text = "agent:\n  max_stepz: 1\nmodel:\n  type: api\n  timeout: x\n  q: 1\nname: 3 4\ntools:\n  - type: no\n"
    assert [line.partition("  ")[0] for line in told(text)] == [
        "p.yaml:2",
        "p.yaml:5",
        "p.yaml:6",
        "p.yaml:7",
        "p.yaml:9",
    ]
    assert told(text) == told(text)


def test_a_fault_in_an_extended_file_is_told_there(told: Told, tmp_path: Path) -> None:
    write(tmp_path, "sub/base.yaml", "model:\n  type: api\n  timeout: x\n")
    assert told("extends: sub/base.yaml\n") == ["sub/base.yaml:3  model.timeout: expected a number, got 'x'"]


def test_what_may_be_a_secret_is_not_shown(told: Told) -> None:
    assert "sk-1" not in "\n".join(told("model: {type: api, api_key: [sk-1]}\n"))


def test_a_long_value_is_cut(told: Told) -> None:
    assert len(told(API + f"limit: {'x' * 5000}\n")[0]) < 200


def test_problems_are_told_without_a_file_too() -> None:
    with pytest.raises(ValidationError) as caught:
        Pipeline.model_validate({"model": {"type": "api", "timout": 3}, "q": 1})
    assert problems(caught.value, Pipeline)[0] == "model.timout: unknown key, did you mean `timeout`?"


# ------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "p.yaml:1:6  not valid YAML: expected ',' or ']'"),
        ("a: 1\n\tb: 2\n", "p.yaml:2:1  not valid YAML: found character '\\t' "),
        ("a: b: c\n", "p.yaml:1:5  not valid YAML: mapping values are not allowed here"),
        ("a: *b\n", "p.yaml:1:4  not valid YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 1\n", "p.yaml:2:1  not valid YAML: found another document"),
        ("x: 1\na: \x07\n", "p.yaml:2:4  not valid YAML: the character '\\x07' is not allowed"),
        ("- a\n", "p.yaml:1  expected a mapping of keys, found a list"),
        ("just words\n", "p.yaml:1  expected a mapping of keys, found a single value"),
        ("", "p.yaml:1  model: missing"),
        ("# nothing\n", "p.yaml:1  model: missing"),
        (b"a: 1\nb: \xff\n", "p.yaml:2  not UTF-8 text: the byte 0xff"),
        ("a: 1\nb: 2\na: 3\n", "p.yaml:3  'a' is stated twice in one mapping, first at line 1"),
        ("a: !!python/object/apply:os.system [x]\n", "p.yaml:1  the YAML tag !!python/object/apply:os.system is not"),
        ("a: !thing x\n", "p.yaml:1  the YAML tag !thing is not allowed"),
        ("a: !!int x\n", "p.yaml:1  'x' is no !!int"),
        ("? [a, b]\n: 1\n", "p.yaml:1  a key must be a word"),
        ("a: &a [*a]\n", "p.yaml:1  an alias stands inside of what it names"),
        ("a:\n  <<: 3\n", "p.yaml:2  `<<` takes a mapping or a list of mappings"),
        ("a: " + "[" * 5000, "p.yaml:1  not a configuration: nested too deeply"),
        ("a: " + "[" * 150 + "]" * 150, "p.yaml:1  nested more than 100 levels deep"),
        ('extends: "a\\0b"\n', "p.yaml:1  no such configuration: 'a\\x00b' holds a character"),
        ("extends: [1]\n", "p.yaml:1  extends: expected a file name or a list of them"),
    ],
)
def test_a_file_that_is_no_configuration_says_why(told: Told, text: str | bytes, line: str) -> None:
    found = told(text)
    assert len(found) == 1
    assert found[0].startswith(line)


def test_aliases_cannot_blow_up(told: Told) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 20)]
    assert told("\n".join(rows))[0].endswith("more than 100,000 values once the aliases are expanded")


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    target = tmp_path / "p.yaml"
    target.write_bytes("\ufeffmodel: {type: api}\r\nname: x\r\n".encode())
    assert load_config(Pipeline, target).config.name == "x"


def test_a_missing_file_a_folder_and_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "swe.yaml", API)
    for path, told in {
        "sew.yaml": "sew.yaml  no such configuration file, did you mean swe.yaml?",
        ".": ".  the configuration is a folder; name a YAML file in it",
        "swe.yaml/x": "swe.yaml/x  the configuration cannot be read: Not a directory",
        "pkg://no_such_package/x.yaml": "pkg://no_such_package/x.yaml  no such configuration: no installed package",
        "pkg://os/x.yaml": "pkg://os/x.yaml  no such configuration: no installed package 'os'",
        "pkg:///x.yaml": "pkg:///x.yaml  no such configuration: no installed package ''",
        "~no_such_user/x.yaml": "~no_such_user/x.yaml  no such configuration: '~no_such_user/x.yaml': there is no such",
        "a\0b": "a\0b  no such configuration: 'a\\x00b' holds a character that no file name can have",
    }.items():
        with pytest.raises(ConfigReport) as caught:
            load_config(Pipeline, path)
        assert str(caught.value).startswith(told)
