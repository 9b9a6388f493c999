"""Streams: real, in each protocol's form, and honest about failure."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from tests.gateway.support import Answer, Gateway, Opened, call, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.tokens.renderer import ChatTemplateRenderer

HI = [{"role": "user", "content": "hi"}]
PROTOCOLS = ("chat", "responses", "messages")


async def ask(gateway: Gateway, protocol: str, session: Opened, **fields: Any) -> Answer:
    """The same small request in one of the protocols."""
    content: Any = "hi" if protocol == "responses" else HI
    return await getattr(gateway, protocol)(session, content, **fields)


def ended_well(protocol: str, answer: Answer) -> bool:
    """Whether the stream says that the turn is complete."""
    names = [name for name, _ in answer.events]
    if protocol == "chat":
        return answer.events[-1][1] == "[DONE]"
    return names[-1] in ("message_stop", "response.completed", "response.incomplete")


def chunks(answer: Answer) -> list[Any]:
    """What the events of a Chat stream carry, without the mark of its end."""
    return [data for _, data in answer.events if data != "[DONE]"]


def text_of(protocol: str, answer: Answer) -> str:
    """The joined text deltas."""
    if protocol == "chat":
        return "".join(
            choice["delta"].get("content") or "" for data in chunks(answer) for choice in data.get("choices", ())
        )
    out: list[str] = []
    for name, data in answer.events:
        if name == "response.output_text.delta":
            out.append(data["delta"])
        elif name == "content_block_delta" and data["delta"]["type"] == "text_delta":
            out.append(data["delta"]["text"])
    return "".join(out)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_tokens_leave_as_they_arrive(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    turn = ScriptedTurn(renderer.tokenizer.encode("first and then the second"), token_delay=0.1)
    async with serving(renderer, [turn]) as gateway:
        session = await gateway.open()
        paths = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
        content: Any = {"input": "hi"} if protocol == "responses" else {"messages": HI}
        times: list[float] = []
        headers = {"Authorization": f"Bearer {session.api_key}"}
        async with gateway.http.post(
            gateway.url + paths[protocol], json={**content, "stream": True}, headers=headers
        ) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream")
            assert response.headers["Cache-Control"] == "no-cache"
            async for _ in response.content.iter_any():
                times.append(time.monotonic())
        assert times[-1] - times[0] > 0.3, "everything came at once"
        assert len(times) > 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_stream_and_a_whole_answer_leave_the_same_record(make: MakeRenderer, protocol: str) -> None:
    turn = call("ls", before="<think>\nhm\n</think>\n\nLook: ")
    async with serving(make("qwen3"), [turn]) as gateway:
        whole, streamed = await gateway.open(), await gateway.open()
        await ask(gateway, protocol, whole)
        answer = await ask(gateway, protocol, streamed, stream=True)
        assert ended_well(protocol, answer) and text_of(protocol, answer) == "Look:"
        records = [(await gateway.finalize(s))["trajectories"] for s in (whole, streamed)]
        for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs"):
            assert records[0][0][name] == records[1][0][name]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_engine_that_dies_in_mid_stream_is_no_answer(make: MakeRenderer, protocol: str) -> None:
    """STREAM-01."""
    renderer = make("qwen3")
    ids = renderer.tokenizer.encode("Hello there, this is it")
    async with serving(renderer, [ScriptedTurn(ids, fail_after=4), ScriptedTurn(ids)]) as gateway:
        session = await gateway.open()
        answer = await ask(gateway, protocol, session, stream=True)
        assert answer.status == 200 and text_of(protocol, answer)
        assert not ended_well(protocol, answer), answer.body
        assert answer.cut, "a clean end counts as success with many clients"
        last_name, last = answer.events[-1]
        assert {"chat": "error" in last, "responses": last_name == "response.failed"}.get(
            protocol, last_name == "error"
        )
        info = await gateway.info(session)
        assert info["turns"] == 0 and info["accounting"]["dropped"] == {"failed": 4}
        again = await ask(gateway, protocol, session, stream=True)
        assert ended_well(protocol, again)
        finished = await gateway.finalize(session)
        assert len(finished["trajectories"]) == 1 and finished["accounting"]["trained"] == len(ids) + 1


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_engine_that_fails_before_the_first_token_is_an_http_error(make: MakeRenderer, protocol: str) -> None:
    async with serving(make("qwen3"), [ScriptedTurn([60], fault="raise")]) as gateway:
        session = await gateway.open()
        answer = await ask(gateway, protocol, session, stream=True)
        assert answer.status in (500, 502, 503) and answer.json["error"]["message"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_silent_turn_shows_that_it_lives(make: MakeRenderer, protocol: str) -> None:
    """STREAM-08: heartbeats that each protocol's clients count."""
    renderer = make("qwen3")
    turn = ScriptedTurn(renderer.tokenizer.encode("late"), delay=1.0)
    async with serving(renderer, [turn], config={"heartbeat": 0.2}) as gateway:
        session = await gateway.open()
        answer = await ask(gateway, protocol, session, stream=True)
        assert ended_well(protocol, answer) and text_of(protocol, answer) == "late"
        if protocol == "messages":
            beats = [name for name, _ in answer.events].count("ping")
        elif protocol == "responses":
            beats = [name for name, _ in answer.events].count("response.in_progress") - 1
        else:
            beats = sum(not text_of_chunk(data) for data in chunks(answer)) - 2
        assert beats >= 2, answer.body


