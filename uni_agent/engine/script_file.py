"""A script for the scripted engine as a file of JSON lines: one generation a line."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from uni_agent.config.base import Config
from uni_agent.engine.scripted import ScriptedTurn
from uni_agent.errors import ConfigError, boundary

TokenId = Annotated[int, Field(ge=0, lt=2**31, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False, strict=True)]

_ENDS = {"tool_calls": "stop", "tool_use": "stop", "end_turn": "stop", "eos": "stop", "max_tokens": "length"}
"""Ends in the words of the protocols: an engine only knows that a stop token came, or that the cap was met."""

_FAULTS = {
    **dict.fromkeys(("error", "exception"), "raise"),
    **dict.fromkeys(("disconnect", "reset", "connection_reset", "connection reset", "drop", "crash"), "break"),
    **dict.fromkeys(("timeout", "stall"), "hang"),
}
"""Other words for the faults."""


def _in_words_of(words: dict[str, str]) -> BeforeValidator:
    return BeforeValidator(lambda given: words.get(given, given) if isinstance(given, str) else given)


class ScriptLine(Config):
    """One generation."""

    text: str | None = Field(default=None, strict=True)
    """What is sampled, as text of the tokenizer; or give `token_ids`."""
    token_ids: list[TokenId] | None = None
    """What is sampled; the request's first stop id is appended when the turn ends by `stop`."""
    finish_reason: Annotated[Literal["stop", "length", "abort"], _in_words_of(_ENDS)] = "stop"
    """How the generation ends; `tool_calls`, `max_tokens` and their like are read as the end that they come from."""
    delay: Seconds = 0.0
    """Seconds before the first token."""
    fault: Annotated[Literal["raise", "break", "abort", "hang"] | None, _in_words_of(_FAULTS)] = None
    """Fail before the first token, break off behind the last one, give up, or never come back."""
    piece: int = Field(default=1, ge=1, strict=True)
    """Tokens that a streaming caller is handed at a time."""
    token_delay: Seconds = 0.0
    """Seconds before each piece."""
    fail_after: int | None = Field(default=None, ge=0, strict=True)
    """Break off after so many tokens."""
    logprobs: list[Annotated[float, Field(allow_inf_nan=False, strict=True)]] | None = None
    """One for each token, the appended stop token may be left out; `[]`: none at all; null: -0.5 for each."""
    weight_version: str | int | None = None
    """Name of the weights that sample it."""

    @model_validator(mode="after")
    def _one_output(self) -> Self:
        if self.text is not None and self.token_ids is not None:
            raise ValueError("give either `text` or `token_ids`")
        if self.text is None and self.token_ids is None and self.fault not in ("raise", "break", "hang"):
            raise ValueError("`text` or `token_ids` is missing")
        return self


def read_script(path: Path, encode: Callable[[str], Sequence[int]]) -> list[ScriptedTurn]:
    """The turns of the JSON lines file `path`; `encode` turns text into token ids. Empty lines are skipped.

    Raises ConfigError, with file, line and key, for what cannot be read or played.
    """
    try:
        raw = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the script {path} cannot be read: {error}") from error
    # No splitlines: JSON strings may hold U+2028 and its kin.
    lines = [(number, line) for number, line in enumerate(raw.split("\n"), 1) if line.strip()]
    if not lines:
        raise ConfigError(f"the script {path} holds no turn: write one JSON object a line")
    return [_turn(line, f"{path}:{number}", encode) for number, line in lines]


def _turn(text: str, where: str, encode: Callable[[str], Sequence[int]]) -> ScriptedTurn:
    try:
        raw: Any = json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{where}: a turn is a JSON object, not {text.strip()[:80]!r}")
    try:
        line = ScriptLine.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{where}: {problem}" for problem in _problems(error))) from error
    ids = line.token_ids
    if line.text is not None:
        with boundary(ConfigError, f"{where}: text: cannot be encoded"):
            ids = list(encode(line.text))
    ids = ids or []
    if line.logprobs and len(line.logprobs) not in (len(ids), len(ids) + 1):
        raise ConfigError(f"{where}: logprobs: {len(line.logprobs)} for {len(ids)} tokens")
    breaks = line.fail_after if line.fault != "break" or line.fail_after is not None else len(ids)
    # A fault that says where it strikes strikes there; else `raise` lets no token out.
    fault = None if line.fault == "break" or (line.fault == "raise" and breaks is not None) else line.fault
    return ScriptedTurn(
        tuple(ids),
        line.finish_reason,
        logprobs=line.logprobs,
        delay=line.delay,
        fault=fault,
        weight_version=None if line.weight_version is None else str(line.weight_version),
        piece=line.piece,
        token_delay=line.token_delay,
        fail_after=breaks,
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"key {twice[0]!r} stands twice")
    return dict(pairs)


def _problems(error: ValidationError) -> list[str]:
    out: list[str] = []
    for item in error.errors(include_url=False):
        key = ".".join(map(str, item["loc"]))
        if item["type"] == "extra_forbidden":
            out.append(f"{key}: unknown key; known are {', '.join(ScriptLine.model_fields)}")
        else:
            out.append(f"{key}: {item['msg']}" if key else item["msg"].removeprefix("Value error, "))
    return out
