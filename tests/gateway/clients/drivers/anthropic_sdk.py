# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
"""A tool loop with the anthropic SDK: `anthropic_sdk.py MODE…`.

SESSIONS holds the addresses and keys of a session for each mode, as JSON. Prints a JSON line for each, of what the
client saw: text, calls, and how the turn ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import anthropic
from anthropic import beta_tool

TOOL = {
    "name": "bash",
    "description": "Run.",
    "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
SYSTEM, TASK = "You use the shell.", "Say what `echo` prints."


def gathered(events: list[Any]) -> tuple[list[dict[str, Any]], str]:
    """The blocks and stop reason that raw events add up to."""
    blocks: list[dict[str, Any]] = []
    written: dict[int, str] = {}
    ended = ""
    for event in events:
        if event.type == "content_block_start":
            blocks.append(event.content_block.model_dump(exclude_none=True))
        elif event.type == "content_block_delta" and event.delta.type == "text_delta":
            blocks[event.index]["text"] += event.delta.text
        elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            written[event.index] = written.get(event.index, "") + event.delta.partial_json
        elif event.type == "message_delta":
            ended = event.delta.stop_reason
    for index, text in written.items():
        blocks[index]["input"] = json.loads(text)
    return blocks, ended


async def loop(mode: str, options: dict[str, Any]) -> None:
    client, later = anthropic.Anthropic(**options), anthropic.AsyncAnthropic(**options)
    messages: list[Any] = [{"role": "user", "content": TASK}]
    seen: list[Any] = []
    while True:
        request: dict[str, Any] = {
            "model": "policy",
            "max_tokens": 1000,
            "system": SYSTEM,
            "messages": messages,
            "tools": [TOOL],
        }
        if mode == "stream":
            blocks, ended = gathered(list(client.messages.create(**request, stream=True)))
        else:
            if mode == "helper":
                with client.messages.stream(**request) as stream:
                    done = stream.get_final_message()
            elif mode == "async_helper":
                async with later.messages.stream(**request) as stream:
                    done = await stream.get_final_message()
            elif mode == "async":
                done = await later.messages.create(**request)
            else:
                done = client.messages.create(**request)
            blocks = [block.model_dump(exclude_none=True) for block in done.content]
            for block in blocks:
                block.pop("parsed_output", None)
            ended = done.stop_reason
        calls = [block for block in blocks if block["type"] == "tool_use"]
        text = "".join(block["text"] for block in blocks if block["type"] == "text")
        seen.append([text, [json.dumps(call["input"]) for call in calls], ended])
        messages.append({"role": "assistant", "content": blocks})
        if not calls:
            break
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": f"ran: {call['input']['command']}"}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    print(json.dumps(seen), flush=True)


def runner(options: dict[str, Any]) -> None:
    """The SDK's own tool loop. It asks for a thread that the server keeps, and sends the history when refused."""

    @beta_tool
    def bash(command: str) -> str:
        """Run.

        Args:
            command: What to run.
        """
        return f"ran: {command}"

    client = anthropic.Anthropic(**options)
    turns = client.beta.messages.tool_runner(
        model="policy", max_tokens=1000, system=SYSTEM, tools=[bash], messages=[{"role": "user", "content": TASK}]
    )
    seen: list[Any] = []
    for turn in turns:
        text = "".join(block.text for block in turn.content if block.type == "text")
        calls = [json.dumps(block.input) for block in turn.content if block.type == "tool_use"]
        seen.append([text, calls, turn.stop_reason])
    print(json.dumps(seen), flush=True)


for mode, options in zip(sys.argv[1:], json.loads(os.environ["SESSIONS"]), strict=True):
    if mode == "runner":
        runner(options)
    else:
        asyncio.run(loop(mode, options))
