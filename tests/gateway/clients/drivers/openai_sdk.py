# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
"""A tool loop with the openai SDK: `openai_sdk.py chat|responses MODE…`.

SESSIONS holds the addresses and keys of a session for each mode, as JSON. Prints a JSON line for each, of what the
client saw: text, calls, and how the turn ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import openai

PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CHAT_TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": PARAMETERS}}]
TOOLS = [{"type": "function", "name": "bash", "description": "Run.", "parameters": PARAMETERS, "strict": False}]
SYSTEM, TASK = "You use the shell.", "Say what `echo` prints."


def answer(arguments: str) -> str:
    return f"ran: {json.loads(arguments)['command']}"


def gathered(chunks: list[Any]) -> tuple[dict[str, Any], str]:
    """The message and finish reason that Chat chunks add up to."""
    text, ended = "", ""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            ended = choice.finish_reason or ended
            for part in choice.delta.tool_calls or []:
                entry = calls.setdefault(part.index, {"id": "", "name": "", "arguments": ""})
                entry["id"] += part.id or ""
                entry["name"] += part.function.name or ""
                entry["arguments"] += part.function.arguments or ""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for _, call in sorted(calls.items())
        ]
    return message, ended


async def chat(mode: str, options: dict[str, Any]) -> None:
    client, later = openai.OpenAI(**options), openai.AsyncOpenAI(**options)
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]
    seen: list[Any] = []
    while True:
        request: dict[str, Any] = {"model": "policy", "messages": messages, "tools": CHAT_TOOLS}
        if mode == "stream":
            chunks = list(client.chat.completions.create(**request, stream=True))
            message, ended = gathered(chunks)
        elif mode == "async_stream":
            chunks = [chunk async for chunk in await later.chat.completions.create(**request, stream=True)]
            message, ended = gathered(chunks)
        else:
            if mode == "helper":
                with client.chat.completions.stream(**request) as stream:
                    done = stream.get_final_completion()
            elif mode == "async":
                done = await later.chat.completions.create(**request)
            else:
                done = client.chat.completions.create(**request)
            message = done.choices[0].message.model_dump(exclude_none=True)
            for call in message.get("tool_calls", []):
                call["function"].pop("parsed_arguments", None)
            message.pop("parsed", None)
            ended = done.choices[0].finish_reason
        calls = message.get("tool_calls", [])
        seen.append([message.get("content") or "", [call["function"]["arguments"] for call in calls], ended])
        messages.append(message)
        if not calls:
            break
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": answer(call["function"]["arguments"])}
            for call in calls
        ]
    print(json.dumps(seen), flush=True)


async def responses(mode: str, options: dict[str, Any]) -> None:
    client, later = openai.OpenAI(**options), openai.AsyncOpenAI(**options)
    items: list[Any] = [{"role": "user", "content": TASK}]
    seen: list[Any] = []
    while True:
        request: dict[str, Any] = {"model": "policy", "instructions": SYSTEM, "input": items, "tools": TOOLS}
        if mode == "stream":
            done = next(
                event.response
                for event in client.responses.create(**request, stream=True)
                if event.type == "response.completed"
            )
        elif mode == "async_stream":
            events = [event async for event in await later.responses.create(**request, stream=True)]
            done = next(event.response for event in events if event.type == "response.completed")
        elif mode == "helper":
            with client.responses.stream(**request) as stream:
                done = stream.get_final_response()
        elif mode == "async":
            done = await later.responses.create(**request)
        else:
            done = client.responses.create(**request)
        output = [item.model_dump(exclude_none=True) for item in done.output]
        for item in output:
            item.pop("parsed_arguments", None)
        calls = [item for item in output if item["type"] == "function_call"]
        seen.append([done.output_text, [call["arguments"] for call in calls], done.status])
        items += output
        if not calls:
            break
        items += [
            {"type": "function_call_output", "call_id": call["call_id"], "output": answer(call["arguments"])}
            for call in calls
        ]
    print(json.dumps(seen), flush=True)


async def chained(options: dict[str, Any]) -> None:
    """As `responses`, with the history left to the server."""
    client = openai.OpenAI(**options)
    more: list[Any] = [{"role": "user", "content": TASK}]
    previous: dict[str, Any] = {}
    seen: list[Any] = []
    while True:
        done = client.responses.create(model="policy", instructions=SYSTEM, input=more, tools=TOOLS, **previous)
        calls = [item for item in done.output if item.type == "function_call"]
        seen.append([done.output_text, [call.arguments for call in calls], done.status])
        if not calls:
            break
        previous = {"previous_response_id": done.id}
        more = [
            {"type": "function_call_output", "call_id": call.call_id, "output": answer(call.arguments)}
            for call in calls
        ]
    print(json.dumps(seen), flush=True)


api, *modes = sys.argv[1:]
for mode, options in zip(modes, json.loads(os.environ["SESSIONS"]), strict=True):
    asyncio.run(chained(options) if mode == "chained" else {"chat": chat, "responses": responses}[api](mode, options))
