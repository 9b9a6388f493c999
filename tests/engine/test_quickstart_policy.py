"""The packaged policy is an ordinary Hugging Face folder with an append-only chat template."""

from __future__ import annotations

import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import POLICY

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "quickstart_policy"
SUITE = ROOT / "uni_agent" / "data" / "suites" / "shell_basics.jsonl"

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "description": "…", "parameters": {"type": "object"}}}
    for name in ("execute_bash", "finish")
]


def call(command: str) -> dict[str, Any]:
    return {"type": "function", "id": "1", "function": {"name": "execute_bash", "arguments": {"command": command}}}


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a shell agent."},
    {"role": "user", "content": "Append <b> to a.txt."},
    {"role": "assistant", "content": "", "tool_calls": [call('echo "<b>" >> a.txt'), call("cat ü.txt")]},
    {"role": "tool", "content": "one"},
    {"role": "tool", "content": "two"},
    {"role": "assistant", "content": "A thought.", "tool_calls": [call("ls")]},
    {"role": "tool", "content": "a.txt"},
    {"role": "assistant", "content": "I am done."},
    {"role": "user", "content": "Call a tool."},
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.AutoTokenizer.from_pretrained(POLICY)


def test_it_is_small_and_complete() -> None:
    names = {path.name for path in POLICY.iterdir()}
    assert names >= {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "generation_config.json",
    }
    assert sum(path.stat().st_size for path in POLICY.iterdir()) <= 2.2e6
    config = json.loads((POLICY / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["tie_word_embeddings"] is False  # engines that reload tied weights wrongly exist


def test_the_whole_conversation_renders_as_chatml(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(CONVERSATION, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nYou are a shell agent.\nTools: execute_bash finish<|im_end|>\n"
        "<|im_start|>user\nAppend <b> to a.txt.<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "execute_bash", "arguments": '
        '{"command": "echo \\"<b>\\" >> a.txt"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "cat ü.txt"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\none\n</tool_response>\n"
        "<tool_response>\ntwo\n</tool_response><|im_end|>\n"
        '<|im_start|>assistant\nA thought.\n<tool_call>\n{"name": "execute_bash", "arguments": '
        '{"command": "ls"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nI am done.<|im_end|>\n"
        "<|im_start|>user\nCall a tool.<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_template_only_appends(tokenizer: Any) -> None:
    def render(count: int, prompt: bool) -> str:
        return tokenizer.apply_chat_template(
            CONVERSATION[:count], tools=TOOLS, tokenize=False, add_generation_prompt=prompt
        )

    whole = render(len(CONVERSATION), False)
    for count in range(1, len(CONVERSATION)):
        if CONVERSATION[count]["role"] == "tool":
            continue  # a result belongs to the turn of the one before it
        assert whole.startswith(render(count, False))
    for count, message in enumerate(CONVERSATION):
        if message["role"] == "assistant":
            assert whole.startswith(render(count, True))


def test_arguments_that_are_text_are_rendered_as_they_are(tokenizer: Any) -> None:
    as_text = json.loads(json.dumps(CONVERSATION))
    for made in (c for message in as_text for c in message.get("tool_calls", ())):
        made["function"]["arguments"] = json.dumps(made["function"]["arguments"], ensure_ascii=False)
    one, other = (
        tokenizer.apply_chat_template(c, tools=TOOLS, tokenize=False, add_generation_prompt=True)
        for c in (CONVERSATION, as_text)
    )
    assert one == other


def test_without_a_system_message_only_the_tools_are_named(tokenizer: Any) -> None:
    user = [{"role": "user", "content": "Hi"}]
    with_tools = tokenizer.apply_chat_template(user, tools=TOOLS, tokenize=False)
    assert with_tools.startswith("<|im_start|>system\nTools: execute_bash finish<|im_end|>\n<|im_start|>user\nHi")
    assert tokenizer.apply_chat_template(user, tokenize=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_control_tokens_are_single_ids_and_text_survives_a_round_trip(tokenizer: Any) -> None:
    for text in ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"):
        assert len(tokenizer.encode(text)) == 1
    text = 'é 漢字 \t"quoted" {json: [1, 2]}\n  two spaces'
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a program of the example folder by name."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLE), *sys.path])
    before = set(sys.modules)
    yield importlib.import_module
    for name in {path.stem for path in EXAMPLE.glob("*.py")} - before:
        sys.modules.pop(name, None)


def test_training_data_is_what_the_template_renders(tokenizer: Any, example: Callable[[str], Any]) -> None:
    assert (EXAMPLE / "chat_template.jinja").read_text() == (POLICY / "chat_template.jinja").read_text()
    for sample in example("train").make_samples(POLICY, 12, seed=3):
        text = tokenizer.decode(sample.ids)
        assert text.startswith(("<|im_start|>system\nYou are a shell agent.\nTools: ", "<|im_start|>system\nTools: "))
        said = [i for i, mask in zip(sample.ids, sample.mask, strict=True) if mask]
        pieces = text.split("<|im_start|>assistant\n")[1:]
        turns = [piece.partition("<|im_end|>")[0] + "<|im_end|>" for piece in pieces if piece]
        assert tokenizer.decode(said) == "".join(turns)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_it_solves_some_tasks_of_every_kind_and_fails_in_different_ways(example: Callable[[str], Any]) -> None:
    evaluate = example("evaluate")
    episodes = await evaluate.evaluate(POLICY, evaluate.read_suite(SUITE), samples=4, max_turns=6, seed=0)
    solved = Counter(episode.kind for episode in episodes if episode.solved)
    assert 0.10 <= solved.total() / len(episodes) <= 0.50
    assert len(solved) == 8
    assert {episode.ending for episode in episodes} == {"finished", "format_error", "max_step_limit"}
