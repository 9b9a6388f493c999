"""What a request asks and what a turn answers, in no protocol's own words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from uni_agent.tokens.base import ToolSchema
from uni_agent.types import Message, Usage

ProtocolName = Literal["openai_chat", "openai_responses", "anthropic_messages"]
"""The API that a client speaks."""

FinishReason = Literal["stop", "tool_calls", "length", "context", "stop_sequence"]
"""Why a turn ended: its own end, with calls, the cap on the turn, a full window, or a string that the client named."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may, must or must not call tools. `name` is set for `named` alone.

    `parallel` False: at most one call in a turn.
    """

    mode: Literal["auto", "none", "required", "named"] = "auto"
    name: str = ""
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class Wire:
    """A request as it came, for rules over the wire. Header names are lower-case; `body` is the decoded JSON object."""

    protocol: ProtocolName
    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request for a turn, read by a protocol adapter.

    `messages` are the whole conversation, or what follows `previous_response_id`; the first `instructions` of them do
    not carry over to a request that names this one as its previous. `tools` are OpenAI function schemas as they are
    rendered; `loaded_tools` may be called as well, but stand in the conversation and not in the list. `sampling` holds
    what the client asked for under the names of `SamplingParams`; `max_tokens` is None when it named no cap. `stop` are
    strings that end the turn. `samples` is how many answers are wanted. `template_kwargs` are variables for the chat
    template. `return_tokens`: the client wants ids and logprobs beside the text. `ignored` names what was asked and is
    not done. `dialect` is the adapter's own, opaque to others.
    """

    wire: Wire
    messages: tuple[Message, ...]
    tools: tuple[ToolSchema, ...] = ()
    loaded_tools: tuple[ToolSchema, ...] = ()
    model: str = ""
    stream: bool = False
    max_tokens: int | None = None
    sampling: Mapping[str, float | int] = field(default_factory=dict[str, float | int])
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    samples: int = 1
    template_kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    previous_response_id: str = ""
    instructions: int = 0
    return_tokens: bool = False
    ignored: tuple[str, ...] = ()
    dialect: Any = None


@dataclass(frozen=True, slots=True)
class TurnHead:
    """What is known of a turn before its first token.

    `id` is 24 hex digits, unique over all gateways: response, message and call ids are made of it. `created` is in
    Unix seconds. `prompt_tokens` counts the exact prompt.
    """

    id: str
    model: str
    created: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class FinishedTurn:
    """A committed turn. `message` is what the client is shown; its joined stream events say exactly that.

    Calls stand in the order of their stream indexes; a broken one has `error` set and its text in `raw_arguments`.
    `stop_sequence` is the client's string that ended the turn, or "". `prompt_ids` [P], `token_ids` [T] and `logprobs`
    [T] (None when the engine gives none) are the record's own.
    """

    head: TurnHead
    message: Message
    finish_reason: FinishReason
    usage: Usage
    reasoning_tokens: int = 0
    stop_sequence: str = ""
    prompt_ids: list[int] = field(default_factory=list[int])
    token_ids: list[int] = field(default_factory=list[int])
    token_texts: list[str] = field(default_factory=list[str])
    logprobs: list[float] | None = None


def call_id(prefix: str, turn_id: str, index: int) -> str:
    """The id of call `index` of a turn, e.g. `call_id("toolu_", head.id, 0)`.

    Prefix, 24 hex digits and two more for the index: no client shortens or rewrites it when the prefix is the
    protocol's own (`call` for Chat, `toolu_` for Messages, `call_` for Responses).
    """
    return f"{prefix}{turn_id}{index:02x}"
