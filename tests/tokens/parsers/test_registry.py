import re

import pytest

from tests.tokens.parsers.support import TOOLS, hermes_call
from uni_agent.errors import ConfigError
from uni_agent.tokens.parsers import PARSERS, HermesToolParser, XMLToolParser, build_parser


def test_names_build_their_parsers() -> None:
    assert isinstance(build_parser("hermes"), HermesToolParser)
    assert isinstance(build_parser("qwen3_coder"), XMLToolParser)
    assert set(PARSERS) >= {"hermes", "qwen3_coder"}


@pytest.mark.parametrize(("name", "hint"), [("qwen3coder_typo", "qwen3_coder"), ("Hermes", "hermes")])
def test_unknown_name_is_refused_with_the_valid_ones_parse_16(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*Did you mean {hint!r}.*hermes, qwen3_coder"):
        build_parser(name)
    with pytest.raises(ConfigError, match="hermes, qwen3_coder"):
        build_parser("zzz")


def test_ids_are_unique_and_tell_the_position() -> None:
    text = hermes_call("bash", {}) * 3
    ids = [call.id for _ in range(2) for call in build_parser("hermes").parse(text, TOOLS).tool_calls]
    assert len(set(ids)) == 6
    assert all(re.fullmatch(rf"call_{i % 3}_[0-9a-f]{{8}}", call_id) for i, call_id in enumerate(ids))
