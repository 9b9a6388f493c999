"""Reads the body of `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from uni_agent.gateway.canonical import ModelRequest, Wire
from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.gateway.protocols.openai_responses.history import History
from uni_agent.gateway.protocols.openai_responses.tools import ClientTool, ToolBox, read_choice
from uni_agent.gateway.protocols.parameters import read_sampling, read_template_kwargs
from uni_agent.gateway.protocols.reading import flag, listing, mapping, plain, text, whole
from uni_agent.types import Message


@dataclass(frozen=True, slots=True)
class Dialect:
    """What of a request its answer needs.

    `tools` maps the names that the model sees to the client's. `echo` are the fields of the request that a Response
    repeats. `handles`: reasoning items carry `encrypted_content`. `summary`: the client reads thinking as summaries.
    """

    tools: Mapping[str, ClientTool]
    echo: Mapping[str, Any]
    handles: bool
    summary: bool


def read_request(wire: Wire) -> ModelRequest:
    """The request in canonical form; see `ProtocolAdapter.read`.

    What cannot be honoured is named in `ignored`: tools that the vendor would run, output formats, logprobs, effort.
    Hints and bookkeeping (store, metadata, cache keys, service tier) change nothing and are only repeated.
    """
    body = wire.body
    _refuse(body)
    ignored: dict[str, None] = {}
    tools = ToolBox()
    tools.add(body.get("tools"), "tools")
    history = History(tools)
    for i, item in enumerate(_input(body.get("input"))):
        history.add(item, f"input[{i}]")
    instructions = text(body.get("instructions"), "instructions")
    leading = [Message("system", instructions)] if instructions else []
    previous = text(body.get("previous_response_id"), "previous_response_id")
    if not history.messages and not previous:
        raise invalid("input: there is nothing to answer", "input")
    choice = read_choice(body, tools, ignored)
    dialect = _dialect(body, tools, ignored)
    ignored = {**tools.left_out, **history.left_out, **ignored}
    return ModelRequest(
        wire=wire,
        messages=(*leading, *history.messages),
        tools=tuple(tools.schemas),
        model=text(body.get("model"), "model"),
        stream=flag(body, "stream"),
        max_tokens=whole(body.get("max_output_tokens"), "max_output_tokens"),
        sampling=read_sampling(body),
        tool_choice=choice,
        template_kwargs=read_template_kwargs(body),
        previous_response_id=previous,
        instructions=len(leading),
        ignored=tuple(ignored),
        dialect=dialect,
    )


def _input(value: Any) -> list[Any]:
    return [{"role": "user", "content": value}] if isinstance(value, str) else listing(value, "input")


def _refuse(body: Mapping[str, Any]) -> None:
    for key in ("conversation", "prompt"):
        if body.get(key) is not None:
            raise unsupported(f"{key}: nothing is kept here that it could name; send the items in input", key)
    if body.get("background"):
        raise unsupported("background: responses are only made while the client waits", "background")


def _dialect(body: Mapping[str, Any], tools: ToolBox, ignored: dict[str, None]) -> Dialect:
    include = [value for value in listing(body.get("include"), "include") if isinstance(value, str)]
    reasoning = _object(body, "reasoning")
    form = _object(body, "text")
    output = form.get("format")
    named = cast("dict[str, Any]", output).get("type") if isinstance(output, dict) else None
    asked = {
        "text.format": named not in (None, "text"),
        "text.verbosity": form.get("verbosity") is not None,
        "reasoning.effort": reasoning.get("effort") is not None,
        "include.message.output_text.logprobs": "message.output_text.logprobs" in include,
        "top_logprobs": bool(body.get("top_logprobs")),
        "max_tool_calls": body.get("max_tool_calls") is not None,
        "stop": bool(body.get("stop")),
        "truncation": body.get("truncation") == "auto",
    }
    ignored.update({key: None for key, there in asked.items() if there})
    summary = reasoning.get("summary") or reasoning.get("generate_summary")
    return Dialect(
        tools=tools.by_name,
        echo=_echo(body, reasoning, form),
        handles="reasoning.encrypted_content" in include,
        summary=isinstance(summary, str) and summary != "none",
    )


def _echo(body: Mapping[str, Any], reasoning: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    """The request's own fields as a Response repeats them; of what was not said, the default that holds here."""
    choice: Any = body.get("tool_choice")
    metadata = cast("dict[str, Any]", body["metadata"]) if isinstance(body.get("metadata"), dict) else {}
    tools = listing(body.get("tools"), "tools")
    echo: dict[str, Any] = {
        "background": False,
        "instructions": body.get("instructions") or None,
        "max_output_tokens": body.get("max_output_tokens"),
        "max_tool_calls": body.get("max_tool_calls") if type(body.get("max_tool_calls")) is int else None,
        "metadata": {key: value for key, value in metadata.items() if isinstance(value, str)},
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id") or None,
        "reasoning": {"effort": _word(reasoning, "effort"), "summary": _word(reasoning, "summary")},
        "store": body.get("store") is not False,
        "temperature": body.get("temperature"),
        "text": {"format": {"type": "text"}, **{key: value for key, value in form.items() if value is not None}},
        "tool_choice": choice if choice is not None else "auto",
        "tools": [{"parameters": None, "strict": None, **tool} if _function(tool) else tool for tool in tools],
        "top_logprobs": body.get("top_logprobs") if type(body.get("top_logprobs")) is int else None,
        "top_p": body.get("top_p"),
        "truncation": _word(body, "truncation") or "disabled",
    }
    for key in ("prompt_cache_key", "safety_identifier", "service_tier", "user"):
        echo[key] = _word(body, key)
    return {key: plain(value, key) for key, value in echo.items()}


def _object(body: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = body.get(key)
    return {} if value is None else mapping(value, key)


def _function(tool: dict[str, Any]) -> bool:
    return tool.get("type") == "function"


def _word(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) else None
