"""Whatever a file or the command line holds, the answer is a configuration or a report, never another exception."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.trees import Pipeline
from uni_agent.config import ConfigReport
from uni_agent.config.dump import dump_yaml
from uni_agent.config.load import from_data, load_config

PARTS = ["model", "type", "engine", "agent", "tools", "deployment", "interaction", "max_turns", "env", "free", "data"]
OTHERS = ["limit", "either", "0", "x", "api_key", "path", "level", "extends", "options"]
KEYS = st.sampled_from([*PARTS, *OTHERS])
WORDS = ["api", "tokens", "a", "bash", "finish", "local", "host", "m:K", "x", "", "all", "\x00", "\ud800"]
VALUES = st.sampled_from([None, True, 3, 1.5, *WORDS])
TREES: st.SearchStrategy[Any] = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=14
)
YAMLISH = st.text(st.sampled_from("abmodeltyp:-[]{}&*!<>|'\"#%@`,? \n\t\r0.\x85\ufeff\x00"), max_size=60)


def outcome(text: str | bytes, overrides: list[str]) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder, "p.yaml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
        try:
            load_config(Pipeline, path, overrides)
        except ConfigReport as report:
            assert report.problems
            assert all(problem.message for problem in report.problems)
            return str(report)
    return ""


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(KEYS, TREES, max_size=5))
def test_any_tree(data: dict[str, Any]) -> None:
    outcome(dump_yaml(data), [])
    try:
        from_data(Pipeline, data)
    except ConfigReport as report:
        assert report.problems


@settings(max_examples=60, deadline=None)
@given(YAMLISH | st.binary(max_size=40))
def test_any_text(text: str | bytes) -> None:
    outcome(text, [])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.builds("{}={}".format, st.lists(KEYS, max_size=4).map(".".join), YAMLISH) | YAMLISH, max_size=3))
def test_any_override(overrides: list[str]) -> None:
    outcome("model: {type: api}\ntools: [{type: bash}]\n", overrides)
