"""The real `openai` SDK against the adapter, without a network."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import BadRequestError, OpenAI

from tests.gateway.protocols.responses.support import ADAPTER, PARAMETERS, read_body, result, same, say, user
from uni_agent.gateway.canonical import ModelRequest, TurnHead
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.types import Message

LS = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
EDIT = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "a\\nb"}}\n</tool_call>'
TURN = f"<think>\nhm\n</think>\n\nLooking.\n{LS}\n{EDIT}"
TOOLS: list[Any] = [
    {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False},
    {"type": "custom", "name": "apply_patch"},
]


class Gateway:
    """Answers each request with the next text, and keeps what it read and what it committed."""

    def __init__(self, *texts: str | GatewayError, finish: Any = "stop") -> None:
        self.texts = list(texts)
        self.finish = finish
        self.read: list[ModelRequest] = []
        self.turns: list[Message] = []
        http: Any = httpx.Client(transport=httpx.MockTransport(self.answer))
        self.client = OpenAI(api_key="k", base_url="http://gateway/v1", http_client=http, max_retries=0)

    def answer(self, sent: httpx.Request) -> httpx.Response:
        request = read_body(json.loads(sent.content))
        self.read.append(request)
        text = self.texts.pop(0)
        head = TurnHead(f"{len(self.read):024x}", "policy", 1_760_000_000, 5)
        if isinstance(text, GatewayError) and not request.stream:
            status, headers, body = ADAPTER.error(text)
            return httpx.Response(status, headers=dict(headers), json=body)
        encoder = ADAPTER.stream(request, head)
        if isinstance(text, GatewayError):
            return self.sse(encoder.opening() + encoder.fail(text))
        said = say(request, text, head=head, finish=self.finish)
        self.turns.append(said.turn.message)
        if not request.stream:
            return httpx.Response(200, json=ADAPTER.response(request, [said.turn]))
        beat = encoder.heartbeat
        return self.sse(
            b"".join([encoder.opening(), *(encoder.event(e) + beat() for e in said.events), encoder.finish(said.turn)])
        )

    @staticmethod
    def sse(data: bytes) -> httpx.Response:
        return httpx.Response(200, content=data, headers={"content-type": "text/event-stream"})


def results(output: list[Any]) -> list[dict[str, Any]]:
    return [result(item.call_id, "ok", f"{item.type}_output") for item in output if hasattr(item, "call_id")]


def stored(gateway: Gateway) -> list[Message]:
    (turn,) = gateway.turns
    return [Message("user", "go"), turn, *(Message("tool", "ok", tool_call_id=c.id) for c in turn.tool_calls)]


@pytest.mark.parametrize("include", [[], ["reasoning.encrypted_content"]])
def test_create_and_what_it_sends_back(include: Any) -> None:
    gateway = Gateway(TURN, "done")
    items: list[Any] = [user("go")]
    response = gateway.client.responses.create(model="m", input=items, tools=TOOLS, include=include, store=False)
    assert response.output_text == "Looking." and response.usage and response.usage.input_tokens == 11
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    items += [*response.output, *results(response.output)]
    turn = stored(gateway)
    assert gateway.client.responses.create(model="m", input=items, tools=TOOLS).output_text == "done"
    assert same(turn, gateway.read[1].messages)
    assert gateway.read[1].messages[1].reasoning == turn[1].reasoning


def test_raw_stream_and_what_it_sends_back() -> None:
    gateway = Gateway(TURN, "done")
    items: list[Any] = [user("go")]
    events = list(gateway.client.responses.create(model="m", input=items, tools=TOOLS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert last.type == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Looking."
    items += [*last.response.output, *results(last.response.output)]
    turn = stored(gateway)
    gateway.client.responses.create(model="m", input=items, tools=TOOLS)
    assert same(turn, gateway.read[1].messages)


@pytest.mark.parametrize("text", [TURN, "hi", LS, EDIT, EDIT[:-20], f"a\n{LS}\nb\n{LS}\nc", f"{TURN}\nand\n{EDIT}", ""])
@pytest.mark.parametrize("reasoning", [None, {"summary": "auto"}])
def test_the_stream_helper_follows_every_event(text: str, reasoning: Any) -> None:
    gateway = Gateway(text, "done")
    options: dict[str, Any] = {"reasoning": reasoning} if reasoning else {}
    with gateway.client.responses.stream(model="m", input="go", tools=TOOLS, **options) as stream:
        events: list[Any] = list(stream)
        response = stream.get_final_response()
    done = [event.item for event in events if event.type == "response.output_item.done"]
    final: list[Any] = list(response.output)
    assert [item.id for item in final] == [item.id for item in done]
    items: list[Any] = [user("go"), *final, *results(final)]
    expected = [message for message in stored(gateway) if message != Message("assistant")]
    gateway.client.responses.create(model="m", input=items, tools=TOOLS)
    assert same(expected, gateway.read[1].messages)


def test_a_previous_response_is_named_as_it_was_given_out() -> None:
    gateway = Gateway("hi", "again")
    first = gateway.client.responses.create(model="m", input="go")
    second = gateway.client.responses.create(model="m", input="more", previous_response_id=first.id)
    assert gateway.read[1].previous_response_id == first.id == second.previous_response_id
    assert gateway.read[1].messages == (Message("user", "more"),)


def test_a_turn_that_was_cut_is_incomplete() -> None:
    gateway = Gateway("half an ans", "half an ans", finish="length")
    response = gateway.client.responses.create(model="m", input="go")
    assert response.status == "incomplete" and response.incomplete_details
    assert response.incomplete_details.reason == "max_output_tokens"
    assert list(gateway.client.responses.create(model="m", input="go", stream=True))[-1].type == "response.incomplete"


def test_errors_reach_the_sdks_own_classes() -> None:
    full = GatewayError(ErrorKind.CONTEXT_LENGTH, "full", details={"limit": 9, "prompt_tokens": 10})
    gateway = Gateway(full, full)
    with pytest.raises(BadRequestError) as caught:
        gateway.client.responses.create(model="m", input="go")
    assert caught.value.code == "context_length_exceeded"
    failed = list(gateway.client.responses.create(model="m", input="go", stream=True))[-1]
    assert failed.type == "response.failed" and failed.response.error
    assert failed.response.error.code == "context_length_exceeded"
