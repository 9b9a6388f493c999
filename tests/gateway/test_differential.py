"""AgentInteraction in process, and the same conversation over each protocol: one record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.gateway.support import Answer, Gateway, Opened, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.deployment.dummy import dummy_sandbox
from uni_agent.deployment.sandbox import Sandbox
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.interaction import AgentEnv, AgentInteraction, InteractionConfig
from uni_agent.model.tokens import AgentChatModel
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.finish import Finish
from uni_agent.tools.toolset import Toolset
from uni_agent.types import ExitReason, Message, Task

SYSTEM = "You are an agent."
TASK = "List the files, then count them. 漢字 <|im_end|> is text."
OUTPUTS = {"ls -la": "a.txt\nb <tool_call> c.txt", "ls | wc -l": "2", "echo 'Zürich \"x\"'": "Zürich ok", "pwd": "/w"}


def tool(name: str, arguments: dict[str, Any]) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


def script(renderer: ChatTemplateRenderer) -> list[ScriptedTurn]:
    """Turns with thinking, text, parallel calls, a broken call; each token has a logprob of its own.

    One turn is spelled letter by letter, as no tokenizer would.
    """
    texts = [
        "<think>\nFirst the files.\n</think>\n\nI look. " + tool("execute_bash", {"command": "ls -la"}),
        "<think>\nNow count.\n</think>\n\n" + tool("execute_bash", {"command": "ls | wc -l"}),
        tool("execute_bash", {"command": "pwd"}) + "\n" + tool("execute_bash", {"command": "echo 'Zürich \"x\"'"}),
        'Hm. <tool_call>\n{"name": "execute_bash", "arguments": {"command": "l\n</tool_call>',
        "<think>\nDone.\n</think>\n\n" + tool("finish", {"answer": "two"}),
    ]
    turns: list[ScriptedTurn] = []
    for number, text in enumerate(texts):
        pieces = list(text) if number == 1 else [text]
        ids = [id_ for piece in pieces for id_ in renderer.tokenizer.encode(piece)]
        turns.append(ScriptedTurn(ids, logprobs=[-0.001 * (number + 1) * (k + 1) for k in range(len(ids) + 1)]))
    return turns


@dataclass(frozen=True)
class Episode:
    """What the loop did: the chains, the prompts that its engine saw, and the messages between the turns."""

    caches: Sequence[RolloutCache]
    prompts: list[list[int]]
    observed: list[list[Message]]
    tools: list[ToolSchema]


async def in_process(renderer: ChatTemplateRenderer) -> Episode:
    """An episode of AgentInteraction."""
    backend = ScriptedBackend(script(renderer))
    model = AgentChatModel(backend, renderer, sampling=SamplingParams())
    await model.start()
    deployment = dummy_sandbox(OUTPUTS.get)
    await deployment.start()
    sandbox = Sandbox(deployment)
    try:
        config = InteractionConfig()
        toolset = Toolset([ExecuteBash(), Finish()])
        env = AgentEnv(sandbox, toolset, config)
        await env.setup(Task(id="t", prompt=TASK))
        session = await model.open("t#0", [Message("system", SYSTEM), Message("user", TASK)], toolset.schemas())
        result = await AgentInteraction(session, env, config).run()
    finally:
        await sandbox.stop()
    assert result.exit_reason is ExitReason.FINISHED, result.error
    observed = [list(turn.observations) for turn in result.turns[:-1]]
    return Episode(list(session.caches), [call.prompt_ids for call in backend.calls], observed, list(toolset.schemas()))


def whole_chat(answer: Answer, stream: bool) -> dict[str, Any]:
    """The assistant message of an answer, put together as the SDKs do."""
    if not stream:
        return answer.json["choices"][0]["message"]
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": []}
    for _, data in answer.events:
        for choice in data["choices"] if data != "[DONE]" else ():
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for part in delta.get("tool_calls") or ():
                if part["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append({"id": part["id"], "type": "function", "function": part["function"]})
                else:
                    message["tool_calls"][part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return message


def pairs(observed: list[Message], calls: list[Any]) -> list[tuple[Message, Any]]:
    """Each message that follows a turn with the call that it answers; nothing follows the last turn."""
    return list(zip(observed, calls or observed, strict=True)) if observed else []


async def over_chat(gateway: Gateway, session: Opened, episode: Episode, stream: bool) -> None:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    for observed in [*episode.observed, []]:
        said = whole_chat(await gateway.chat(session, messages, tools=episode.tools, stream=stream), stream)
        messages.append(said)
        for message, call in pairs(observed, said["tool_calls"]):
            result = {"role": "tool", "tool_call_id": call["id"]} if message.role == "tool" else {"role": message.role}
            messages.append({**result, "content": message.content})


async def over_responses(gateway: Gateway, session: Opened, episode: Episode, stream: bool) -> None:
    tools = [{"type": "function", **schema["function"]} for schema in episode.tools]
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": TASK}]}]
    for observed in [*episode.observed, []]:
        answer = await gateway.responses(session, items, instructions=SYSTEM, tools=tools, stream=stream)
        output = output_of(answer, stream)
        items += [*output, *results(output, observed)]


async def over_stored_responses(gateway: Gateway, session: Opened, episode: Episode, stream: bool) -> None:
    tools = [{"type": "function", **schema["function"]} for schema in episode.tools]
    items: Any = TASK
    previous: dict[str, str] = {}
    for observed in [*episode.observed, []]:
        answer = await gateway.responses(session, items, instructions=SYSTEM, tools=tools, stream=stream, **previous)
        whole = answer.events[-1][1]["response"] if stream else answer.json
        previous = {"previous_response_id": whole["id"]}
        items = results(whole["output"], observed)


def output_of(answer: Answer, stream: bool) -> list[Any]:
    """The output items; of a stream, those that its events completed."""
    if not stream:
        return answer.json["output"]
    return [data["item"] for name, data in answer.events if name == "response.output_item.done"]


def results(output: list[Any], observed: list[Message]) -> list[Any]:
    calls = [item for item in output if item["type"] == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call["call_id"], "output": message.content}
        if message.role == "tool"
        else {"role": message.role, "content": message.content}
        for message, call in pairs(observed, calls)
    ]


def content_of(answer: Answer, stream: bool) -> list[Any]:
    """The content blocks, put together as Anthropic's SDK does; broken input as Claude Code keeps it."""
    if not stream:
        return answer.json["content"]
    blocks: list[Any] = []
    inputs: dict[int, str] = {}
    for name, data in answer.events:
        if name == "content_block_start":
            blocks.append(dict(data["content_block"]))
        elif name == "content_block_delta":
            delta, block = data["delta"], blocks[data["index"]]
            if delta["type"] == "input_json_delta":
                inputs[data["index"]] = inputs.get(data["index"], "") + delta["partial_json"]
            else:
                kind = delta["type"].removesuffix("_delta")
                block[kind] = block.get(kind, "") + delta[kind]
    for index, text in inputs.items():
        try:
            blocks[index]["input"] = json.loads(text)
        except ValueError:
            blocks[index]["input"] = {"__unparsedToolInput": {"raw": text, "len": len(text)}}
    return blocks


