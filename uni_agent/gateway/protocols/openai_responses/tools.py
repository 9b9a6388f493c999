"""The tools of a request: what the model is offered of them, and what the client calls them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from uni_agent.gateway.canonical import ToolChoice
from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.gateway.protocols.reading import flag, function_schema, listing, mapping, plain, text
from uni_agent.tokens.base import ToolSchema

_DEFAULT_NAMESPACE = "functions"
_CUSTOM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """How the client names a tool that the model is offered. `custom`: its input is a text, not an object."""

    name: str
    namespace: str = ""
    custom: bool = False


@dataclass(slots=True)
class ToolBox:
    """The tools of one request in the order given. `left_out` names what of them is not offered or not enforced."""

    schemas: list[ToolSchema] = field(default_factory=list[ToolSchema])
    by_name: dict[str, ClientTool] = field(default_factory=dict[str, ClientTool])
    left_out: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, tools: Any, param: str, namespace: str = "") -> None:
        """Add a list of tools as the client wrote it. Raises GatewayError.

        Functions stay. Custom tools become functions of one string, `input`, with their grammar in the description.
        Those of a namespace are offered one by one. Whatever the vendor would run is left out, and so is a second
        tool of the same name.
        """
        for i, value in enumerate(listing(tools, param)):
            at = f"{param}[{i}]"
            tool = mapping(value, at)
            kind = text(tool.get("type"), f"{at}.type") or "function"
            if kind == "namespace":
                self.add(tool.get("tools"), f"{at}.tools", text(tool.get("name"), f"{at}.name"))
            elif kind in ("function", "custom"):
                self._offer(tool, at, namespace, custom=kind == "custom")
            else:
                self.left_out[f"tools: {kind:.60}"] = None

    def _offer(self, tool: dict[str, Any], at: str, namespace: str, *, custom: bool) -> None:
        inner = tool.get("function")  # as Chat Completions nests it
        fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else tool
        name = text(fields.get("name"), f"{at}.name")
        if not name:
            raise invalid(f"{at}.name: a tool needs a name", f"{at}.name")
        shown = visible_name(namespace, name)
        described = fields.get("description")
        if custom:
            words, grammar = _with_grammar(described, tool.get("format"))
            schema = function_schema(shown, words, _CUSTOM)
            if grammar:
                self.left_out[f"tools: grammar of {shown:.60}"] = None
        else:
            schema = function_schema(shown, described, plain(fields.get("parameters"), f"{at}.parameters"))
        client = ClientTool(name, "" if namespace == _DEFAULT_NAMESPACE else namespace, custom)
        if shown not in self.by_name:
            self.by_name[shown] = client
            self.schemas.append(schema)
        elif self.by_name[shown] != client or schema not in self.schemas:
            self.left_out[f"{at}: {name:.60} again"] = None


def visible_name(namespace: str, name: str) -> str:
    """The name under which the model sees a tool.

    As Codex joins them itself: the namespace `functions` is not shown, `_` at the joint is separator enough.
    """
    if namespace in ("", _DEFAULT_NAMESPACE):
        return name
    separator = "" if namespace.endswith("_") or name.startswith("_") else "__"
    return f"{namespace}{separator}{name}"


def read_choice(body: Mapping[str, Any], tools: ToolBox, ignored: dict[str, None]) -> ToolChoice:
    """`tool_choice` and `parallel_tool_calls`. Raises GatewayError for a choice among tools that are not offered.

    A list of allowed tools is not enforced, since the prompt shows all of them: only its mode counts.
    """
    several = flag(body, "parallel_tool_calls", default=True)
    value = body.get("tool_choice")
    if isinstance(value, dict):
        choice = cast("dict[str, Any]", value)
        kind = choice.get("type")
        if kind in ("function", "custom"):
            return ToolChoice("named", _named(choice, tools), several)
        if kind != "allowed_tools":
            raise unsupported(f"tool_choice: a tool of type {kind!r:.60} cannot be called here", "tool_choice")
        ignored["tool_choice.allowed_tools"] = None
        value = choice.get("mode")
    if value in (None, "auto"):
        return ToolChoice("auto", parallel=several)
    if value == "none":
        return ToolChoice("none", parallel=several)
    if value != "required":
        raise invalid(f"tool_choice: expected auto, none, required or an object, got {value!r:.60}", "tool_choice")
    if not tools.schemas:
        raise invalid("tool_choice: a call is required, but no tool is offered that can be called", "tool_choice")
    return ToolChoice("required", parallel=several)


def _named(choice: Mapping[str, Any], tools: ToolBox) -> str:
    inner = choice.get("function")
    fields = cast("dict[str, Any]", inner) if isinstance(inner, dict) else choice
    name = text(fields.get("name"), "tool_choice.name")
    shown = visible_name(text(fields.get("namespace"), "tool_choice.namespace"), name)
    if shown in tools.by_name:
        return shown
    raise invalid(f"tool_choice.name: {name[:80]!r} is none of the tools", "tool_choice.name")


def _with_grammar(description: Any, form: Any) -> tuple[str, bool]:
    """The description with the grammar in it, and whether there is one."""
    words = [description] if isinstance(description, str) and description else []
    found = False
    if isinstance(form, dict):
        grammar = cast("dict[str, Any]", form)
        syntax, definition = grammar.get("syntax"), grammar.get("definition")
        if isinstance(definition, str) and definition:
            found = True
            kind = f"{syntax} grammar" if isinstance(syntax, str) and syntax else "grammar"
            words.append(f"The input must follow this {kind}:\n{definition}")
    return "\n\n".join(words), found
