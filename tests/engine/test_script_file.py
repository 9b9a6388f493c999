"""Scripts as files of JSON lines: what they may say, and how a mistake is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from uni_agent.engine.base import SamplingParams, WeightSpan
from uni_agent.engine.script_file import read_script
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.errors import ConfigError

PARAMS = SamplingParams(stop_token_ids=(99,))


def encode(text: str) -> list[int]:
    if "\ud800" in text:
        raise ValueError("a lone surrogate")
    return [ord(character) for character in text]


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_key_reaches_the_turn(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        '{"text": "hi\u2028"}\n\n{"token_ids": [1, 2], "finish_reason": "length", "delay": 1, "token_delay": 0.5, '
        '"logprobs": [-1, -2.5], "weight_version": 3, "fail_after": 1, "piece": 2}\r\n{"fault": "hang"}\n',
    )
    first, second, third = read_script(path, encode)
    assert first == ScriptedTurn((104, 105, 0x2028))
    assert second == ScriptedTurn(
        (1, 2),
        "length",
        logprobs=[-1.0, -2.5],
        delay=1.0,
        weight_version="3",
        piece=2,
        token_delay=0.5,
        fail_after=1,
    )
    assert third == ScriptedTurn((), fault="hang")


async def test_a_script_is_played(tmp_path: Path) -> None:
    path = script(tmp_path, '{"token_ids": [1, 2], "logprobs": [-1.0, -2.0], "weight_version": "v7"}')
    backend = ScriptedBackend(read_script(path, encode))
    await backend.start()
    output = await backend.generate("a", [7], PARAMS)
    assert (output.token_ids, output.logprobs) == ([1, 2, 99], [-1.0, -2.0, -0.5])
    assert output.weight_spans == (WeightSpan("v7", 0, 3),)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"text": "a"', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('["a"]', "a turn is a JSON object"),
        ("{}", "`text` or `token_ids` is missing"),
        ('{"text": "a", "token_ids": [1]}', "either `text` or `token_ids`"),
        ('{"text": "a", "text": "b"}', "'text' stands twice"),
        ('{"text": 5}', "text: "),
        ('{"text": "\\ud800"}', "text: cannot be encoded"),
        ('{"token_ids": [1, true]}', r"token_ids\.1: "),
        ('{"token_ids": [-1]}', r"token_ids\.0: "),
        ('{"token_ids": [1e400]}', r"token_ids\.0: "),
        ('{"text": "a", "delay": -1}', "delay: "),
        ('{"text": "a", "delay": NaN}', "delay: "),
        ('{"text": "a", "token_delay": "1"}', "token_delay: "),
        ('{"text": "a", "finish_reason": "end"}', "finish_reason: "),
        ('{"text": "a", "fault": "explode"}', "fault: "),
        ('{"text": "a", "fail_after": -1}', "fail_after: "),
        ('{"text": "a", "piece": 0}', "piece: "),
        ('{"text": "a", "logprobs": [-1, -1, -1]}', "logprobs: 3 for 1 tokens"),
        ('{"text": "a", "logprobs": [Infinity]}', r"logprobs\.0: "),
        ('{"text": "a", "colour": 1}', "colour: unknown key; known are text"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_key(tmp_path: Path, line: str, problem: str) -> None:
    path = script(tmp_path, '{"text": "fine"}\n' + line)
    with pytest.raises(ConfigError, match=rf"script\.jsonl:2: .*{problem}"):
        read_script(path, encode)


def test_a_file_that_cannot_be_read_or_is_empty_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.jsonl cannot be read"):
        read_script(tmp_path / "missing.jsonl", encode)
    with pytest.raises(ConfigError, match="holds no turn"):
        read_script(script(tmp_path, "\n \n"), encode)
    (tmp_path / "bytes.jsonl").write_bytes(b'{"text": "\xff"}')
    with pytest.raises(ConfigError, match=r"bytes\.jsonl cannot be read"):
        read_script(tmp_path / "bytes.jsonl", encode)