async def over_messages(gateway: Gateway, session: Opened, episode: Episode, stream: bool) -> None:
    tools = [
        {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]}
        for f in (schema["function"] for schema in episode.tools)
    ]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    for observed in [*episode.observed, []]:
        answer = await gateway.messages(session, messages, system=SYSTEM, tools=tools, stream=stream)
        content = content_of(answer, stream)
        uses = [block for block in content if block["type"] == "tool_use"]
        back = [
            {"type": "tool_result", "tool_use_id": use["id"], "content": message.content}
            if message.role == "tool"
            else {"type": "text", "text": message.content}
            for message, use in pairs(observed, uses)
        ]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": back}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("template", ["qwen3", "qwen2_5"])
@pytest.mark.parametrize("drive", [over_chat, over_responses, over_stored_responses, over_messages])
async def test_each_protocol_gives_the_record_of_the_loop(
    make: MakeRenderer, template: str, drive: Any, stream: bool
) -> None:
    renderer = make(template)
    episode = await in_process(renderer)
    async with serving(renderer, script(renderer)) as gateway:
        session = await gateway.open()
        await drive(gateway, session, episode, stream)
        finished = await gateway.finalize(session)
        assert [call.prompt_ids for call in gateway.backend.calls] == episode.prompts
    [trajectory], [cache] = finished["trajectories"], episode.caches
    assert trajectory["prompt_ids"] == cache.prompt_ids
    assert trajectory["drift"][0] == "new" and set(trajectory["drift"][1:]) <= {"clean", "realigned"}
    # The loop also appends what follows the last turn; no turn answers it.
    length = len(trajectory["response_ids"])
    assert trajectory["response_ids"] == cache.response_ids[:length]
    assert trajectory["response_mask"] == cache.response_mask[:length] and not any(cache.response_mask[length:])
    assert cache.response_logprobs is not None
    assert json.dumps(trajectory["response_logprobs"]) == json.dumps(cache.response_logprobs[:length])
    assert finished["accounting"]["trained"] == sum(cache.response_mask)
