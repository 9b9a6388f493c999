"""The function schema that the model reads, made from a tool's `Arguments`."""

from __future__ import annotations

import inspect
from typing import Any

from uni_agent.errors import ConfigError
from uni_agent.tools.base import AbstractTool

Json = dict[str, Any]

_KEYS = ("type", "description", "enum", "items", "properties", "required")
"""Keys that come first, in this order, wherever they stand; the others follow in alphabetical order."""


def function_schema(tool: AbstractTool) -> Json:
    """The OpenAI function schema of `tool`: `{"type": "function", "function": {name, description, parameters}}`.

    `parameters` always has `type`, `properties` (in the order they are declared) and `required`. Titles,
    `additionalProperties` and null defaults are left out, `Optional` is collapsed to its type, references are put in
    place and a single literal is an `enum` of one. Equal tools give equal bytes: prompts are cached on them.

    Raises ConfigError when the arguments refer to themselves, which no chat template can show.
    """
    raw = tool.Arguments.model_json_schema(by_alias=False, mode="validation")
    body = _simplify(raw, raw.get("$defs", {}), (), tool.name)
    parameters = {
        "type": "object",
        "properties": body.get("properties", {}),
        "required": body.get("required", []),
    }
    description = inspect.cleandoc(tool.description)
    return {
        "type": "function",
        "function": {"name": tool.name, "description": description, "parameters": parameters},
    }


def _simplify(node: Any, definitions: Json, inside: tuple[str, ...], tool: str) -> Any:
    if isinstance(node, list):
        return [_simplify(item, definitions, inside, tool) for item in node]  # pyright: ignore[reportUnknownVariableType]
    if not isinstance(node, dict):
        return node
    schema: Json = dict(node)  # pyright: ignore[reportUnknownArgumentType]
    schema, inside = _resolve(schema, definitions, inside, tool)
    schema = _collapse(schema, definitions, inside, tool)
    out: Json = {}
    for key in sorted(schema, key=_rank):
        value = schema[key]
        if key == "properties":
            out[key] = {name: _simplify(inner, definitions, inside, tool) for name, inner in value.items()}
        elif key in ("default", "enum", "examples", "required"):
            out[key] = value  # data, not schema
        else:
            out[key] = _simplify(value, definitions, inside, tool)
    return out


def _resolve(schema: Json, definitions: Json, inside: tuple[str, ...], tool: str) -> tuple[Json, tuple[str, ...]]:
    """Follow `$ref` until there is none; what stands beside a reference (its description) wins."""
    while "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in inside:
            raise ConfigError(f"tool {tool!r}: the arguments refer to themselves through {name!r}")
        inside = (*inside, name)
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
    return schema, inside


def _collapse(schema: Json, definitions: Json, inside: tuple[str, ...], tool: str) -> Json:
    """Drop what a model need not read, and the null of an optional value."""
    dropped = ("title", "$defs", "additionalProperties", "discriminator")
    if isinstance(schema.get("additionalProperties"), dict):
        dropped = ("title", "$defs", "discriminator")  # the type of a mapping's values says something
    schema = {key: value for key, value in schema.items() if key not in dropped}
    if schema.get("default", ...) is None:
        del schema["default"]
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    options = schema.get("anyOf")
    if not isinstance(options, list):
        return schema
    kept: list[Any] = [option for option in options if option != {"type": "null"}]  # pyright: ignore[reportUnknownVariableType]
    if len(kept) != 1:
        return {**schema, "anyOf": kept}
    del schema["anyOf"]
    only, _ = _resolve(kept[0], definitions, inside, tool)
    return _collapse({**only, **schema}, definitions, inside, tool)


def _rank(key: str) -> tuple[int, str]:
    return (_KEYS.index(key) if key in _KEYS else len(_KEYS), key)
