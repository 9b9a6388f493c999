"""The real `openai` client against the adapter's bytes, and our own client over a real port."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest
from aiohttp import web

from tests.gateway.protocols.chat.support import ADAPTER, BASH, HEAD, PATCH, call, read_body, same, stream, turn
from tests.support.openai_server import serving
from uni_agent.gateway.canonical import FinishedTurn
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.protocols.sse import comment
from uni_agent.model.config import OpenAIModelConfig
from uni_agent.tokens.base import ArgumentsDelta, CallStarted, ParserEvent, TextDelta
from uni_agent.types import Message

# The client's HTTP library goes by two names, depending on its version.
http: Any = importlib.import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])

USER = {"role": "user", "content": "hi"}

TURNS: dict[str, tuple[list[ParserEvent], FinishedTurn]] = {
    "text": ([TextDelta("Hel"), TextDelta("lo")], turn("Hello")),
    "empty": ([], turn("")),
    "thinking": ([TextDelta("pl", reasoning=True), TextDelta("an", reasoning=True)], turn("Hello", reasoning="plan")),
    "one call": (
        [CallStarted(0, "bash"), ArgumentsDelta(0, '{ "command":'), ArgumentsDelta(0, '"ls \\u00e9"}')],
        turn("", call("bash", '{ "command":"ls \\u00e9"}')),
    ),
    "parallel calls with text and thinking": (
        [
            TextDelta("plan", reasoning=True),
            TextDelta("Two."),
            CallStarted(0, "bash"),
            ArgumentsDelta(0, '{"command": "a"}'),
            CallStarted(1, "bash"),
            ArgumentsDelta(1, "{}"),
        ],
        turn("Two.", call("bash", '{"command": "a"}'), call("bash", "{}"), reasoning="plan"),
    ),
    "broken call": (
        [CallStarted(0, "bash"), ArgumentsDelta(0, '{"command": "l')],
        turn("", call("bash", '{"command": "l', error="no JSON")),
    ),
    "not streamed": ([], turn("Two.", call("bash", '{"command": "a"}'), reasoning="plan")),
}


def answering(reply: Callable[[dict[str, Any]], tuple[int, dict[str, str], bytes]]) -> Any:
    """A transport that plays the gateway."""

    def handle(request: Any) -> Any:
        status, headers, content = reply(json.loads(request.content))
        return http.Response(status, headers=headers, content=content)

    return http.MockTransport(handle)


def gateway(events: Sequence[ParserEvent], finished: FinishedTurn) -> Any:
    def reply(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        request = read_body(body)
        if request.stream:
            return 200, {"content-type": "text/event-stream"}, comment() + stream(request, events, finished)
        answer = ADAPTER.response(request, [finished] * request.samples)
        return 200, {"content-type": "application/json"}, json.dumps(answer).encode()

    return answering(reply)


def client_of(transport: Any, **options: Any) -> openai.OpenAI:
    options = {"max_retries": 0, **options}
    return openai.OpenAI(
        api_key="k", base_url="http://gateway.test/v1", http_client=http.Client(transport=transport), **options
    )


def check_echo(finished: FinishedTurn, message: Any) -> None:
    """What the client puts into its next request means the turn."""
    echo = json.loads(json.dumps(message.model_dump(exclude_unset=True)))
    calls: list[dict[str, Any]] = echo.get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": made["id"], "content": made["id"]} for made in reversed(calls)]
    found = read_body({"messages": [USER, echo, *results]}).messages
    assert found[1].reasoning == finished.message.reasoning
    ids = [made.id for made in found[1].tool_calls]
    said = replace(
        finished.message,
        tool_calls=tuple(replace(made, id=id_) for made, id_ in zip(finished.message.tool_calls, ids, strict=True)),
    )
    answers = [Message("tool", id_, tool_call_id=id_) for id_ in ids]
    assert same([Message("user", "hi"), said, *answers], found)


@pytest.mark.parametrize("name", TURNS)
def test_a_whole_answer_comes_back_as_the_turn(name: str) -> None:
    events, finished = TURNS[name]
    messages: Any = [USER]
    tools: Any = [BASH]
    answer = client_of(gateway(events, finished)).chat.completions.create(model="m", messages=messages, tools=tools)
    choice = answer.choices[0]
    assert choice.message.content == (finished.message.content or (None if finished.message.tool_calls else ""))
    assert choice.finish_reason == ("tool_calls" if finished.message.tool_calls else "stop")
    assert answer.usage is not None
    assert answer.usage.total_tokens == 16
    check_echo(finished, choice.message)


@pytest.mark.parametrize("name", TURNS)
@pytest.mark.parametrize("usage", [False, True])
def test_what_the_streaming_helper_joins_comes_back_as_the_turn(name: str, usage: bool) -> None:
    events, finished = TURNS[name]
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    tools: Any = [BASH]
    messages: Any = [USER]
    with client_of(gateway(events, finished)).chat.completions.stream(
        model="m", messages=messages, tools=tools, **options
    ) as running:
        for _ in running:
            pass
        final = running.get_final_completion()
    assert final.choices[0].finish_reason == ("tool_calls" if finished.message.tool_calls else "stop")
    assert (final.usage is not None) is usage
    for got, made in zip(final.choices[0].message.tool_calls or [], finished.message.tool_calls, strict=True):
        assert got.function.arguments == made.raw_arguments
        assert got.id.startswith("call" + HEAD.id)
    check_echo(finished, final.choices[0].message)


@pytest.mark.parametrize("name", TURNS)
async def test_a_loop_that_looks_at_the_first_choice_of_every_chunk_works(name: str) -> None:
    events, finished = TURNS[name]
    client = openai.AsyncOpenAI(
        api_key="k",
        base_url="http://gateway.test/v1",
        http_client=http.AsyncClient(transport=gateway(events, finished)),
    )
    messages: Any = [USER]
    text = ""
    async for chunk in await client.chat.completions.create(model="m", messages=messages, stream=True):
        text += chunk.choices[0].delta.content or ""
    assert text == finished.message.content


def test_logprobs_reach_the_client_streamed_and_whole() -> None:
    finished = turn("ab", token_ids=[7, 8], token_texts=["a", "b"], logprobs=[-0.5, -1.5], prompt_ids=[1])
    client = client_of(gateway([TextDelta("ab")], finished))
    messages: Any = [USER]
    answer = client.chat.completions.create(model="m", messages=messages, logprobs=True)
    with client.chat.completions.stream(model="m", messages=messages, logprobs=True) as running:
        final = running.get_final_completion()
    for choice in (answer.choices[0], final.choices[0]):
        assert choice.logprobs is not None
        assert [(t.token, t.logprob, t.bytes) for t in choice.logprobs.content or []] == [
            ("a", -0.5, [97]),
            ("b", -1.5, [98]),
        ]


def test_a_custom_tools_call_is_one_to_the_client_and_comes_back() -> None:
    finished = turn("", call("apply_patch", '{"input": "*** Begin"}'))
    messages: Any = [USER]
    tools: Any = [PATCH]
    answer = client_of(gateway([], finished)).chat.completions.create(model="m", messages=messages, tools=tools)
    (made,) = answer.choices[0].message.tool_calls or []
    assert made.type == "custom"
    assert made.custom.input == "*** Begin"
    check_echo(finished, answer.choices[0].message)


def test_several_samples_are_choices_to_the_client() -> None:
    messages: Any = [USER]
    answer = client_of(gateway([], turn("a"))).chat.completions.create(model="m", messages=messages, n=3)
    assert [(c.index, c.message.content) for c in answer.choices] == [(0, "a"), (1, "a"), (2, "a")]


# ---------------------------------------------------------------------------------------------- errors


def failing(error: GatewayError, calls: list[int]) -> Any:
    def reply(_: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        calls.append(1)
        status, headers, body = ADAPTER.error(error)
        return status, {"content-type": "application/json", **headers}, json.dumps(body).encode()

    return answering(reply)


@pytest.mark.parametrize(
    ("kind", "raised", "tries"),
    [
        (ErrorKind.INVALID_REQUEST, openai.BadRequestError, 1),
        (ErrorKind.CONTEXT_LENGTH, openai.BadRequestError, 1),
        (ErrorKind.AUTHENTICATION, openai.AuthenticationError, 1),
        (ErrorKind.PERMISSION, openai.PermissionDeniedError, 1),
        (ErrorKind.NOT_FOUND, openai.NotFoundError, 1),
        (ErrorKind.GONE, openai.APIStatusError, 1),
        (ErrorKind.TOO_LARGE, openai.APIStatusError, 1),
        (ErrorKind.BUDGET, openai.RateLimitError, 1),
        (ErrorKind.RATE_LIMITED, openai.RateLimitError, 2),
        (ErrorKind.ENGINE, openai.InternalServerError, 2),
        (ErrorKind.OVERLOADED, openai.InternalServerError, 2),
        (ErrorKind.TIMEOUT, openai.InternalServerError, 2),
    ],
)
def test_the_client_raises_what_each_error_is_and_tries_again_where_it_should(
    kind: ErrorKind, raised: type[openai.APIStatusError], tries: int
) -> None:
    calls: list[int] = []
    client = client_of(failing(GatewayError(kind, "what is wrong", param="messages[0]"), calls), max_retries=1)
    messages: Any = [USER]
    with pytest.raises(raised) as caught:
        client.chat.completions.create(model="m", messages=messages)
    assert len(calls) == tries
    assert "what is wrong" in caught.value.message
    assert caught.value.param == "messages[0]"


def test_proto_19_the_code_of_a_full_window_reaches_the_client() -> None:
    error = GatewayError(ErrorKind.CONTEXT_LENGTH, "x", details={"prompt_tokens": 140, "limit": 100})
    messages: Any = [USER]
    with pytest.raises(openai.BadRequestError) as caught:
        client_of(failing(error, [])).chat.completions.create(model="m", messages=messages)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
    assert "maximum context length is 100 tokens" in str(caught.value)


def test_stream_01_an_error_in_mid_stream_is_raised() -> None:
    def reply(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        encoder = ADAPTER.stream(read_body(body), HEAD)
        broken = (
            encoder.opening() + encoder.event(TextDelta("Hel")) + encoder.fail(GatewayError(ErrorKind.ENGINE, "gone"))
        )
        return 200, {"content-type": "text/event-stream"}, broken

    messages: Any = [USER]
    seen: list[str] = []
    with pytest.raises(openai.APIError) as caught:
        for chunk in client_of(answering(reply)).chat.completions.create(model="m", messages=messages, stream=True):
            seen.append(chunk.choices[0].delta.content or "")
    assert seen == ["", "Hel"]
    assert (caught.value.message, caught.value.type, caught.value.code) == ("gone", "server_error", "engine_error")


# ---------------------------------------------------------------------------------------------- our own client


async def test_our_client_gets_the_ids_and_logprobs_of_the_record() -> None:
    made = call("bash", '{"command": "ls"}')
    turns = [
        turn("", made, reasoning="plan", prompt_ids=[1, 2], token_ids=[3, 4, 5, 6, 7], logprobs=[-0.1] * 5),
        turn("done", prompt_ids=[1, 2, 3, 4, 5, 6, 7, 8], token_ids=[9] * 5, logprobs=[-0.25] * 5),
    ]
    histories: list[Sequence[Message]] = []

    def play(body: dict[str, Any]) -> web.Response:
        request = read_body(body)
        assert request.return_tokens
        histories.append(request.messages)
        return web.json_response(ADAPTER.response(request, [turns[len(histories) - 1]]))

    async with serving(play) as server, asyncio.timeout(30):
        config = OpenAIModelConfig(type="openai_compatible", model="m", base_url=server.url, token_ids=True)
        session = await config.build(None).open("t#0", [Message("user", "hi")], [BASH])
        first = await session.query()
        result = Message("tool", "ok", tool_call_id=first.message.tool_calls[0].id)
        await session.observe([result])
        second = await session.query()
    (chain,) = session.caches
    assert chain.ids == [*turns[1].prompt_ids, *turns[1].token_ids]
    assert [value for value in chain.response_logprobs or [] if value] == [-0.1] * 5 + [-0.25] * 5
    assert first.finish_reason == "tool_calls"
    assert second.message.content == "done"
    assert same([Message("user", "hi"), turns[0].message, result], histories[1])
