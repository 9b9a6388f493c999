"""Parameters that mean the same in every protocol: sampling, and variables for the chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.errors import invalid
from uni_agent.gateway.protocols.reading import mapping, number, plain, whole

_SEEDS = 1 << 63
_TINY_TOP_P = 1e-6
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


def read_sampling(body: Mapping[str, Any]) -> dict[str, float | int]:
    """What the body sets of `SamplingParams`, under its names and in its terms; null and missing keys are left out.

    All protocols take the same names: those that an API lacks are sent by clients of engines' own servers. Raises
    GatewayError for a value out of range.
    """
    top_p = number(body.get("top_p"), "top_p", 0, 1)
    top_k = whole(body.get("top_k"), "top_k", least=-1)
    found: dict[str, float | int | None] = {
        "temperature": number(body.get("temperature"), "temperature", 0, 2),
        # Engines refuse 0, which the APIs take; both leave nothing but the most likely token.
        "top_p": None if top_p is None else max(top_p, _TINY_TOP_P),
        "top_k": -1 if top_k == 0 else top_k,
        "min_p": number(body.get("min_p"), "min_p", 0, 1),
        "repetition_penalty": number(body.get("repetition_penalty"), "repetition_penalty", 0.01, 100),
        "seed": _seed(body.get("seed")),
    }
    return {key: value for key, value in found.items() if value is not None}


def _seed(value: Any) -> int | None:
    seed = whole(value, "seed", least=-_SEEDS)
    if seed is not None and seed >= _SEEDS:
        raise invalid("seed: expected a whole number of 64 bits", "seed")
    return seed


def read_template_kwargs(body: Mapping[str, Any]) -> dict[str, Any]:
    """`chat_template_kwargs`, {} for null. Raises GatewayError for those that are not the client's to set."""
    path = "chat_template_kwargs"
    values = mapping(body.get(path) or {}, path)
    for key in _RESERVED:
        if key in values:
            raise invalid(f"{path}.{key}: cannot be set", f"{path}.{key}")
    plain(values, path)
    return values
