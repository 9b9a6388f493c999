"""The tools of a Chat request and which of them may be called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from uni_agent.gateway.canonical import ToolChoice
from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.gateway.protocols.reading import flag, function_schema, kind_of, listing, mapping, plain
from uni_agent.tokens.base import ToolSchema

CUSTOM_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The parameters under which a custom tool, which takes free text, is offered to the model."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the model is offered. `custom` and `legacy` as in `ChatDialect`; `ignored` names what is left out."""

    tools: tuple[ToolSchema, ...] = ()
    choice: ToolChoice = ToolChoice()
    custom: frozenset[str] = frozenset()
    legacy: bool = False
    ignored: tuple[str, ...] = ()


def read_tools(body: Mapping[str, Any]) -> Offer:
    """The tools and the choice between them. Raises GatewayError."""
    tools: list[ToolSchema] = []
    custom: set[str] = set()
    ignored: dict[str, None] = {}
    for i, raw in enumerate(listing(body.get("tools"), "tools")):
        param = f"tools[{i}]"
        entry = mapping(raw, param)
        kind: Any = "function" if entry.get("type") is None else entry["type"]
        if not isinstance(kind, str):
            raise invalid(f"{param}.type: expected a string, got {kind_of(kind)}", f"{param}.type")
        if kind not in ("function", "custom"):
            ignored[f"tools: {kind[:60]}"] = None
            continue
        # Clients of the Responses API write the fields flat.
        inner = mapping(entry.get(kind, entry), f"{param}.{kind}")
        schema = _schema(inner, f"{param}.{kind}", CUSTOM_INPUT if kind == "custom" else inner.get("parameters"))
        tools.append(schema)
        if kind == "custom":
            custom.add(schema["function"]["name"])
            if mapping(inner.get("format") or {}, f"{param}.custom.format").get("type") == "grammar":
                ignored[f"tools: grammar of {schema['function']['name'][:60]}"] = None
    older = [] if tools else listing(body.get("functions"), "functions")
    for i, raw in enumerate(older):
        entry = mapping(raw, f"functions[{i}]")
        tools.append(_schema(entry, f"functions[{i}]", entry.get("parameters")))
    offer = Offer(tuple(tools), custom=frozenset(custom), legacy=bool(older), ignored=tuple(ignored))
    return _chosen(body, offer)


def _schema(inner: dict[str, Any], param: str, parameters: Any) -> ToolSchema:
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{param}.name: a tool needs a name", f"{param}.name")
    plain(parameters, f"{param}.parameters")
    return function_schema(name, inner.get("description"), parameters)


def _chosen(body: Mapping[str, Any], offer: Offer) -> Offer:
    """`offer` with the client's choice."""
    parallel = flag(body, "parallel_tool_calls", default=True)
    key = "function_call" if offer.legacy and body.get("tool_choice") is None else "tool_choice"
    value = body.get(key)
    # The older form has room for one call.
    plain = replace(offer, choice=ToolChoice(parallel=parallel and not offer.legacy))
    if value is None:
        return plain
    if isinstance(value, str):
        return _mode(plain, value, key)
    entry = mapping(value, key)
    kind = entry.get("type", "function")
    if kind == "allowed_tools":
        return _allowed(plain, mapping(entry.get(kind, entry), f"{key}.{kind}"), f"{key}.{kind}")
    if kind in ("function", "custom"):
        return _named(plain, _name_in(entry, kind, key), key)
    if kind in ("auto", "none", "any", "required"):
        return _mode(plain, kind, key)
    raise unsupported(f"{key}: a choice of type {kind!r:.60} cannot be honoured", key)


def _mode(offer: Offer, mode: str, param: str) -> Offer:
    if mode in ("required", "any"):
        if not offer.tools:
            raise invalid(f"{param}: {mode!r} needs tools that can be called", param)
        return replace(offer, choice=replace(offer.choice, mode="required"))
    if mode == "none":
        return replace(offer, choice=replace(offer.choice, mode="none"))
    if mode == "auto":
        return offer
    raise invalid(f"{param}: expected auto, none, required or a tool, got {mode[:60]!r}", param)


def _named(offer: Offer, name: str, param: str) -> Offer:
    if name not in _names(offer):
        raise invalid(f"{param}: there is no tool named {name[:60]!r}", param)
    return replace(offer, choice=replace(offer.choice, mode="named", name=name))


def _allowed(offer: Offer, entry: dict[str, Any], param: str) -> Offer:
    """A subset: the model is offered no other tool, so the limit holds."""
    wanted: list[str] = []
    for i, raw in enumerate(listing(entry.get("tools"), f"{param}.tools")):
        where = f"{param}.tools[{i}]"
        tool = mapping(raw, where)
        kind = tool.get("type", "function")
        if kind not in ("function", "custom"):
            continue
        wanted.append(_name_in(tool, kind, where))
        if wanted[-1] not in _names(offer):
            raise invalid(f"{where}: there is no tool named {wanted[-1][:60]!r}", where)
    mode = entry.get("mode", "auto")
    if not isinstance(mode, str):
        raise invalid(f"{param}.mode: expected a string, got {kind_of(mode)}", f"{param}.mode")
    kept = tuple(tool for tool in offer.tools if tool["function"]["name"] in wanted)
    return _mode(replace(offer, tools=kept), mode, f"{param}.mode")


def _names(offer: Offer) -> list[str]:
    return [tool["function"]["name"] for tool in offer.tools]


def _name_in(entry: dict[str, Any], kind: str, param: str) -> str:
    name = mapping(entry.get(kind, entry), f"{param}.{kind}").get("name")
    if not isinstance(name, str) or not name:
        raise invalid(f"{param}: a choice of a tool needs its name", param)
    return name
