"""A bound on the nesting of what clients send: templates and `json.dumps` recurse."""

from __future__ import annotations

from typing import Any, cast

from uni_agent.gateway.errors import invalid
from uni_agent.tokens.parsers.jsontext import MAX_DEPTH


def too_deep(value: Any) -> bool:
    """Whether `value` is nested over `MAX_DEPTH` levels."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(cast("dict[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
        if not below:
            return False
        level = below
    return True


def check_depth(value: Any, param: str) -> None:
    """Raise GatewayError when `value` is nested over `MAX_DEPTH` levels."""
    if too_deep(value):
        raise invalid(f"{param}: nested over {MAX_DEPTH} levels", param)
