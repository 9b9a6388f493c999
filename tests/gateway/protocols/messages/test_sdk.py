"""The `anthropic` SDK reads the answers, and what it sends back is read as what was stored."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.gateway.protocols.messages.support import ADAPTER, finished, read, said_by, same, streamed, wire
from uni_agent.gateway.canonical import FinishReason, ModelRequest
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.types import Message

anthropic: Any = pytest.importorskip("anthropic")

Answer = tuple[int, dict[str, str], bytes]

BASH: dict[str, Any] = {
    "name": "bash",
    "description": "Run.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
GO: dict[str, Any] = {"role": "user", "content": "go"}
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls -la", "n": 1}}\n</tool_call>'
TWO_CALLS = f"<think>\nplan\n</think>\n\nBoth.\n{CALL}\n{CALL.replace('ls -la', 'pwd')}"


class Gateway:
    """Answers the SDK's requests with scripted generations; keeps what was asked and what was answered."""

    def __init__(self, script: Iterable[str | GatewayError], reason: FinishReason = "stop", stop: str = "") -> None:
        self._script = iter(script)
        self._reason: FinishReason = reason
        self._stop = stop
        self.requests: list[ModelRequest] = []
        self.stored: list[Message] = []
        self.calls = 0

    def __call__(self, method: str, path: str, headers: dict[str, str], content: bytes) -> Answer:
        assert method == "POST"
        self.calls += 1
        try:
            return self._answer(path, json.loads(content))
        except GatewayError as error:
            status, headers_, body = ADAPTER.error(error)
            return status, {"content-type": "application/json", **headers_}, json.dumps(body).encode()

    def _answer(self, path: str, body: dict[str, Any]) -> Answer:
        json_type = {"content-type": "application/json"}
        if path.endswith("/count_tokens"):
            self.requests.append(ADAPTER.read_count(wire(body, path)))
            return 200, json_type, json.dumps(ADAPTER.count_response(17)).encode()
        request = ADAPTER.read(wire(body, path))
        self.requests.append(request)
        text = next(self._script)
        if isinstance(text, GatewayError):
            raise text
        events, message = said_by(text, request.tools)
        self.stored.append(message)
        turn = finished(message, self._reason, stop=self._stop)
        if request.stream:
            return 200, {"content-type": "text/event-stream"}, streamed(events, turn)
        return 200, json_type, json.dumps(ADAPTER.response(request, [turn])).encode()


def http() -> Any:
    """The HTTP library that this version of the SDK is built on."""
    names = [base.__module__.split(".")[0] for base in anthropic.DefaultHttpxClient.__mro__]
    return importlib.import_module(next(name for name in names if name.startswith("httpx")))


def _handler(gateway: Callable[..., Answer]) -> Any:
    def handle(request: Any) -> Any:
        status, headers, content = gateway(
            request.method, request.url.path, {k.lower(): v for k, v in request.headers.items()}, request.content
        )
        return http().Response(status, headers=headers, content=content)

    return handle


def client(gateway: Callable[..., Answer], **fields: Any) -> Any:
    transport = http().MockTransport(_handler(gateway))
    return anthropic.Anthropic(
        api_key="k", base_url="http://gateway/s/1", http_client=http().Client(transport=transport), **fields
    )


def test_create_gives_the_sdks_own_blocks():
    gateway = Gateway([TWO_CALLS])
    message = client(gateway).messages.create(model="m", max_tokens=64, messages=[GO], tools=[BASH])
    assert message.type == "message" and message.role == "assistant" and message.stop_reason == "tool_use"
    thinking, text, one, two = message.content
    assert (thinking.type, thinking.thinking, bool(thinking.signature)) == ("thinking", "plan\n", True)
    assert (text.type, text.text) == ("text", "Both.")
    assert (one.type, one.name, one.input) == ("tool_use", "bash", {"command": "ls -la", "n": 1})
    assert two.input == {"command": "pwd", "n": 1} and one.id != two.id
    assert (message.usage.input_tokens, message.usage.output_tokens) == (140, 20)
    message.__class__.model_validate(message.model_dump())


def test_a_stream_is_iterated_event_by_event():
    gateway = Gateway([TWO_CALLS])
    events = list(client(gateway).messages.create(model="m", max_tokens=64, messages=[GO], tools=[BASH], stream=True))
    assert events[0].message.usage.input_tokens == 140
    assert events[-1].type == "message_stop" and events[-2].usage.output_tokens == 20
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta" and e.delta.type == "text_delta")


def test_the_stream_helper_gives_what_create_gives():
    whole = client(Gateway([TWO_CALLS])).messages.create(model="m", max_tokens=64, messages=[GO], tools=[BASH])
    with client(Gateway([TWO_CALLS])).messages.stream(model="m", max_tokens=64, messages=[GO], tools=[BASH]) as stream:
        assert "".join(stream.text_stream) == "Both."
        last = stream.get_final_message()
    assert last.model_dump(include=set(whole.__class__.model_fields)) == whole.model_dump()


async def test_the_async_client_streams_too():
    gateway = Gateway(["Hello."])
    transport = http().MockTransport(_handler(gateway))
    async_client = anthropic.AsyncAnthropic(
        api_key="k", base_url="http://gateway", http_client=http().AsyncClient(transport=transport)
    )
    async with async_client.messages.stream(model="m", max_tokens=64, messages=[GO]) as stream:
        assert "".join([text async for text in stream.text_stream]) == "Hello."
        assert (await stream.get_final_message()).stop_reason == "end_turn"


