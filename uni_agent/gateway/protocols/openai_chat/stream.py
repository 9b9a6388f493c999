"""A turn as chat completion chunks."""

from __future__ import annotations

from typing import Any

from uni_agent.gateway.canonical import FinishedTurn, TurnHead
from uni_agent.gateway.errors import GatewayError
from uni_agent.gateway.protocols.openai_chat.dialect import ChatDialect
from uni_agent.gateway.protocols.openai_chat.errors import error_body
from uni_agent.gateway.protocols.openai_chat.response import (
    arguments_text,
    completion_id,
    ending,
    is_custom,
    logprobs,
    usage,
    wire_call,
)
from uni_agent.gateway.protocols.sse import DONE, frame
from uni_agent.tokens.base import CallStarted, ParserEvent, TextDelta
from uni_agent.types import ToolCall


class ChatStream:
    """`StreamEncoder` of Chat Completions.

    What a committed turn says and no event said is sent before the end, so the client has the whole turn also when the
    engine did not stream. The input of a custom tool is sent whole: on the way it is a JSON string.
    """

    def __init__(self, dialect: ChatDialect, head: TurnHead) -> None:
        self._dialect = dialect
        self._head = head
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._arguments: list[list[str]] = []
        self._custom: list[bool] = []

    def opening(self) -> bytes:
        """The chunk with the role."""
        return self._delta({"role": "assistant", "content": ""})

    def event(self, event: ParserEvent) -> bytes:
        """The chunk of one event; nothing where it has nothing to say."""
        if isinstance(event, TextDelta):
            return self._text(event.text, reasoning=event.reasoning)
        if isinstance(event, CallStarted):
            return self._start(ToolCall("", event.name))
        return self._more(event.index, event.text)

    def heartbeat(self) -> bytes:
        """A chunk that says nothing.

        Comments do not reset the idle clock of some clients, chunks do. A client that asked for usage must know chunks
        without choices; others may look at the first choice of each.
        """
        return self._chunk([]) if self._dialect.usage else self._delta({})

    def finish(self, turn: FinishedTurn) -> bytes:
        """What is left to say, the reason of the end, usage if it was asked for, and `[DONE]`."""
        said = turn.message
        out = [
            self._text(_rest(said.reasoning, self._reasoning), reasoning=True),
            self._text(_rest(said.content, self._content), reasoning=False),
        ]
        for index, call in enumerate(said.tool_calls):
            if index >= len(self._arguments):
                out.append(self._start(call))
            if self._custom[index]:
                out.append(self._input(index, call))
            else:
                out.append(self._more(index, _rest(arguments_text(call), self._arguments[index])))
        out.append(self._end(turn))
        if self._dialect.usage:
            out.append(self._chunk([], usage=usage([turn])))
        return b"".join([*out, DONE])

    def fail(self, error: GatewayError) -> bytes:
        """The error as the stream's last event; without `finish_reason` and `[DONE]` no client takes it for an end."""
        return frame(error_body(error))

    def _text(self, text: str, *, reasoning: bool) -> bytes:
        if not text:
            return b""
        (self._reasoning if reasoning else self._content).append(text)
        return self._delta({"reasoning_content" if reasoning else "content": text})

    def _start(self, call: ToolCall) -> bytes:
        """Id and name stand in a call's first chunk alone: some clients join what is repeated."""
        index = len(self._arguments)
        self._arguments.append([])
        self._custom.append(is_custom(self._dialect, call.name))
        if self._dialect.legacy:
            return self._delta({"function_call": {"name": call.name, "arguments": ""}}) if index == 0 else b""
        out = wire_call(self._dialect, self._head.id, index, call)
        if self._custom[index]:
            out["custom"]["input"] = ""
        else:
            out["function"]["arguments"] = ""
        return self._delta({"tool_calls": [{"index": index, **out}]})

    def _more(self, index: int, text: str) -> bytes:
        if not text or index >= len(self._arguments):
            return b""
        self._arguments[index].append(text)
        if self._custom[index]:
            return b""
        if self._dialect.legacy:
            return self._delta({"function_call": {"arguments": text}}) if index == 0 else b""
        return self._delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _input(self, index: int, call: ToolCall) -> bytes:
        text: str = wire_call(self._dialect, self._head.id, index, call)["custom"]["input"]
        return self._delta({"tool_calls": [{"index": index, "custom": {"input": text}}]}) if text else b""

    def _end(self, turn: FinishedTurn) -> bytes:
        choice: dict[str, Any] = {"finish_reason": ending(self._dialect, turn)}
        top: dict[str, Any] = {}
        if self._dialect.logprobs:
            choice["logprobs"] = logprobs(turn)
        if self._dialect.token_ids:
            choice["token_ids"] = turn.token_ids
            top["prompt_token_ids"] = turn.prompt_ids
        return self._delta({}, choice, **top)

    def _delta(self, delta: dict[str, Any], choice: dict[str, Any] | None = None, **top: Any) -> bytes:
        whole = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None, **(choice or {})}
        return self._chunk([whole], **top)

    def _chunk(self, choices: list[dict[str, Any]], **top: Any) -> bytes:
        head = self._head
        out: dict[str, Any] = {
            "id": completion_id(head),
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "choices": choices,
        }
        if self._dialect.usage:
            out["usage"] = None
        return frame({**out, **top})


def _rest(whole: str, shown: list[str]) -> str:
    """What of `whole` is not shown yet; "" when something else was shown, which nothing can take back."""
    said = "".join(shown)
    return whole[len(said) :] if whole.startswith(said) else ""
