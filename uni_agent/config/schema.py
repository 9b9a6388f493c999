"""The JSON schema of a configuration class, for completion and checks in editors."""

from __future__ import annotations

from typing import Any, cast

from pydantic import BaseModel

_EXTENDS: dict[str, Any] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}, {"type": "null"}],
    "default": None,
    "description": "Files that this one lies over, the first lowest; relative to this file.",
    "title": "Extends",
}


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The schema of a YAML file that is one layer of `model`.

    No key is required, because what a file leaves out may come from the file that it extends; unknown keys and wrong
    types are what an editor can tell.
    """
    schema = cast("dict[str, Any]", _layer(model.model_json_schema()))
    properties = {"extends": _EXTENDS, **schema.pop("properties", {})}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": schema.pop("title", model.__name__)}
    return {**head, "type": "object", "properties": properties, **{k: v for k, v in schema.items() if k != "type"}}


def schema_text(model: type[BaseModel]) -> str:
    """The schema as the text of its file."""
    import json

    return json.dumps(json_schema(model), indent=1, ensure_ascii=False) + "\n"


def _layer(node: Any) -> Any:
    """`node` without required keys; unions open (`anyOf`), since a part whose `type` a lower layer states fits several.

    Paths lose their format: `path` is none that validators know.
    """
    if isinstance(node, list):
        return [_layer(item) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    mapping = cast("dict[str, Any]", node)
    result: dict[str, Any] = {}
    for key, item in mapping.items():
        if key in {"properties", "$defs"}:
            result[key] = {name: _layer(value) for name, value in item.items()}
        elif key in {"default", "const", "enum", "examples"}:
            result[key] = item
        elif key == "description" and isinstance(item, str):
            result[key] = "\n\n".join(" ".join(part.split()) for part in item.split("\n\n"))
        elif not _dropped(key, item):
            result["anyOf" if key == "oneOf" else key] = _layer(item)
    return result


def _dropped(key: str, item: Any) -> bool:
    return key in {"required", "discriminator"} or (key == "format" and item == "path")
