"""What the model is offered.

Deferred tools (`defer_loading`) are never part of the rendered list: a client that loads one inserts it in the middle,
and a list that changes begins a new prompt. They are shown where the API shows them, at the `tool_reference` that loads
them: there the text is the tool's schema, the same in every later request. `ModelRequest.loaded_tools` names them for
whoever reads calls. Where nothing could load them (the search is the server's, which does not exist here, or no other
tool is there) they are ordinary tools.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from uni_agent.gateway.canonical import ToolChoice
from uni_agent.gateway.errors import invalid
from uni_agent.gateway.protocols.anthropic_messages.blocks import clean
from uni_agent.gateway.protocols.reading import flag, function_schema, listing, mapping, text
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.parsers.jsontext import check_value

_SEARCH = "tool_search_tool_"


@dataclass(frozen=True, slots=True)
class Offer:
    """`tools` are rendered, `deferred` (name → schema) wait for a reference, `ignored` names what is left out."""

    tools: tuple[ToolSchema, ...] = ()
    deferred: dict[str, ToolSchema] = field(default_factory=dict[str, ToolSchema])
    ignored: tuple[str, ...] = ()

    def reference(self, name: str) -> str:
        """What a `tool_reference` says to the model: one line with the schema, or the name of an unknown tool."""
        schema = self.deferred.get(name)
        return f"Tool loaded: {json.dumps(schema, ensure_ascii=False) if schema else name}\n"


def read_tools(value: Any) -> Offer:
    """The tools of a request. Tools that the server would run, or knows the schema of, are left out.

    Raises GatewayError.
    """
    plain: list[ToolSchema] = []
    deferred: dict[str, ToolSchema] = {}
    everything: list[ToolSchema] = []
    ignored: dict[str, None] = {}
    search = False
    for i, item in enumerate(listing(value, "tools")):
        tool = mapping(item, f"tools[{i}]")
        kind = tool.get("type")
        if kind is not None and kind != "custom":
            kind = text(kind, f"tools[{i}].type")
            search = search or kind.startswith(_SEARCH)
            ignored[f"tools: {kind:.60}"] = None
            continue
        schema = _schema(tool, f"tools[{i}]")
        everything.append(schema)
        if tool.get("defer_loading") is True:
            deferred[schema["function"]["name"]] = schema
        else:
            plain.append(schema)
    if search or not plain:
        return Offer(tuple(everything), {}, tuple(ignored))
    return Offer(tuple(plain), deferred, tuple(ignored))


def read_choice(value: Any, offer: Offer, loaded: Iterable[str]) -> ToolChoice:
    """`tool_choice`; null is auto. Raises GatewayError, also for a call that must be but cannot."""
    if value is None:
        return ToolChoice()
    choice = mapping(value, "tool_choice")
    single = flag(choice, "disable_parallel_tool_use", at="tool_choice.")
    kind = text(choice.get("type"), "tool_choice.type")
    if kind in ("auto", "none"):
        return ToolChoice("auto" if kind == "auto" else "none", parallel=not single)
    if kind == "any":
        if not offer.tools:
            raise invalid("tool_choice: asks for a call, but no tool can be offered", "tool_choice")
        return ToolChoice("required", parallel=not single)
    if kind != "tool":
        raise invalid(f"tool_choice.type: expected auto, any, none or tool, got {kind!r:.80}", "tool_choice.type")
    name = text(choice.get("name"), "tool_choice.name")
    if name not in loaded and all(tool["function"]["name"] != name for tool in offer.tools):
        raise invalid(f"tool_choice.name: no tool that can be offered is named {name!r:.80}", "tool_choice.name")
    return ToolChoice("named", name, parallel=not single)


def _schema(tool: dict[str, Any], param: str) -> ToolSchema:
    name = clean(text(tool.get("name"), f"{param}.name"))
    if not name:
        raise invalid(f"{param}.name: expected the tool's name", f"{param}.name")
    description = tool.get("description")
    schema = function_schema(
        name, clean(description) if isinstance(description, str) else None, tool.get("input_schema")
    )
    try:
        check_value(schema)
    except ValueError as error:
        raise invalid(f"{param}.input_schema: {error}", f"{param}.input_schema") from error
    return schema