@pytest.mark.parametrize("way", ["create", "stream"])
def test_what_the_sdk_sends_back_is_the_stored_turn(way: str):
    gateway = Gateway([TWO_CALLS, "Between.\n" + CALL + "\nAfter.", "Done."])
    sdk = client(gateway)
    messages: list[Any] = [GO]
    for _ in range(3):
        wish: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": messages, "tools": [BASH], "system": "s"}
        if way == "create":
            answer = sdk.messages.create(**wish)
        else:
            with sdk.messages.stream(**wish) as stream:
                answer = stream.get_final_message()
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"ran {block.input['command']}"}
            for block in answer.content
            if block.type == "tool_use"
        ]
        messages += [{"role": "assistant", "content": answer.content}]
        messages += [{"role": "user", "content": results}] if results else []
    last = gateway.requests[-1].messages
    assert [m.role for m in last] == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    assert same(gateway.stored[0], last[2]) and same(gateway.stored[1], last[5])
    assert [m.content for m in last if m.role == "tool"] == ["ran ls -la", "ran pwd", "ran ls -la"]
    assert [m.tool_call_id for m in last[3:5]] == [c.id for c in last[2].tool_calls]


def test_the_tool_runner_falls_back_to_its_whole_history():
    def bash(command: str, n: int) -> str:
        """Run.

        Args:
            command: what
            n: times
        """
        return f"ran {command} {n}"

    gateway = Gateway([CALL, "Done."])
    tool = anthropic.beta_tool(bash)
    runner = client(gateway).beta.messages.tool_runner(model="m", max_tokens=64, messages=[GO], tools=[tool])
    last = runner.until_done()
    assert last.content[0].text == "Done."
    assert gateway.calls == len(gateway.requests) + 1  # the thread was refused once
    assert [m.role for m in gateway.requests[-1].messages] == ["user", "assistant", "tool"]
    assert gateway.requests[-1].messages[2].content == "ran ls -la 1"
    assert same(gateway.stored[0], gateway.requests[-1].messages[1])


def test_counting_tokens():
    gateway = Gateway([])
    assert client(gateway).messages.count_tokens(model="m", messages=[GO], tools=[BASH]).input_tokens == 17
    assert gateway.requests[0].messages == (Message("user", "go"),)


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("stop", "", "end_turn"),
        ("length", "", "max_tokens"),
        ("context", "", "max_tokens"),
        ("stop_sequence", "</s>", "stop_sequence"),
    ],
)
def test_the_sdk_knows_the_stop_reasons(reason: FinishReason, stop: str, expected: str):
    gateway = Gateway(["Half"], reason, stop)
    message = client(gateway).messages.create(model="m", max_tokens=4, messages=[GO], stop_sequences=["</s>"])
    assert (message.stop_reason, message.stop_sequence) == (expected, stop or None)
    assert message.__class__.model_validate(message.model_dump()).stop_reason == expected


@pytest.mark.parametrize(
    ("kind", "exception", "requests"),
    [
        (ErrorKind.INVALID_REQUEST, "BadRequestError", 1),
        (ErrorKind.CONTEXT_LENGTH, "BadRequestError", 1),
        (ErrorKind.AUTHENTICATION, "AuthenticationError", 1),
        (ErrorKind.PERMISSION, "PermissionDeniedError", 1),
        (ErrorKind.NOT_FOUND, "NotFoundError", 1),
        (ErrorKind.GONE, "APIStatusError", 1),
        (ErrorKind.TOO_LARGE, "APIStatusError", 1),
        (ErrorKind.BUDGET, "RateLimitError", 1),
        (ErrorKind.ENGINE, "InternalServerError", 2),
        (ErrorKind.OVERLOADED, "InternalServerError", 2),
    ],
)
def test_errors_raise_the_sdks_exceptions_and_only_what_may_pass_is_tried_again(
    kind: ErrorKind, exception: str, requests: int
):
    gateway = Gateway([GatewayError(kind, "no", retry_after=0.01) for _ in range(2)])
    with pytest.raises(getattr(anthropic, exception)) as caught:
        client(gateway, max_retries=1).messages.create(model="m", max_tokens=4, messages=[GO])
    assert gateway.calls == requests
    assert caught.value.body["type"] == "error" and "no" in caught.value.message


def test_stream_01_an_error_in_a_stream_raises_and_gives_no_answer():
    encoder = ADAPTER.stream(read(), finished(Message("assistant")).head)
    events, _ = said_by("Hel" + "\n" + CALL)
    sent = b"".join([encoder.opening(), *(encoder.event(e) for e in events)])
    sent += encoder.fail(GatewayError(ErrorKind.OVERLOADED, "connection reset"))

    def gateway(*_: Any) -> Answer:
        return 200, {"content-type": "text/event-stream"}, sent

    with (
        pytest.raises(anthropic.APIStatusError, match="connection reset"),
        client(gateway, max_retries=0).messages.stream(model="m", max_tokens=4, messages=[GO]) as stream,
    ):
        stream.get_final_message()
