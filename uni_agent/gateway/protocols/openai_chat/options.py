"""The parameters of a Chat request beside its messages and tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from uni_agent.gateway.errors import invalid
from uni_agent.gateway.protocols.reading import flag, kind_of, mapping, text, whole

MAX_STOPS = 16
"""Most stop strings of a request."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({}, []),
    "response_format": ({"type": "text"},),
    "reasoning_effort": (),
    "reasoning": ({},),
    "thinking": ({},),
    "enable_thinking": (),
    "modalities": (["text"], []),
    "audio": (),
    "web_search_options": (),
    "verbosity": ("medium",),
    "chat_template": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "length_penalty": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "logits_processors": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "structured_outputs": ({},),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
}
"""What would change the answer and is not done → the values, beside null, that ask for nothing."""


def stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    """The strings that end the turn. Raises GatewayError."""
    value = body.get("stop")
    if value is None:
        return ()
    if not isinstance(value, str | list):
        raise invalid(f"stop: expected a string or an array of strings, got {kind_of(value)}", "stop")
    strings: list[Any] = [value] if isinstance(value, str) else cast("list[Any]", value)
    if len(strings) > MAX_STOPS:
        raise invalid(f"stop: at most {MAX_STOPS} strings, got {len(strings)}", "stop")
    for i, item in enumerate(strings):
        if not isinstance(item, str) or not item:
            raise invalid(f"stop[{i}]: expected a string that is not empty", f"stop[{i}]")
    return tuple(strings)


def logprobs(body: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """Whether logprobs are wanted, and what of the wish is not done. Raises GatewayError."""
    wanted = flag(body, "logprobs")
    top = whole(body.get("top_logprobs"), "top_logprobs", least=0)
    if top is not None and top > 20:
        raise invalid("top_logprobs: expected a whole number from 0 to 20", "top_logprobs")
    # The record holds the sampled tokens' logprobs alone.
    return wanted, ("top_logprobs",) if wanted and top else ()


def ignored(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Parameters that ask for something that would change the answer and is not done."""
    response_format = body.get("response_format")
    if response_format is not None:
        text(mapping(response_format, "response_format").get("type"), "response_format.type")
    return tuple(key for key, neutral in _NEUTRAL.items() if body.get(key) is not None and body[key] not in neutral)