def text_of_chunk(data: dict[str, Any]) -> bool:
    """Whether a chunk of the Chat protocol says anything."""
    return any(c["delta"].get("content") or c["finish_reason"] for c in data["choices"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_end_is_told_after_the_commit(make: MakeRenderer, protocol: str) -> None:
    """A client that has read the terminal event finds its turn in the record, always."""
    async with serving(make("qwen3"), backend=repeating(make("qwen3"))) as gateway:
        session = await gateway.open()
        for number in range(1, 6):
            answer = await ask(gateway, protocol, session, stream=True)
            assert ended_well(protocol, answer)
            assert (await gateway.info(session))["turns"] == number


def repeating(renderer: ChatTemplateRenderer) -> ScriptedBackend:
    return ScriptedBackend(["ok"], encode=renderer.tokenizer.encode, repeat=True)


async def test_parallel_calls_stream_one_after_the_other(make: MakeRenderer) -> None:
    """STREAM-02."""
    both = call("ls", before="Two. ") + "\n" + call("pwd")
    async with serving(make("qwen3"), [both, both]) as gateway:
        session = await gateway.open()
        answer = await gateway.messages(session, HI, stream=True)
        opened: list[int] = []
        for name, data in answer.events:
            if name == "content_block_start":
                assert not opened, "a block opens before the last one is closed"
                opened.append(data["index"])
            elif name == "content_block_stop":
                assert opened.pop() == data["index"]
        starts = [data for name, data in answer.events if name == "content_block_start"]
        assert [data["index"] for data in starts] == [0, 1, 2]
        inputs: dict[int, str] = {}
        for name, data in answer.events:
            if name == "content_block_delta" and data["delta"]["type"] == "input_json_delta":
                inputs[data["index"]] = inputs.get(data["index"], "") + data["delta"]["partial_json"]
        assert [json.loads(text) for text in inputs.values()] == [{"command": "ls"}, {"command": "pwd"}]


async def test_one_call_alone_where_the_client_takes_one(make: MakeRenderer) -> None:
    """PROTO-08: what the client is not shown is no part of the turn, and counted."""
    renderer = make("qwen3")
    both = call("ls", before="Two. ") + "\n" + call("pwd")
    async with serving(renderer, [both, both, "done"]) as gateway:
        for stream in (False, True):
            session = await gateway.open()
            body = {"type": "auto", "disable_parallel_tool_use": True}
            answer = await gateway.messages(session, HI, tool_choice=body, stream=stream)
            assert answer.body.count(b'"toolu_') == 1
            finished = await gateway.finalize(session)
            [trajectory] = finished["trajectories"]
            text = renderer.decode(trajectory["response_ids"])
            assert text.endswith("</tool_call>") and "pwd" not in text
            assert finished["accounting"]["dropped"]["parallel_tool_calls"] > 0


async def test_a_stop_string_ends_the_turn(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    turn = ScriptedTurn(renderer.tokenizer.encode("Hello STOP there"), piece=1000)
    async with serving(renderer, [turn]) as gateway:
        for stream in (False, True):
            session = await gateway.open()
            answer = await gateway.messages(session, HI, stop_sequences=["STOP"], stream=stream)
            shown = text_of("messages", answer) if stream else answer.json["content"][0]["text"]
            assert shown.strip() == "Hello"
            assert b'"stop_sequence":"STOP"' in answer.body
            finished = await gateway.finalize(session)
            [trajectory] = finished["trajectories"]
            assert "there" not in renderer.decode(trajectory["response_ids"])
            assert finished["accounting"]["dropped"]["stop_sequence"] > 0


async def test_weights_that_change_in_mid_turn_are_no_end(make: MakeRenderer) -> None:
    """LIFE-05."""
    renderer = make("qwen3")
    encode = renderer.tokenizer.encode
    script = [
        ScriptedTurn(encode("par"), finish_reason="abort", weight_version="v1"),
        ScriptedTurn(encode("tial"), weight_version="v2"),
    ]
    async with serving(renderer, script) as gateway:
        session = await gateway.open()
        answer = await gateway.chat(session, HI, stream=True)
        assert text_of("chat", answer) == "partial" and ended_well("chat", answer)
        [trajectory] = (await gateway.finalize(session))["trajectories"]
        assert [span[0] for span in trajectory["weight_spans"]] == ["v1", "v2"]


async def test_many_streams_at_once_do_not_mix(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    scripts = {f"s{i}": [ScriptedTurn(renderer.tokenizer.encode(f"answer {i}"), token_delay=0.01)] for i in range(24)}
    backend = ScriptedBackend(scripts=scripts)
    async with serving(renderer, backend=backend) as gateway:
        sessions = [await gateway.open(f"s{i}") for i in range(24)]
        answers = await asyncio.gather(
            *(ask(gateway, PROTOCOLS[i % 3], session, stream=True) for i, session in enumerate(sessions))
        )
        for i, answer in enumerate(answers):
            assert text_of(PROTOCOLS[i % 3], answer) == f"answer {i}"


async def test_a_turn_that_ends_with_its_first_call_was_not_cut(make: MakeRenderer) -> None:
    """The second call, which the cap on tokens cut, is no part of the turn; the first one is whole."""
    renderer = make("qwen3")
    ids = renderer.tokenizer.encode(call("ls") + "\n" + call("pwd"))
    turn = ScriptedTurn(ids[:-4], finish_reason="length", piece=1000)
    async with serving(renderer, [turn]) as gateway:
        for stream in (False, True):
            session = await gateway.open()
            answer = await gateway.chat(session, HI, parallel_tool_calls=False, stream=stream)
            assert b'"finish_reason":"tool_calls"' in answer.body
            finished = await gateway.finalize(session)
            assert finished["accounting"]["dropped"]["parallel_tool_calls"] > 0
