"""Whether a call's arguments fit its schema, said so that the model can mend them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.parsers import jsontext
from uni_agent.tokens.parsers.schema import (
    branches,
    did_you_mean,
    parameters_of,
    properties_of,
    type_name,
    types_of,
    unknown_tool,
)


def validate_arguments(name: str, arguments: dict[str, Any], tools: Sequence[ToolSchema]) -> str | None:
    """What is wrong with calling tool `name` with `arguments`: sentences for the model, or None.

    Checks the top level of the tool's schema: required, unknown parameters (unless the schema sets
    `additionalProperties` to true or a schema), JSON types with `anyOf`, and `enum`. Without tools every call fits.
    """
    if not tools:
        return None
    if problem := unknown_tool(name, tools):
        return problem
    root = parameters_of(name, tools)
    if not root:
        return None
    properties = properties_of(root)
    problems = _missing(arguments, root)
    for key, value in arguments.items():
        if key in properties:
            problems += _misfit(key, value, properties[key], root)
        elif properties and not root.get("additionalProperties"):
            problems.append(f"Unknown parameter {key[:100]!r}.{did_you_mean(key, properties)}")
    if not problems:
        return None
    known = ", ".join(properties) or "none"
    return f"Wrong arguments for {name!r}: {' '.join(problems)} Its parameters are: {known}."


def _missing(arguments: dict[str, Any], root: dict[str, Any]) -> list[str]:
    required = root.get("required")
    names = cast("list[Any]", required) if isinstance(required, list) else []
    return [f"Missing required parameter {name!r}." for name in names if name not in arguments]


def _misfit(key: str, value: Any, schema: dict[str, Any], root: dict[str, Any]) -> list[str]:
    types = types_of(schema, root)
    kind = type_name(value)
    if types and not _has_type(value, types):
        return [f"Parameter {key!r} must be {_one_of(types)}, got {kind} {_short(value)}."]
    choices = _choices(schema, root)
    if choices is not None and not any(_same(value, choice) for choice in choices):
        return [f"Parameter {key!r} must be one of {', '.join(map(_short, choices))}, got {_short(value)}."]
    return []


def _has_type(value: Any, types: set[str]) -> bool:
    kind = type_name(value)
    if kind in types or (kind == "integer" and "number" in types):
        return True
    return "integer" in types and isinstance(value, float) and value.is_integer()


def _choices(schema: dict[str, Any], root: dict[str, Any]) -> list[Any] | None:
    """The values that are allowed; None when a branch allows any of its type."""
    allowed: list[Any] = []
    for branch in branches(schema, root):
        values = branch.get("enum")
        if isinstance(values, list):
            allowed.extend(cast("list[Any]", values))
        elif "const" in branch:
            allowed.append(branch["const"])
        elif branch.get("type") == "null":
            allowed.append(None)
        else:
            return None
    return allowed


def _same(left: Any, right: Any) -> bool:
    return left == right and isinstance(left, bool) == isinstance(right, bool)


def _one_of(types: set[str]) -> str:
    names = sorted(types)
    article = "an" if names[0][0] in "aio" else "a"
    return f"{article} {' or '.join(names)}"


def _short(value: Any) -> str:
    text = jsontext.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
