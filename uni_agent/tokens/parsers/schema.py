"""Look-ups in OpenAI function schemas, and sentences about them for the model. Schemas are untrusted: never raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from uni_agent.config.suggest import closest
from uni_agent.tokens.base import ToolSchema


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is a dict, else an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def function_of(tool: ToolSchema) -> dict[str, Any]:
    """The `function` part of a schema; a bare function schema is taken as it is."""
    return mapping(tool.get("function")) or tool


def tool_names(tools: Sequence[ToolSchema]) -> list[str]:
    """The names of `tools`, in order."""
    names = (function_of(tool).get("name") for tool in tools)
    return [name for name in names if isinstance(name, str)]


def parameters_of(name: str, tools: Sequence[ToolSchema]) -> dict[str, Any] | None:
    """The JSON schema of a tool's arguments; None when no tool has that name."""
    for tool in tools:
        function = function_of(tool)
        if function.get("name") == name:
            return mapping(function.get("parameters"))
    return None


def properties_of(parameters: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Parameter → its schema with a local `$ref` followed."""
    return {key: resolve(mapping(value), parameters) for key, value in mapping(parameters.get("properties")).items()}


def resolve(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """`schema`, or what its local `$ref` (`#/$defs/Name`) points to in `root`; {} for one that leads nowhere."""
    for _ in range(8):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target: Any = root
        for part in reference.removeprefix("#/").split("/"):
            target = mapping(target).get(part)
        schema = mapping(target)
    return {}


def branches(schema: dict[str, Any], root: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of `anyOf` and `oneOf`, flattened; the schema itself when it has none."""
    found: list[dict[str, Any]] = []
    queue = [schema]
    while queue and len(found) < 100:
        current = resolve(queue.pop(0), root)
        options = current.get("anyOf") or current.get("oneOf")
        if isinstance(options, list) and len(queue) < 100:
            queue.extend(mapping(option) for option in cast("list[Any]", options))
        else:
            found.append(current)
    return found


def types_of(schema: dict[str, Any], root: dict[str, Any]) -> set[str]:
    """JSON types that a value may have; empty when the schema does not say."""
    types: set[str] = set()
    for branch in branches(schema, root):
        kind = branch.get("type")
        if isinstance(kind, str):
            types.add(kind)
        elif isinstance(kind, list):
            types.update(item for item in cast("list[Any]", kind) if isinstance(item, str))
        else:
            values = branch.get("enum", [branch["const"]] if "const" in branch else [])
            types.update(type_name(value) for value in (cast("list[Any]", values) if isinstance(values, list) else []))
    return types


_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),  # before int: a bool is one
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


def type_name(value: Any) -> str:
    """The JSON type of a decoded value."""
    return next((name for cls, name in _TYPE_NAMES if isinstance(value, cls)), "null")


def unknown_tool(name: str, tools: Sequence[ToolSchema]) -> str | None:
    """What is wrong with calling `name`: a sentence for the model, or None. Without tools every name goes."""
    names = tool_names(tools)
    if not names or name in names:
        return None
    close = closest(name[:100], names)
    hint = f" Did you mean {close!r}?" if close else ""
    return f"There is no tool named {name[:100]!r}.{hint} The tools are: {', '.join(names)}."
