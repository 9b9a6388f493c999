"""Streams, concurrency and life cycle: faults that other gateways had, by the id of their case, end to end over HTTP.

STREAM-04 speaks of what an upstream sends; here it is held for what this gateway sends.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.gateway.cases.support import (
    EACH,
    STREAMED,
    engine,
    finished,
)
from tests.gateway.replay.agent import Agent, calls, said
from tests.gateway.replay.record import NotingBackend
from tests.gateway.support import call, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.scripted import ScriptedTurn

# ------------------------------------------------------------------------------------------------------------ streams


@EACH
@pytest.mark.parametrize("after", [0, 1, 5, 40])
async def test_stream_01_a_stream_that_breaks_at_any_place_is_no_success(
    make: MakeRenderer, protocol: str, after: int
) -> None:
    renderer = make("qwen3")
    ids = renderer.tokenizer.encode("<think>\nhm\n</think>\n\nHello there " + call("ls"))
    script = [ScriptedTurn(ids, fail_after=after), ScriptedTurn(ids), "done"]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream=True).user("go")
        answer = await agent.send()
        assert answer.status >= 500 or answer.cut
        for sign in (b"message_stop", b"message_delta", b"[DONE]", b"response.completed", b'"finish_reason":"'):
            assert sign not in answer.body
        [asked] = calls(await agent.ask())
        await agent.result(asked[3], "ok").ask()
        done = await finished(gateway, agent)
    assert [len(t["trained"]) for t in done["trajectories"]] == [2]
    assert done["accounting"]["dropped"] == ({"failed": after} if after else {})


async def test_stream_02_blocks_open_and_close_one_after_the_other(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    text = "<think>\nhm\n</think>\n\na" + "\n".join(call(f"echo {i}") for i in range(3))
    async with serving(renderer, backend=engine(renderer, [text])) as gateway:
        agent = Agent(gateway, await gateway.open(), "messages", stream=True).user("go")
        answer = await agent.send()
    fits = {"thinking": {"thinking_delta", "signature_delta"}, "text": {"text_delta"}, "tool_use": {"input_json_delta"}}
    current: tuple[int, str] | None = None
    kinds: list[str] = []
    for name, data in answer.events:
        if name == "content_block_start":
            assert current is None and data["index"] == len(kinds)
            current = data["index"], data["content_block"]["type"]
            kinds.append(current[1])
        elif name == "content_block_delta":
            assert current is not None and data["index"] == current[0] and data["delta"]["type"] in fits[current[1]]
        elif name == "content_block_stop":
            assert current is not None and data["index"] == current[0]
            current = None
    assert kinds == ["thinking", "text", "tool_use", "tool_use", "tool_use"]
    assert [json.loads(c[2]) for c in calls(agent.pieces(answer))] == [{"command": f"echo {i}"} for i in range(3)]


async def test_stream_04_a_calls_id_and_name_are_said_once(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("ls") + "\n" + call("pwd")])) as gateway:
        agent = Agent(gateway, await gateway.open(), stream=True).user("go")
        answer = await agent.send()
    deltas = [
        d for _, e in answer.events if e != "[DONE]" for c in e["choices"] for d in c["delta"].get("tool_calls", [])
    ]
    for index in (0, 1):
        mine = [delta for delta in deltas if delta["index"] == index]
        assert [bool(delta.get("id")) for delta in mine] == [True] + [False] * (len(mine) - 1)
        assert all("id" not in d and "name" not in d.get("function", {}) for d in mine[1:])
        assert json.loads("".join(d["function"]["arguments"] for d in mine))


async def test_stream_05_a_responses_stream_is_complete(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    text = "<think>\nhm\n</think>\n\nText first. " + call("ls") + "\n" + call("pwd")
    async with serving(renderer, backend=engine(renderer, [text])) as gateway:
        agent = Agent(gateway, await gateway.open(), "responses", stream=True).user("go")
        answer = await agent.send()
    events = [data for _, data in answer.events]
    names = [name for name, _ in answer.events]
    assert [data["sequence_number"] for data in events] == list(range(len(events)))
    assert all(name == data["type"] for name, data in answer.events)
    assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed"
    needs = "output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done"
    for needed in (*needs.split(), "function_call_arguments.delta", "function_call_arguments.done"):
        assert f"response.{needed}" in names
    done = [data["item"] for data in events if data["type"] == "response.output_item.done"]
    added = [data["item"]["id"] for data in events if data["type"] == "response.output_item.added"]
    assert [item["id"] for item in done] == added
    assert {data["item_id"] for data in events if "item_id" in data} <= set(added)
    last = events[-1]["response"]
    assert last["output"] == done and last["id"] == events[0]["response"]["id"] and last["model"] == "m"
    assert last["usage"]["output_tokens"] > 0
    deltas = "".join(d["delta"] for d in events if d["type"] == "response.output_text.delta")
    assert [d["text"] for d in events if d["type"] == "response.output_text.done"] == [deltas]


@EACH
async def test_stream_08_the_frames_are_each_protocols_own(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    slow = ScriptedTurn(renderer.tokenizer.encode("hi"), delay=0.5)
    backend = engine(renderer, [slow])
    async with serving(renderer, backend=backend, config={"heartbeat": 0.1}) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream=True).user("go")
        answer = await agent.send()
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["Cache-Control"] == "no-cache" and answer.headers["X-Accel-Buffering"] == "no"
    assert answer.body.endswith(b"\n\n")
    for name, data in answer.events:
        assert name == ("" if protocol == "chat" else data["type"])
    if protocol == "chat":
        assert answer.events[-1][1] == "[DONE]"
    elif protocol == "messages":
        assert [name for name, _ in answer.events].count("ping") >= 2
    else:
        assert [name for name, _ in answer.events].count("response.in_progress") >= 3


# -------------------------------------------------------------------------------------------- concurrency, life cycle


@EACH
@STREAMED
async def test_life_01_going_on_from_one_of_several_candidates(make: MakeRenderer, protocol: str, stream: bool) -> None:
    renderer = make("qwen3")
    script = [ScriptedTurn(renderer.tokenizer.encode(f"candidate {c}"), delay=0.1) for c in "abc"]
    async with serving(renderer, backend=engine(renderer, [*script, "d"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("P")
        answers = await asyncio.gather(*(agent.send() for _ in "abc"))
        chosen = answers[1]
        text = said(agent.pieces(chosen))
        agent.history += agent.native(chosen)
        await agent.user("q").ask()
        done = await finished(gateway, agent)
    assert len(done["trajectories"]) == 3
    [longest] = [t for t in done["trajectories"] if len(t["turns"]) == 2]
    assert len(longest["trained"]) == 2 and text in renderer.decode(longest["response_ids"])
    assert not any(t["abandoned"] for t in done["trajectories"])


@EACH
async def test_life_01_equal_candidates_are_continued_at_the_newest(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["same", "same", "same", "d", "e"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol).user("P")
        await agent.send()
        await agent.send()
        agent.history += agent.native(await agent.send())
        await agent.user("q").ask()
        await agent.user("r").ask()
        done = await finished(gateway, agent)
    assert [t["turns"] for t in done["trajectories"]] == [[0], [1], [2, 3, 4]]


@EACH
async def test_a_turn_sampled_behind_a_turn_is_found_again(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    script = [call("ls", before="one "), "two", "three", "four"]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol).user("go")
        [asked] = calls(await agent.ask())
        await agent.result(asked[3], "ok").ask()
        await agent.ask()  # without a word from the user
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    assert [t["turns"] for t in done["trajectories"]] == [[0, 1, 2, 3]]


@EACH
@STREAMED
async def test_life_02_the_first_and_the_last_turn_asked_again(make: MakeRenderer, protocol: str, stream: bool) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["a1", call("a1'"), "a2", "a2'"])) as gateway:
        agent = Agent(gateway, await gateway.open(abandoned="drop"), protocol, stream).user("u1")
        assert (await agent.send()).status == 200
        [asked] = calls(await agent.ask())
        agent.result(asked[3], "t1")
        assert (await agent.send()).status == 200
        await agent.ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert len(trajectory["trained"]) == 2 and set(done["accounting"]["dropped"]) == {"abandoned_retry"}
    words = renderer.decode(trajectory["prompt_ids"] + trajectory["response_ids"])
    assert words.count("<|im_start|>assistant") == 2


async def test_life_04_bad_rollouts_leave_the_others_alone(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    good = [call("ls"), "done"]
    scripts: dict[str, Any] = {f"t{i}": good for i in range(8)}
    scripts["t2"] = [ScriptedTurn((60,), fault="raise")] * 2
    scripts["t5"] = [ScriptedTurn((60,), fault="hang")]
    scripts["t6"] = [ScriptedTurn(renderer.tokenizer.encode("half of it"), fail_after=2)]
    backend = NotingBackend(renderer, scripts=scripts)
    async with serving(renderer, backend=backend, config={"timeout": 1.0}) as gateway:

        async def rollout(name: str) -> tuple[int, int]:
            agent = Agent(gateway, await gateway.open(name), "chat", stream=name == "t6").user("go")
            first = await agent.send()
            if first.status != 200 or first.cut:
                return first.status, (await gateway.finalize(agent.session))["accounting"]["trained"]
            agent.history += agent.native(first)
            await agent.result(calls(agent.pieces(first))[0][3], "ok").ask()
            return 200, len((await gateway.finalize(agent.session))["trajectories"][0]["trained"])

        results = await asyncio.wait_for(asyncio.gather(*(rollout(f"t{i}") for i in range(8))), 20)
        health = (await gateway.request("GET", "/healthz")).json
    assert [results[i] for i in (0, 1, 3, 4, 7)] == [(200, 2)] * 5
    assert results[2] == (502, 0) and results[5] == (504, 0) and results[6] == (200, 0)
    assert health["in_flight"] == 0


@EACH
@STREAMED
@pytest.mark.parametrize("policy", ["continue", "restart"])
async def test_life_05_an_aborted_generation_is_no_answer(
    make: MakeRenderer, protocol: str, stream: bool, policy: str
) -> None:
    renderer = make("qwen3")
    encode = renderer.tokenizer.encode
    script = [
        ScriptedTurn(encode("par"), finish_reason="abort", weight_version="7"),
        ScriptedTurn(encode("tial"), weight_version="8"),
        "on",
    ]
    config = {"on_abort": policy, "retries": 1}
    async with serving(renderer, backend=engine(renderer, script), config=config) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        answer = await agent.send()
        if policy == "restart" and stream and (answer.cut or answer.status >= 500):
            assert (await gateway.info(agent.session))["turns"] == 0, "what was shown cannot be taken back"
            return
        text = said(agent.pieces(answer))
        assert text == ("partial" if policy == "continue" else "tial")
        agent.history += agent.native(answer)
        await agent.user("more").ask()
        done = await gateway.finalize(agent.session)
    [trajectory] = done["trajectories"]
    versions = [span[0] for span in trajectory["weight_spans"]]
    assert versions == (["7", "8"] if policy == "continue" else ["8"])
    assert set(done["accounting"]["dropped"]) == (set() if policy == "continue" else {"aborted"})
