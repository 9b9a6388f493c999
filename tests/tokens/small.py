"""A small byte-level BPE tokenizer with Qwen's pre-tokenizer and special tokens, and helpers around it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from uni_agent.tokens.messages import template_message
from uni_agent.types import Message, ToolCall

TEMPLATES = Path(__file__).parent / "templates"
NAMES = ("qwen2_5", "qwen3", "qwen3_coder", "qwen3_6")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|image_pad|>")
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pre-tokenizer of Qwen2.5 and Qwen3."""

BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": 'Run a command, e.g. `ls -la | grep "é" && echo <b>`.',
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}},
            "required": ["command"],
        },
    },
}


def train() -> Tokenizer:
    """The tokenizer, trained on the chat templates and some prose so that merges exist."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    level: Any = pre_tokenizers.ByteLevel
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=level.alphabet(), show_progress=False)
    prose = ["The quick README says\n\nok\n\n log: <|im_end|>\n system assistant user\n"] * 20
    text = [(TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8") for name in NAMES]
    tokenizer.train_from_iterator([*prose, *text, "漢字 漢字 Zürich 東京 élan élan"], trainer)
    add(tokenizer, SPECIAL, special=True)
    add(tokenizer, MARKUP, special=False)
    return tokenizer


def add(tokenizer: Any, texts: Sequence[str], *, special: bool) -> None:
    tokenizer.add_tokens([AddedToken(text, special=special, normalized=False) for text in texts])


def write_folder(folder: Path, tokenizer: Any, template: str | None = None) -> Path:
    """A model folder with the tokenizer's files, and the chat template called `template`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    end = tokenizer.token_to_id("<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text((TEMPLATES / f"{template}.jinja").read_text(), encoding="utf-8")
    return folder


def peer_ids(
    folder: Path, template: str, messages: Sequence[Message], tools: list[dict[str, Any]] | None, **kwargs: Any
) -> list[int]:
    """What transformers' `apply_chat_template` gives for the same messages, with the generation prompt."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed (extra: embedded)")
    make: Any = transformers.PreTrainedTokenizerFast
    peer = make(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    ids = peer.apply_chat_template(
        [template_message(message, split_thinking=False) for message in messages],
        tools=tools,
        chat_template=(TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8"),
        add_generation_prompt=True,
        return_dict=False,
        **kwargs,
    )
    return cast(list[int], ids)


def asks(*commands: str, content: str = "", reasoning: str = "", prefix: str = "c") -> Message:
    """An assistant turn that calls bash once per command, ids c0, c1, …"""
    calls = tuple(ToolCall(f"{prefix}{i}", "bash", {"command": command}) for i, command in enumerate(commands))
    return Message("assistant", content, reasoning, calls)


def result(text: str, call_id: str = "c0") -> Message:
    return Message("tool", text, tool_call_id=call_id, name="bash")


def user(text: str) -> Message:
    return Message("user", text)
