"""The same conversation in process and over each protocol: one record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.gateway.support import BASH_CHAT, Gateway, Opened, call, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.model.tokens import AgentChatModel
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Message

SYSTEM = "You are an agent."
TASK = "List the files, then count them. 漢字 <|im_end|> is text."
RESULTS = ("a.txt\nb <tool_call> c.txt\n", "2\n", "Zürich ok\n")


def script(renderer: ChatTemplateRenderer) -> list[ScriptedTurn]:
    """Three turns with calls and one answer; each token with a logprob of its own, one turn spelled token by token."""
    texts = [
        call("ls -la", before="<think>\nFirst the files.\n</think>\n\nI look. "),
        call("ls | wc -l", before="<think>\nNow count.\n</think>\n\n"),
        call("echo 'Zürich \"x\"'"),
        "<think>\nDone.\n</think>\n\nThere are two.",
    ]
    turns: list[ScriptedTurn] = []
    for number, text in enumerate(texts):
        pieces = [renderer.tokenizer.encode(character) for character in text] if number == 1 else []
        ids = [i for piece in pieces for i in piece] if pieces else list(renderer.tokenizer.encode(text))
        logprobs = [-0.001 * (number + 1) * (k + 1) for k in range(len(ids) + 1)]
        turns.append(ScriptedTurn(ids, logprobs=logprobs))
    return turns


async def in_process(renderer: ChatTemplateRenderer) -> tuple[list[RolloutCache], list[list[int]]]:
    """The conversation through the loop's own model session."""
    backend = ScriptedBackend(script(renderer))
    model = AgentChatModel(backend, renderer, sampling=SamplingParams())
    await model.start()
    session = await model.open("r", [Message("system", SYSTEM), Message("user", TASK)], [BASH_CHAT])
    for result in RESULTS:
        turn = await session.query()
        await session.observe([Message("tool", result, tool_call_id=turn.message.tool_calls[0].id)])
    await session.query()
    return list(session.caches), [recorded.prompt_ids for recorded in backend.calls]


async def over_chat(gateway: Gateway, session: Opened) -> None:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    for result in RESULTS:
        said = (await gateway.chat(session, messages)).json["choices"][0]["message"]
        assert said["tool_calls"], said
        messages += [said, {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": result}]
    assert (await gateway.chat(session, messages)).json["choices"][0]["message"]["content"].endswith("There are two.")


async def over_responses(gateway: Gateway, session: Opened) -> None:
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": TASK}]}]
    for result in RESULTS:
        output = (await gateway.responses(session, items, instructions=SYSTEM)).json["output"]
        number = next(item["call_id"] for item in output if item["type"] == "function_call")
        items += [*output, {"type": "function_call_output", "call_id": number, "output": result}]
    final = (await gateway.responses(session, items, instructions=SYSTEM)).json["output"][-1]
    assert final["content"][0]["text"].endswith("There are two.")


async def over_stored_responses(gateway: Gateway, session: Opened) -> None:
    answer = (await gateway.responses(session, TASK, instructions=SYSTEM)).json
    for result in RESULTS:
        number = next(item["call_id"] for item in answer["output"] if item["type"] == "function_call")
        items = [{"type": "function_call_output", "call_id": number, "output": result}]
        answer = (await gateway.responses(session, items, instructions=SYSTEM, previous_response_id=answer["id"])).json
    assert answer["output"][-1]["content"][0]["text"].endswith("There are two.")


async def over_messages(gateway: Gateway, session: Opened) -> None:
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for result in RESULTS:
        content = (await gateway.messages(session, messages, system=SYSTEM)).json["content"]
        use = next(block for block in content if block["type"] == "tool_use")
        messages += [
            {"role": "assistant", "content": content},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": result}]},
        ]
    final = (await gateway.messages(session, messages, system=SYSTEM)).json["content"][-1]
    assert final["text"].endswith("There are two.")


@pytest.mark.parametrize("template", ["qwen3", "qwen2_5"])
@pytest.mark.parametrize("drive", [over_chat, over_responses, over_stored_responses, over_messages])
async def test_each_protocol_gives_the_record_of_the_loop(make: MakeRenderer, template: str, drive: Any) -> None:
    renderer = make(template)
    caches, prompts = await in_process(renderer)
    async with serving(renderer, script(renderer)) as gateway:
        session = await gateway.open()
        await drive(gateway, session)
        finished = await gateway.finalize(session)
        assert [recorded.prompt_ids for recorded in gateway.backend.calls] == prompts
    [trajectory] = finished["trajectories"]
    assert_same(trajectory, caches)


def assert_same(trajectory: dict[str, Any], caches: Sequence[RolloutCache]) -> None:
    [cache] = caches
    assert trajectory["prompt_ids"] == cache.prompt_ids
    assert trajectory["response_ids"] == cache.response_ids
    assert trajectory["response_mask"] == cache.response_mask
    assert json.dumps(trajectory["response_logprobs"]) == json.dumps(cache.response_logprobs)
