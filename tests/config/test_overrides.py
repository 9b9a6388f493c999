"""`-o key=value`. CFG-02: a typo or a bad value must never pass in silence, and `=` in a value must not split it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.config.trees import ApiModel, Bash, Finish, Host, Local, Pipeline, write
from uni_agent.config import ConfigReport, PluginConfig
from uni_agent.config.load import load_config

Load = Callable[..., Pipeline]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "p.yaml", "model: {type: api, timeout: 5}\ntag: x\nfree: {a: {b: 1}}\n")
    return lambda *overrides: load_config(Pipeline, "p.yaml", overrides).config


def message(load: Load, *overrides: str) -> str:
    with pytest.raises(ConfigReport) as caught:
        load(*overrides)
    return str(caught.value)


# ------------------------------------------------------------------------------------------ CFG-02


def test_cfg_02_a_typo_in_the_first_segment_names_the_nearest_path(load: Load) -> None:
    assert message(load, "agnt.max_steps=5") == (
        "-o agnt.max_steps=5  agnt.max_steps: unknown key, did you mean `agent.max_steps`?"
    )


def test_cfg_02_a_typo_in_the_last_segment_names_the_nearest_path(load: Load) -> None:
    assert message(load, "agent.max_stpes=5") == (
        "-o agent.max_stpes=5  agent.max_stpes: unknown key, did you mean `agent.max_steps`?"
    )


def test_cfg_02_typos_in_both_segments_are_mended_together(load: Load) -> None:
    assert "did you mean `agent.max_steps`?" in message(load, "agnet.max_stesp=5")
    assert "did you mean `model.timeout`?" in message(load, "modle.timeout=5")


def test_cfg_02_only_the_first_equals_sign_splits(load: Load) -> None:
    model = load("model.url=http://h/?a=b&c=d#e").model
    assert isinstance(model, ApiModel)
    assert model.url == "http://h/?a=b&c=d#e"


@pytest.mark.parametrize(
    "text", ["1e3", "007", "1.10", "no", "true", "0x1F", "12", "[x", "{a: 1}", "a: b", "a # b", ""]
)
def test_cfg_02_a_string_stays_as_typed(load: Load, text: str) -> None:
    assert load(f"tag={text}").tag == text
    assert load(f"env.A={text}").env == {"A": text}


def test_cfg_02_null_is_null(load: Load) -> None:
    assert load("tag=null").tag is None
    assert load('tag="null"').tag == "null"
    assert message(load, "name=null") == "-o name=null  name: expected a string, got null"


def test_cfg_02_broken_yaml_in_a_value_is_an_error(load: Load) -> None:
    assert message(load, "free=[1").startswith("-o free=[1  not valid YAML: ")


# ------------------------------------------------------------------------------------------ keys


def test_dashes_stand_for_underscores(load: Load) -> None:
    assert load("interaction.max-turns=3").interaction.max_turns == 3
    assert load("env.A-B=3").env == {"A-B": "3"}, "keys of free mappings are the user's own"


@pytest.mark.parametrize("text", ["tag", "=3", "a..b=3", ".a=3", "a.=3", ""])
def test_what_is_no_key_and_value_is_a_usage_error(load: Load, text: str) -> None:
    assert "expected key=value" in message(load, text)


def test_every_bad_override_is_told(load: Load) -> None:
    text = message(load, "tag", "interaction.max_turns=x", "b").splitlines()
    assert [line.partition("  ")[0] for line in text] == ["-o tag", "-o b"]
    text = message(load, "interaction.max_turns=x", "agnt.max_steps=1").splitlines()
    assert len(text) == 2


def test_a_key_that_lives_elsewhere_is_named_with_its_owner(load: Load) -> None:
    assert (
        message(load, "max_turns=3") == "-o max_turns=3  max_turns: unknown key, `max_turns` belongs to `interaction`"
    )


def test_extends_belongs_to_files(load: Load) -> None:
    assert "can only be stated in a file" in message(load, "extends=x.yaml")


def test_a_secret_on_the_command_line_is_not_echoed(load: Load) -> None:
    assert "sk-1" not in message(load, "agent.api_key=sk-1")


# ------------------------------------------------------------------------------------------ values and layers


@pytest.mark.parametrize(
    ("text", "value"),
    [("free.a.b=2", {"a": {"b": 2}}), ("free.a={c: 1}", {"a": {"b": 1, "c": 1}}), ("free=null", None)],
)
def test_mappings_merge(load: Load, text: str, value: Any) -> None:
    if value is None:
        assert "expected a mapping, got null" in message(load, text)
    else:
        assert load(text).free == value


def test_the_last_of_two_wins(load: Load) -> None:
    assert load("tag=a", "tag=b").tag == "b"


def test_another_type_drops_the_file_s_keys_in_either_order(load: Load) -> None:
    for order in (1, -1):
        overrides = ["model.type=m:K", "model.options={a: 1}"][::order]
        assert load(*overrides).model == PluginConfig(type="m:K", options={"a": 1})
    assert load("deployment.type=host").deployment == Host()
    assert load("deployment.startup_timeout=1").deployment == Local(image="swe", startup_timeout=1)


def test_items_of_a_list_are_reached_by_number(load: Load) -> None:
    assert load("tools.0.timeout=5").tools == [Bash(type="bash", timeout=5), Finish(type="finish")]
    assert load("tools.1={type: bash}").tools == [Bash(type="bash"), Bash(type="bash")]
    assert load("tools=[{type: finish}]", "tools.0.type=bash").tools == [Bash(type="bash")]


def test_a_part_stated_by_its_name_alone_can_be_given_options(tmp_path: Path) -> None:
    path = write(tmp_path, "p.yaml", "model: {type: api}\ntools: [bash, {type: finish}]\n")
    assert load_config(Pipeline, path, ["tools.0.timeout=5"]).config.tools[0] == Bash(type="bash", timeout=5)


def test_a_number_past_the_end_says_how_many_there_are(load: Load) -> None:
    assert message(load, "tools.2.timeout=5") == (
        "-o tools.2.timeout=5  tools[2]: the list has 2 items; to add one, state the whole list"
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("interaction.max_turns=x", "interaction.max_turns: expected an integer, got 'x'"),
        ("interaction.max_turns=3.5", "interaction.max_turns: expected an integer, got 3.5"),
        ("interaction.max_turns=0", "interaction.max_turns: must be at least 1, got 0"),
        ("interaction.max_turns=true", "interaction.max_turns: expected a number, got true"),
        ("interaction.chat=maybe", "interaction.chat: expected true or false, got 'maybe'"),
        ("interaction=3", "interaction: expected a mapping, got 3"),
        (
            "interaction.level=hihg",
            "interaction.level: expected one of 'low', 'high', got 'hihg', did you mean 'high'?",
        ),
        ("tools={}", "tools: expected a list, got a mapping"),
        ("name.x=1", "name: expected a string, got a mapping"),
        ("limit=[]", "limit: expected an integer or 'all', got a list"),
        ("name=a b", "name: a name has no spaces"),
        ("either=[1]", "either: expected a string or a mapping, got a list"),
    ],
)
def test_a_wrong_value_says_what_was_expected(load: Load, text: str, told: str) -> None:
    assert message(load, text).partition("  ")[2] == told
