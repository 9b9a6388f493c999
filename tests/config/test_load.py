"""Layers: defaults < extended files < the file < the command line; and what one file may say."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.config.trees import Agent, ApiModel, Host, Local, Pipeline, write
from uni_agent.config import ConfigReport
from uni_agent.config.dump import dump_yaml
from uni_agent.config.load import Loaded, digest, from_data, load_config, override
from uni_agent.config.merge import merge
from uni_agent.errors import ConfigError

Load = Callable[..., Loaded[Pipeline]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def load(text: str, *overrides: str, **kwargs: Any) -> Loaded[Pipeline]:
        write(tmp_path, "p.yaml", text)
        return load_config(Pipeline, "p.yaml", overrides, **kwargs)

    return load


API = "model: {type: api}\n"


# ------------------------------------------------------------------------------------------ layers


def test_defaults_stand_where_nothing_is_stated(load: Load) -> None:
    config = load(API).config
    assert config.deployment == Local(image="swe", startup_timeout=30.0)
    assert config.interaction.max_turns == 50


def test_a_part_stated_in_part_lies_over_its_default(load: Load) -> None:
    config = load(API + "deployment: {startup_timeout: 5}\nagent: {max_steps: 3}\n").config
    assert config.deployment == Local(image="swe", startup_timeout=5.0)
    assert config.agent == Agent(max_steps=3)


def test_another_type_drops_what_the_default_states(load: Load) -> None:
    assert load(API + "deployment: {type: host}\n").config.deployment == Host()


def test_extended_files_lie_below_in_their_order(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "name: a\ntag: a\nlimit: 1\n" + API)
    write(tmp_path, "b.yaml", "name: b\ntag: b\n")
    loaded = load("extends: [a.yaml, b.yaml]\nname: own\n")
    assert (loaded.config.name, loaded.config.tag, loaded.config.limit) == ("own", "b", 1)


def test_extends_is_relative_to_the_file_that_states_it(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "base/deep/root.yaml", API + "name: deep\n")
    write(tmp_path, "base/mid.yaml", "extends: deep/root.yaml\n")
    assert load("extends: base/mid.yaml\n").config.name == "deep"


def test_a_file_reached_on_two_ways_is_one_layer(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "root.yaml", API + "name: root\n")
    write(tmp_path, "a.yaml", "extends: root.yaml\nname: a\n")
    write(tmp_path, "b.yaml", "extends: root.yaml\n")
    assert load("extends: [a.yaml, b.yaml]\n").config.name == "a"


def test_a_circle_of_extends_is_named(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: p.yaml\n")
    with pytest.raises(ConfigReport, match=r"^a\.yaml:1  extends: .*p\.yaml → a\.yaml → p\.yaml$"):
        load("extends: a.yaml\n")


def test_a_missing_extended_file_is_named_at_its_line(load: Load) -> None:
    with pytest.raises(ConfigReport, match=r"^p\.yaml:2  extends: no such configuration file nope\.yaml"):
        load("name: x\nextends: nope.yaml\n")


def test_lists_are_replaced_and_null_overrides(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", API + "tag: x\ntools: [{type: bash}, {type: finish}]\ninteraction: {action_timeout: 3}\n")
    config = load("extends: a.yaml\ntag: null\ntools: [{type: finish}]\ninteraction: {action_timeout: null}\n").config
    assert config.tag is None
    assert [tool.type for tool in config.tools] == ["finish"]
    assert config.interaction.action_timeout is None


def test_the_same_type_in_an_overlay_keeps_the_siblings(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "model: {type: api, url: http://a, timeout: 3}\n")
    assert load("extends: a.yaml\nmodel: {type: api, timeout: 4}\n").config.model == ApiModel(
        type="api", url="http://a", timeout=4
    )


def test_extra_layers_lie_over_everything(load: Load) -> None:
    loaded = load(API, "limit=3", extra_layers=[("--limit 5", {"limit": 5})])
    assert loaded.config.limit == 5
    assert loaded.origin(("limit",)) == "--limit 5"
    with pytest.raises(ConfigReport, match=r"^--limit x  limit: expected an integer or 'all', got 'x'$"):
        load(API, extra_layers=[("--limit x", {"limit": "x"})])


def test_origins_name_the_layer_that_stated_a_value(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "name: a\nmodel:\n  type: api\n  url: u\ntools:\n  - type: bash\n")
    loaded = load("extends: a.yaml\ntag: x\n", "interaction.max_turns=3")
    assert loaded.origin(("model", "url")) == "a.yaml:4"
    assert loaded.origin(("tools", 0)) == "a.yaml:6"
    assert loaded.origin(("tag",)) == "p.yaml:2"
    assert loaded.origin(("interaction", "max_turns")) == "-o interaction.max_turns"
    assert loaded.origin(("interaction", "chat")) == "default"


# ------------------------------------------------------------------------------------------ paths


def test_paths_refer_to_the_file_that_states_them(load: Load, tmp_path: Path) -> None:
    write(tmp_path, "sub/a.yaml", "model: {type: tokens, engine: {type: a, path: weights}}\ndata: tasks.jsonl\n")
    config = load("extends: sub/a.yaml\ndata: own.jsonl\n").config
    assert config.model.model_dump()["engine"]["path"] == tmp_path / "sub" / "weights"
    assert config.data == tmp_path / "own.jsonl"


def test_paths_of_the_command_line_refer_to_the_current_folder(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "sub/p.yaml", API)
    assert load_config(Pipeline, "sub/p.yaml", ["data=tasks.jsonl"]).config.data == tmp_path / "tasks.jsonl"
    assert load(API, "data=/abs/x").config.data == Path("/abs/x")


def test_an_anchor_in_one_file_serves_several_keys(load: Load) -> None:
    text = "free: {all: &all {timeout: 7.0}}\nmodel: {<<: *all, type: api}\nagent: &a {max_steps: 2}\n"
    config = load(text).config
    assert config.model == ApiModel(type="api", timeout=7.0)
    assert config.agent.max_steps == 2


# ------------------------------------------------------------------------------------------ scalars


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("no", "no"),
        ("on", "on"),
        ("007", "007"),
        ("1e3", "1e3"),
        ("1.10", "1.10"),
        ("0x10", "0x10"),
        ("12", "12"),
        ("true", "true"),
        ("2024-01-02", "2024-01-02"),
        ("1:30", "1:30"),
        ("'null'", "null"),
        ("!!str 5", "5"),
        ("| \n  a\n  b\n", "a\nb\n"),
    ],
)
def test_where_the_schema_wants_a_string_the_text_stays(load: Load, written: str, text: str) -> None:
    assert load(API + f"tag: {written}\n").config.tag == text
    assert load(API + f"env: {{A: {written}}}\n" if "\n" not in written else API).config.env in ({"A": text}, {})


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e3", 1000.0),
        ("12", 12),
        ("-3", -3),
        ("007", "007"),
        ("0o17", 15),
        ("0x1f", 31),
        ("1_000", "1_000"),
        ("no", "no"),
        ("True", True),
        ("~", None),
        ("", None),
        (".inf", float("inf")),
        ("1.", 1.0),
        ("1.2.3", "1.2.3"),
        ("2024-01-02", "2024-01-02"),
        ("'1'", "1"),
    ],
)
def test_where_the_schema_is_open_yaml_12_decides(load: Load, written: str, value: object) -> None:
    found = load(API + f"free:\n  x: {written}\n").config.free["x"]
    assert found == value
    assert type(found) is type(value) or isinstance(found, str)


def test_words_for_truth_are_read_where_the_schema_wants_truth(load: Load) -> None:
    assert load(API + "interaction: {chat: yes}\n").config.interaction.chat is True
    assert load(API + "interaction: {chat: off}\n").config.interaction.chat is False


def test_the_data_reads_back_as_the_same_configuration(load: Load, tmp_path: Path) -> None:
    text = (
        API + "tag: '1e3'\nfree: {a: 'no', b: '1e3', c: 1e3, d: \"x\\ny\\n\", e: ' s', f: '', g: '007', h: [1, [2]]}\n"
    )
    loaded = load(text, "env={A: 007}")
    write(tmp_path, "resolved.yaml", dump_yaml(loaded.data))
    again = load_config(Pipeline, "resolved.yaml")
    assert again.config == loaded.config
    assert again.digest == loaded.digest


Plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1), Plain, max_size=4))
def test_any_data_reads_back_from_its_yaml(data: dict[str, Any]) -> None:
    from uni_agent.config.nodes import Leaf, Origin, lower
    from uni_agent.config.parse import parse_yaml

    node = parse_yaml(dump_yaml(data), lambda line: Origin("file", "x", line))
    assert node is not None and not isinstance(node, Leaf)
    assert lower(node) == data


# ------------------------------------------------------------------------------------------ digest, secrets


def test_the_digest_depends_on_what_is_meant_not_on_how_it_is_written(load: Load) -> None:
    one = load(API + "name: a\ninteraction: {max_turns: 50}\n")
    two = load("name: 'a'\n" + API)
    assert one.digest == two.digest
    assert one.digest != load(API + "name: b\n").digest
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})


def test_a_secret_is_in_no_data_digest_or_dump(load: Load) -> None:
    loaded = load("model: {type: api, api_key: sk-very-secret}\n")
    assert loaded.config.model.model_dump()["api_key"].get_secret_value() == "sk-very-secret"
    assert "sk-very-secret" not in json.dumps(loaded.data) + dump_yaml(loaded.data) + repr(loaded.config)


def test_a_configuration_survives_pickling(load: Load) -> None:
    loaded = load(API + "free: {path: x}\n")
    assert pickle.loads(pickle.dumps(loaded)).config == loaded.config


# ------------------------------------------------------------------------------------------ plain data


def test_merge_follows_the_rules_of_layers() -> None:
    base = {"a": {"type": "x", "k": 1}, "b": {"k": 1, "l": [1]}, "c": 1}
    over = {"a": {"type": "y"}, "b": {"l": [2]}, "c": None}
    assert merge(base, over) == {"a": {"type": "y"}, "b": {"k": 1, "l": [2]}, "c": None}
    assert base["a"] == {"type": "x", "k": 1}


def test_an_overlay_over_a_loaded_configuration(load: Load) -> None:
    config = load(API + "tag: x\n").config
    changed = override(config, {"deployment": {"image": "y"}, "agent": {"max_steps": 1}}, "task 'a'")
    assert changed.deployment == Local(image="y", startup_timeout=30.0)
    assert changed.agent == Agent(max_steps=1)
    assert changed.tag == "x"
    with pytest.raises(ConfigReport, match=r"^task 'a'  deployment\.imge: unknown key, did you mean `image`\?$"):
        override(config, {"deployment": {"imge": "y"}}, "task 'a'")


def test_from_data_names_where_the_data_came_from() -> None:
    assert from_data(Pipeline, {"model": {"type": "api"}, "agent": {"max_steps": 2}}).agent == Agent(max_steps=2)
    with pytest.raises(ConfigError, match=r"^x\.jsonl:3  model\.type: unknown type 'apy', did you mean `api`\?"):
        from_data(Pipeline, {"model": {"type": "apy"}}, "x.jsonl:3")
