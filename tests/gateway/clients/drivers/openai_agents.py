# pyright: basic, reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
"""openai-agents with one tool. Arguments are runs: `chat whole`, `responses stream`, `responses nested`.

SESSIONS holds the addresses and keys of a session for each, as JSON. Prints a JSON line of calls and answer for each.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

calls: list[list[float]] = []


@function_tool
def add(a: float, b: float) -> str:
    """Add two numbers."""
    calls.append([a, b])
    return str(a + b)


async def main(api: str, mode: str, options: dict[str, Any]) -> None:
    calls.clear()
    client = AsyncOpenAI(**options)
    make = OpenAIChatCompletionsModel if api == "chat" else OpenAIResponsesModel
    model = make(model="policy", openai_client=client)
    agent = Agent(name="Adder", instructions="Add with the tool, then answer.", tools=[add], model=model)
    if mode == "nested":
        tool = agent.as_tool("adder", "Adds numbers.")
        agent = Agent(name="Boss", instructions="Let the adder do the work.", tools=[tool], model=model)
    if mode == "stream":
        result = Runner.run_streamed(agent, "How much is 2 + 3 + 8?")
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        if not text.endswith(str(result.final_output)):
            raise SystemExit(f"the deltas say {text!r}, the answer is {result.final_output!r}")
    else:
        result = await Runner.run(agent, "How much is 2 + 3 + 8?")
    print(json.dumps({"calls": calls, "final": result.final_output}), flush=True)


set_tracing_disabled(True)  # traces would go to the vendor
for run, options in zip(sys.argv[1:], json.loads(os.environ["SESSIONS"]), strict=True):
    asyncio.run(main(*run.split(), options))
