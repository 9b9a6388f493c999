"""The fifteen hardest cases of a gateway, over HTTP, each held to the same invariants. 1 to 7: one turn, its tokens.

I1 on a continued chain the engine's prompt begins with the previous prompt and output; I2 each sampled id is exported
once as trained, or dropped for a reason; I3 mask, logprobs and experts belong to the ids that the engine saw: all three
are `check_record`. I4 the decoded prompt is what a full render would say, or the deviation is a stated policy: `stock`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.cases.support import (
    EACH,
    STREAMED,
    THINK,
    engine,
    finished,
    shown,
    stock,
)
from tests.gateway.replay.agent import PROTOCOLS, Agent, calls, said
from tests.gateway.support import BASH_MESSAGES, call, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.scripted import ScriptedTurn
from uni_agent.types import Message

# --------------------------------------------------------------------------------------------------- 1


SUMMARY = [{"type": "summary_text", "text": "plan"}]
REASONING = [{"type": "reasoning_text", "text": "plan"}]
HI = {"type": "text", "text": "hi"}
SIGNED = {"type": "thinking", "thinking": "plan", "signature": "s"}
ECHOES: dict[str, dict[str, Any]] = {
    "chat: reasoning_content": {"content": "hi", "reasoning_content": "plan"},
    "chat: reasoning": {"content": "hi", "reasoning": "plan"},
    "chat: stripped": {"content": "hi"},
    "chat: in the content": {"content": "<think>\nplan\n</think>\n\nhi"},
    "chat: parts": {"content": [HI], "reasoning_content": "plan"},
    "messages: block": {"content": [SIGNED, HI]},
    "messages: unsigned": {"content": [{"type": "thinking", "thinking": "plan"}, HI]},
    "messages: redacted": {"content": [{"type": "redacted_thinking", "data": "xx"}, HI]},
    "messages: stripped": {"content": "hi"},
    "messages: in the text": {"content": [{"type": "text", "text": "<think>plan</think>hi"}]},
    "responses: summary": {"items": [{"type": "reasoning", "id": "r", "summary": SUMMARY}]},
    "responses: content": {"items": [{"type": "reasoning", "summary": [], "content": REASONING}]},
    "responses: encrypted": {"items": [{"type": "reasoning", "summary": [], "encrypted_content": "abc"}]},
    "responses: stripped": {"items": []},
    "responses: as a message": {"items": [{"role": "assistant", "content": "<think>plan</think>"}]},
}


@pytest.mark.parametrize("echo", ECHOES)
@pytest.mark.parametrize("template", ["qwen3", "qwen3_6"])
async def test_case_1_thinking_kept_stripped_or_moved_is_the_same_turn(
    make: MakeRenderer, echo: str, template: str
) -> None:
    renderer = make(template)
    first = "plan\n</think>\n\nhi" if template == "qwen3_6" else THINK + "hi"  # whose prompt has opened the block
    async with serving(renderer, backend=engine(renderer, [first, "two", "three"])) as gateway:
        agent = Agent(gateway, await gateway.open(), echo.partition(":")[0]).user("go")
        pieces = await agent.ask()
        assert (said(pieces, "thinking").strip(), said(pieces).strip()) == ("plan", "hi")
        given = ECHOES[echo]
        turn = given.get("items")
        agent.history = agent.history[:1]
        if turn is None:
            agent.history.append({"role": "assistant", **given})
        else:
            agent.history += [*turn, {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}]
        await agent.user("more").ask()
        await agent.user("again").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert len(trajectory["trained"]) == 3
    assert done["accounting"]["drift"].keys() <= {"new", "clean", "realigned"}


# --------------------------------------------------------------------------------------------------- 2


@EACH
@pytest.mark.parametrize("template", ["qwen3", "qwen3_6"])
@pytest.mark.parametrize("policy", ["keep", "template"])
async def test_case_2_both_policies_for_earlier_thinking_train_every_turn(
    make: MakeRenderer, protocol: str, template: str, policy: str
) -> None:
    renderer = make(template)
    opened = "" if template == "qwen3_6" else "<think>\n"
    script = [f"{opened}plan {i}\n</think>\n\nanswer {i}" for i in range(4)]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(thinking=policy), protocol)
        for i in range(4):
            await agent.user(f"question {i}").ask()
        done = await finished(gateway, agent)
        last = renderer.decode(gateway.backend.given[-1].prompt)
    assert done["accounting"]["masked"] == 0 and not done["accounting"]["dropped"]
    assert sum(len(t["trained"]) for t in done["trajectories"]) == 4
    messages = [Message("user", "question 0")]
    for i in range(3):
        messages += [Message("assistant", f"answer {i}", f"plan {i}"), Message("user", f"question {i + 1}")]
    if policy == "template":
        assert last == stock(renderer, messages), "I4"
    else:
        assert [f"plan {i}" in last for i in range(3)] == [True] * 3
        assert len(done["trajectories"]) == 1


# --------------------------------------------------------------------------------------------------- 3


@EACH
@STREAMED
async def test_case_3_a_sample_that_no_tokenizer_would_write_keeps_its_ids(
    make: MakeRenderer, protocol: str, stream: bool
) -> None:
    renderer = make("qwen3")
    encode = renderer.tokenizer.encode
    text = call("echo 漢字 Zürich 🙂", before="<think>\nso, the README\n</think>\n\nLook:\n\n")
    ids = [id_ for character in text for id_ in encode(character)]
    split = ["<tool_", "call>\n", '{"name": "bash", "argu', 'ments": {"command": "l', 's"}}\n</tool', "_call>"]
    tagged = [id_ for piece in split for id_ in encode(piece)]
    assert ids != list(encode(text)) and tagged != list(encode("".join(split)))
    script = [ScriptedTurn(ids), ScriptedTurn(tagged), "done"]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        for expected in ("echo 漢字 Zürich 🙂", "ls"):
            [asked] = calls(await agent.ask())
            assert json.loads(asked[2]) == {"command": expected}
            agent.result(asked[3], "ok")
        await agent.ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert trajectory["response_ids"][: len(ids)] == ids
    assert done["accounting"]["drift"].get("forked", 0) == 0


# --------------------------------------------------------------------------------------------------- 4


WRITTEN = {
    "order and spacing": ('{"timeout":5,  "command":"a b"}', '{"command": "a b", "timeout": 5}'),
    "escapes": (r'{"command": "caf\u00e9 \u00fc \/"}', '{"command":"café ü /"}'),
    "1 and 1.0": ('{"command": "x", "timeout": 5.0}', '{"command": "x", "timeout": 5}'),
    "1e3": ('{"command": "x", "timeout": 1e3}', '{"command": "x", "timeout": 1000}'),
    "beyond doubles": ('{"command": "x", "n": 12345678901234567890}', '{"command": "x", "n": 12345678901234567000}'),
    "true": ('{"command": "x", "flag": true, "none": null}', '{"none":null,"flag":true,"command":"x"}'),
    "empty": ("{}", ""),
    "duplicate keys": ('{"command": "a", "command": "b"}', '{"command": "b"}'),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_case_4_arguments_that_mean_the_same_are_the_same_turn(
    make: MakeRenderer, name: str, protocol: str
) -> None:
    sampled, sent = WRITTEN[name]
    renderer = make("qwen3")
    text = f'<tool_call>\n{{"name": "bash", "arguments": {sampled}}}\n</tool_call>'
    async with serving(renderer, backend=engine(renderer, [text, "done"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol).user("go")
        [asked] = calls(await agent.ask())
        if protocol == "messages":
            agent.history[-1]["content"][-1]["input"] = json.loads(sent or "{}")
        elif protocol == "responses":
            agent.history[-1]["arguments"] = sent
        else:
            agent.history[-1]["tool_calls"][0]["function"]["arguments"] = sent
        await agent.result(asked[3], "ok").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert len(trajectory["trained"]) == 2


@pytest.mark.parametrize("other", ['{"command": "True"}', '{"command": true}', '{"command": 1}', '{"Command": "true"}'])
async def test_case_4_another_value_is_another_turn(make: MakeRenderer, other: str) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("true"), "done"])) as gateway:
        agent = Agent(gateway, await gateway.open()).user("go")
        [asked] = calls(await agent.ask())
        agent.history[-1]["tool_calls"][0]["function"]["arguments"] = other
        await agent.result(asked[3], "ok").ask()
        done = await finished(gateway, agent)
    assert len(done["trajectories"]) == 2 and done["accounting"]["drift"] == {"new": 1, "forked": 1}


ROOM: dict[str, dict[str, Any]] = {"chat": {}, "responses": {}, "messages": {"max_tokens": 100_000}}
BROKEN = [
    r'{"command": "\ud800"}',
    '{"command": "l',
    '{"command": ls}',
    "[1, 2]",
    '"text"',
    "{" * 3000,
    '{"command": "a"}}',
    "nonsense",
]


BROKEN_OVER = [
    pytest.param(arguments, protocol, stream, id=f"{number}-{protocol}-{'streamed' if stream else 'whole'}")
    for number, arguments in enumerate(BROKEN)
    for protocol in PROTOCOLS
    for stream in (False, True)
    # A client that puts the stream together cannot send these back: its input is an object of Unicode.
    if not (protocol == "messages" and stream and arguments in (BROKEN[0], '"text"'))
]


@pytest.mark.parametrize(("arguments", "protocol", "stream"), BROKEN_OVER)
async def test_case_4_broken_arguments_stay_what_was_sampled(
    make: MakeRenderer, arguments: str, protocol: str, stream: bool
) -> None:
    renderer = make("qwen3")
    text = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
    async with serving(renderer, backend=engine(renderer, [text, "sorry", "done"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream, fields=ROOM[protocol]).user("go")
        pieces = await agent.ask()
        for asked in calls(pieces):
            agent.result(asked[3], "not JSON")
        if not calls(pieces):
            agent.user("no call")
        await agent.ask()
        await agent.user("go on").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert len(trajectory["trained"]) == 3 and text in shown(trajectory, renderer)


# --------------------------------------------------------------------------------------------------- 5


@EACH
@STREAMED
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1,), ()], ids=str)
async def test_case_5_results_of_parallel_calls_in_any_order_or_missing(
    make: MakeRenderer, protocol: str, stream: bool, order: tuple[int, ...]
) -> None:
    renderer = make("qwen3")
    text = "\n".join(call(f"echo {i}") for i in range(3))
    async with serving(renderer, backend=engine(renderer, [text, "done", "end"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        asked = calls(await agent.ask())
        assert len({piece[3] for piece in asked}) == 3, "all calls reach the client"
        for i in order:
            agent.result(asked[i][3], f"result {i}")
        if not order:
            agent.user("never mind")
        await agent.ask()
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert len(trajectory["trained"]) == 3
    words = shown(trajectory, renderer)
    places = [words.index(f"result {i}") for i in sorted(order)]
    assert places == sorted(places), "in the order of the calls"
    if len(order) == 3:
        assert words.count("<tool_response>") == 3
        turn = words[words.index("<tool_response>") : words.index("done")]
        assert turn.count("<|im_end|>") == 1, "one turn holds them all"


# --------------------------------------------------------------------------------------------------- 6


CUTS = {
    "in thinking": "<think>\nI wonder wheth",
    "in a tag": "<think>\nx\n</think>\n\nyes <tool_c",
    "in a word": "hello wor",
}


@EACH
@STREAMED
@pytest.mark.parametrize("where", [*CUTS, "in a character"])
async def test_case_6_a_cut_turn_goes_on_behind_an_end_that_is_not_trained(
    make: MakeRenderer, protocol: str, stream: bool, where: str
) -> None:
    renderer = make("qwen3")
    encode = renderer.tokenizer.encode
    ids = list(encode(CUTS[where])) if where in CUTS else list(encode("smile 🙂"))[:-1]
    script = [ScriptedTurn(ids, finish_reason="length"), "go on", "end"]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        pieces = await agent.ask()
        body = agent.last.body if agent.last else b""
        assert any(word in body for word in (b'"length"', b'"max_tokens"', b'"max_output_tokens"'))
        empty = not any(piece[1].strip() for piece in pieces)
        await agent.user("continue").ask()
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"] if not empty else done["trajectories"][-1:]
    [end] = renderer.closing_ids()[:1]
    assert trajectory["response_ids"][: len(ids)] == ids
    assert trajectory["response_ids"][len(ids)] == end and trajectory["response_mask"][len(ids)] == 0
    assert [span[0] for span in trajectory["spans"]][:2] == ["sampled", "closing"]
    assert len(trajectory["trained"]) == 3


# --------------------------------------------------------------------------------------------------- 7


TITLE_SCHEMA: dict[str, Any] = {"properties": {"title": {}}}


async def test_case_7_a_claude_code_session_of_ten_turns_is_one_main_trajectory(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    work = [call(f"step {i}", before=f"<think>\nthink {i}\n</think>\n\n") for i in range(9)]
    script = ["A title", *work, "All done."]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), "messages", stream=True)
        headers = {"user-agent": "claude-cli/2.1.332", "anthropic-beta": "x-2030"}

        def system(nonce: int) -> list[dict[str, Any]]:
            billing = f"x-anthropic-billing-header: cc_version=9.9.9.{nonce}; cc_entrypoint=cli; cch={nonce};"
            cache = {"cache_control": {"type": "ephemeral"}} if nonce % 2 else {}
            return [{"type": "text", "text": billing}, {"type": "text", "text": "You are a coder.", **cache}]

        title = {
            "output_config": {"format": {"type": "json_schema", "schema": TITLE_SCHEMA}},
            "tools": None,
        }
        asks_title = Agent(gateway, agent.session, "messages", stream=True).user("Write a title for: fix bug")
        await asks_title.ask(system=[{"type": "text", "text": "Write a short title"}], headers=headers, **title)
        agent.user("fix bug. x-anthropic-billing-header: cc_version=1 is mine")
        for turn in range(10):
            path = "/v1/messages/count_tokens?beta=true"
            counted = {"model": "m", "messages": agent.history, "system": system(50 + turn), "tools": [BASH_MESSAGES]}
            assert (await gateway.request("POST", path, counted, agent.session.api_key)).json["input_tokens"] > 10
            asked = calls(await agent.ask(system=system(turn), headers=headers))
            if asked:
                agent.result(asked[0][3], f"output {turn}")
                agent.history[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
                agent.history.append({"role": "system", "content": [{"type": "text", "text": f"reminder {turn}"}]})
        done = await finished(gateway, agent)
    scenarios = sorted(t["scenario"] for t in done["trajectories"])
    assert scenarios.count("main") == 1 and len(scenarios) == 2, scenarios
    main = next(t for t in done["trajectories"] if t["scenario"] == "main")
    assert len(main["trained"]) == 10 and done["accounting"]["drift"].get("forked", 0) == 0
    words = shown(main, renderer)
    assert "cc_entrypoint" not in words, "the nonce is in no prompt"
    assert "cc_version=1 is mine" in words, "the user's own text is"
    positions = [words.index(f"reminder {i}") for i in range(9)]
    outputs = [words.index(f"output {i}") for i in range(9)]
    assert all(a < b for a, b in zip(outputs, positions, strict=True)) and positions == sorted(positions)
