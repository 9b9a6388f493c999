"""A Messages request in canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.canonical import ModelRequest, Wire
from uni_agent.gateway.errors import invalid
from uni_agent.gateway.protocols.anthropic_messages import options
from uni_agent.gateway.protocols.anthropic_messages.blocks import clean
from uni_agent.gateway.protocols.anthropic_messages.errors import thread_unsupported
from uni_agent.gateway.protocols.anthropic_messages.history import read_messages, read_system
from uni_agent.gateway.protocols.anthropic_messages.tools import read_choice, read_tools
from uni_agent.gateway.protocols.parameters import read_sampling
from uni_agent.gateway.protocols.reading import flag, text, whole


def read_request(wire: Wire) -> ModelRequest:
    """The request that `wire` carries. Raises GatewayError that names the path of what cannot be read."""
    if wire.body.get("thread") is not None:
        raise thread_unsupported()
    try:
        return _read(wire, wire.body)
    except RecursionError as error:
        raise invalid("the request is nested too deeply") from error


def _read(wire: Wire, body: Mapping[str, Any]) -> ModelRequest:
    offer = read_tools(body.get("tools"))
    system = read_system(body.get("system"), offer)
    history = read_messages(body.get("messages"), offer)
    return ModelRequest(
        wire=wire,
        messages=(*system, *history.messages),
        tools=offer.tools,
        model=clean(text(body.get("model"), "model")),
        stream=flag(body, "stream"),
        max_tokens=whole(body.get("max_tokens"), "max_tokens"),
        sampling=read_sampling(body),
        stop=options.stop(body),
        tool_choice=read_choice(body.get("tool_choice"), offer, history.loaded),
        instructions=len(system),
        ignored=(*history.ignored, *offer.ignored, *options.ignored(body)),
        loaded_tools=tuple(offer.deferred[name] for name in history.loaded if name in offer.deferred),
    )
