"""What the tests of the cases share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.replay.agent import PROTOCOLS, Agent
from tests.gateway.replay.record import NotingBackend, check_record
from tests.gateway.support import Gateway
from tests.tokens.small import BASH
from uni_agent.engine.scripted import Script
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Message

EACH = pytest.mark.parametrize("protocol", PROTOCOLS)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
TEMPLATES = pytest.mark.parametrize("template", ["qwen2_5", "qwen3", "qwen3_coder", "qwen3_6"])
CALLING = ["qwen2_5", "qwen3"]
"""Templates whose models write calls as JSON."""
THINK = "<think>\nplan\n</think>\n\n"


def engine(renderer: ChatTemplateRenderer, script: Script, **options: Any) -> NotingBackend:
    return NotingBackend(renderer, script, **options)


async def finished(gateway: Gateway, agent: Agent) -> dict[str, Any]:
    """The export, after `check_record`."""
    done = await gateway.finalize(agent.session)
    check_record(gateway.backend.given, done)
    return done


def prompt(gateway: Gateway, renderer: ChatTemplateRenderer, number: int = -1) -> str:
    """What the engine was asked, as text."""
    return renderer.decode(gateway.backend.given[number].prompt)


def history(protocol: str, arguments: Any, text: Any = None) -> list[Any]:
    """A conversation with one call that this gateway never sampled."""
    if protocol == "chat":
        function = {"name": "bash", "arguments": arguments}
        return [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": text,
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "bad json"},
        ]
    if protocol == "responses":
        return [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": "bad json"},
        ]
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "bash", "input": arguments}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "bad json"}]},
    ]


def stock(renderer: ChatTemplateRenderer, messages: list[Message]) -> str:
    """What a full render says, for I4."""
    return renderer.decode(renderer.initial(messages, [BASH]))


def shown(trajectory: dict[str, Any], renderer: ChatTemplateRenderer) -> str:
    """All of a trajectory as text."""
    return renderer.decode(trajectory["prompt_ids"] + trajectory["response_ids"])
