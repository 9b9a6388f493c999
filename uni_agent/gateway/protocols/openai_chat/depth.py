"""A bound on the nesting of what clients send: templates and `json.dumps` recurse."""

from __future__ import annotations

from typing import Any

from uni_agent.gateway.errors import invalid
from uni_agent.gateway.protocols.reading import too_deep
from uni_agent.tokens.parsers.jsontext import MAX_DEPTH

__all__ = ["check_depth", "too_deep"]


def check_depth(value: Any, param: str) -> None:
    """Raise GatewayError when `value` is nested over `MAX_DEPTH` levels."""
    if too_deep(value):
        raise invalid(f"{param}: nested over {MAX_DEPTH} levels", param)
