"""Every Chat request that nine real clients sent, replayed.

`fixtures/<client>.json`: the messages, tools and requests of a client, each message and tool once; long texts of the
vendors are shortened. `served` is the assistant message that the recorded server answered with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.gateway.protocols.chat.support import FIXTURES, read_body
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.tokens.graph import StrictMatcher

CLIENTS = sorted(path.stem for path in FIXTURES.glob("*.json"))


@cache
def requests(client: str) -> list[dict[str, Any]]:
    held = json.loads((FIXTURES / f"{client}.json").read_text(encoding="utf-8"))
    for request in held["requests"]:
        body = {**request["params"], "messages": [held["messages"][i] for i in request["messages"]]}
        if request["tools"] is not None:
            body["tools"] = [held["tools"][i] for i in request["tools"]]
        request["body"] = body
    return held["requests"]


def plain_text(content: Any) -> str:
    parts: list[dict[str, str]] = [{"text": content}] if isinstance(content, str) else content or []
    return "".join(part["text"] for part in parts)


def test_the_recordings_are_all_here() -> None:
    assert {client: len(requests(client)) for client in CLIENTS} == {
        "hermes-agent": 33,
        "mini-swe-agent": 15,
        "openai-agents": 13,
        "openai-sdk": 5,
        "openclaw": 19,
        "opencode": 43,
        "pydantic-ai": 7,
        "qwen-code": 37,
        "strands-agents": 20,
    }


@pytest.mark.parametrize("client", CLIENTS)
def test_every_message_and_tool_of_a_client_is_read_for_what_it_is(client: str) -> None:
    for held in requests(client):
        body = held["body"]
        request = read_body(body)
        assert len(request.messages) == len(body["messages"])  # no client's history is merged
        for raw, message in zip(body["messages"], request.messages, strict=True):
            assert message.role == raw["role"]
            assert message.content == plain_text(raw.get("content"))
            assert message.reasoning == raw.get("reasoning_content", "")
            assert message.tool_call_id == raw.get("tool_call_id", "")
            calls: list[dict[str, Any]] = raw.get("tool_calls") or []
            for call, written in zip(message.tool_calls, calls, strict=True):
                assert (call.id, call.name) == (written["id"], written["function"]["name"])
                decoded = json.loads(written["function"]["arguments"])
                if "INVALID_JSON" in decoded:
                    assert (call.arguments, call.raw_arguments) == ({}, decoded["INVALID_JSON"])
                else:
                    assert (call.arguments, call.error) == (decoded, None)
        assert [tool["function"]["name"] for tool in request.tools] == [
            tool["function"]["name"] for tool in body.get("tools", [])
        ]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_asks_beside_its_messages_is_understood(client: str) -> None:
    known = {
        "openai-sdk": {"top_logprobs", "response_format"},
    }
    seen: set[str] = set()
    for held in requests(client):
        params = held["params"]
        request = read_body(held["body"])
        assert request.stream is params.get("stream", False)
        assert request.max_tokens == params.get("max_completion_tokens", params.get("max_tokens"))
        assert request.sampling.get("temperature") == params.get("temperature")
        assert request.tool_choice.mode == "auto"
        seen.update(request.ignored)
    assert seen == known.get(client, set())


def echoes(client: str) -> Iterator[tuple[str, dict[str, Any], list[ModelRequest]]]:
    """Each turn that was served and the later requests of its conversation that go beyond it."""
    held = requests(client)
    for i, one in enumerate(held):
        later = [
            read_body(other["body"])
            for other in held[i + 1 :]
            if other["scenario"] == one["scenario"]
            and other["conversation"] == one["conversation"]
            and other["messages"][0] == one["messages"][0]  # a title is asked for under another system prompt
            and len(other["messages"]) > len(one["messages"])
        ]
        if one["served"] and later:
            yield one["scenario"], one["served"], later


LOST = {
    ("mini-swe-agent", "notool"): 2,  # takes a turn without a call out of its history
    ("mini-swe-agent", "textbased"): 2,
    ("openclaw", "empty"): 1,  # takes empty turns out
    ("opencode", "badargs"): 1,  # shows a tool `invalid` instead
    ("opencode", "badtool"): 1,
    ("qwen-code", "badargs"): 2,  # samples again, then mends the arguments
}
"""Turns that the client itself does not send back as they were, each a branch."""


@pytest.mark.parametrize("client", CLIENTS)
def test_a_served_turn_is_found_again_in_what_the_client_sends_next(client: str) -> None:
    matcher = StrictMatcher()
    lost: dict[str, int] = {}
    found = 0
    for scenario, served, later in echoes(client):
        (stored,) = matcher.read(read_body({"messages": [served]}).messages)
        if any(matcher.same(stored, reading) for request in later for reading in matcher.read(request.messages)):
            found += 1
        else:
            lost[scenario] = lost.get(scenario, 0) + 1
    assert found
    assert lost == {scenario: count for (name, scenario), count in LOST.items() if name == client}
