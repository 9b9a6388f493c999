"""Parameters of a Messages request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from uni_agent.gateway.protocols.anthropic_messages.blocks import clean
from uni_agent.gateway.protocols.reading import listing, mapping, text


def stop(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Strings that end the turn; empty ones are left out. Raises GatewayError."""
    given = listing(body.get("stop_sequences"), "stop_sequences")
    words = [clean(text(word, f"stop_sequences[{i}]")) for i, word in enumerate(given)]
    return tuple(word for word in words if word)


def ignored(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Parameters that ask for something that would change the answer and is not done. Never raises."""
    return (
        *_thinking(_object(body, "thinking")),
        *_output(body, _object(body, "output_config")),
        *(name for name in ("container", "mcp_servers") if body.get(name)),
        *_context_edits(_object(body, "context_management")),
    )


def _thinking(thinking: Mapping[str, Any]) -> list[str]:
    """How much is thought is the model's own business, and all of it is shown."""
    out: list[str] = []
    if thinking.get("type") == "disabled":
        out.append("thinking.type: disabled")
    if thinking.get("type") == "enabled" and thinking.get("budget_tokens") is not None:
        out.append("thinking.budget_tokens")
    if thinking.get("display") == "omitted":
        out.append("thinking.display: omitted")
    return out


def _output(body: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    out = [f"output_config.{name}" for name in ("format", "effort") if config.get(name) is not None]
    return [*out, "output_format"] if body.get("output_format") is not None else out


def _context_edits(management: Mapping[str, Any]) -> list[str]:
    """To keep all thinking is what is done anyway."""
    edits = management.get("edits")
    out: dict[str, None] = {}
    for edit in cast("list[Any]", edits) if isinstance(edits, list) else []:
        values = cast("dict[str, Any]", edit) if isinstance(edit, dict) else {}
        kind = values.get("type")
        if not (isinstance(kind, str) and kind.startswith("clear_thinking_") and values.get("keep") == "all"):
            out[f"context_management: {kind if isinstance(kind, str) else '?':.60}"] = None
    return list(out)


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    return mapping(value, name) if isinstance(value, dict) else {}
