"""A Chat Completions request in canonical form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.canonical import ModelRequest, Wire
from uni_agent.gateway.errors import unsupported
from uni_agent.gateway.protocols.openai_chat import options
from uni_agent.gateway.protocols.openai_chat.dialect import ChatDialect
from uni_agent.gateway.protocols.openai_chat.history import read_messages
from uni_agent.gateway.protocols.openai_chat.tools import read_tools
from uni_agent.gateway.protocols.parameters import read_sampling, read_template_kwargs
from uni_agent.gateway.protocols.reading import flag, mapping, text, whole

MAX_SAMPLES = 8
"""Most answers (`n`) to one request."""


def read_request(wire: Wire) -> ModelRequest:
    """The request that `wire` carries. Raises GatewayError that names the path of what cannot be read."""
    body = wire.body
    messages, odd_roles = read_messages(body.get("messages"))
    offer = read_tools(body)
    logprobs, odd_logprobs = options.logprobs(body)
    token_ids = flag(body, "return_token_ids")
    stream = flag(body, "stream")
    stream_options = mapping(body.get("stream_options") or {}, "stream_options")
    return ModelRequest(
        wire=wire,
        messages=tuple(messages),
        tools=offer.tools,
        model=text(body.get("model"), "model"),
        stream=stream,
        max_tokens=_max_tokens(body),
        sampling=read_sampling(body),
        stop=options.stop(body),
        tool_choice=offer.choice,
        samples=_samples(body, stream=stream),
        template_kwargs=read_template_kwargs(body),
        return_tokens=token_ids or logprobs,
        ignored=(*odd_roles, *offer.ignored, *odd_logprobs, *options.ignored(body)),
        dialect=ChatDialect(
            custom=offer.custom,
            legacy=offer.legacy,
            usage=stream_options.get("include_usage") is True,
            logprobs=logprobs,
            token_ids=token_ids,
        ),
    )


def _max_tokens(body: Mapping[str, Any]) -> int | None:
    newer = whole(body.get("max_completion_tokens"), "max_completion_tokens")
    older = whole(body.get("max_tokens"), "max_tokens")
    return older if newer is None else newer


def _samples(body: Mapping[str, Any], *, stream: bool) -> int:
    samples = whole(body.get("n"), "n") or 1
    if samples > MAX_SAMPLES:
        raise unsupported(f"n: at most {MAX_SAMPLES} answers can be sampled at once, got {samples}", "n")
    if samples > 1 and stream:
        raise unsupported("n: a stream carries one answer; ask for n=1, or without stream", "n")
    return samples
