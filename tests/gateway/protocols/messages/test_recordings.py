"""Requests that real clients sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any, cast

import pytest

from tests.gateway.protocols.messages.support import ADAPTER, FIXTURES, readings, recorded, wire
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.errors import GatewayError
from uni_agent.tokens.graph import StrictMatcher

CLIENTS = sorted(path.stem for path in FIXTURES.glob("*.jsonl"))

# What the clients change of a history themselves, so that no reading could keep the chain.
NO_PREFIX = {
    ("claude-code", "empty", 1): "the turn without words is dropped and the user message before it is edited",
    ("claude-code", "f400long", 2): "the conversation is cut for its summary",
    ("claude-code", "f400long", 3): "the last message of the cut conversation is edited",
    ("claude-code", "f400long", 4): "the conversation is replaced by its summary",
    ("claude-code", "fcut_tool", 1): "the same request again",
    ("claude-code", "timeout", 1): "the same request again",
    ("openclaw", "anthropic.nosig", 1): "the last user message was a note for one request",
    ("openclaw", "anthropic.nosig", 2): "the last user message was a note for one request",
    ("openclaw", "anthropic.think", 1): "the last user message was a note for one request",
    ("openclaw", "anthropic.think", 2): "the last user message was a note for one request",
    ("opencode", "anthropic.nosig", 1): "the title is asked for first",
    ("opencode", "anthropic.nums", 1): "the title is asked for first",
}


def requests(client: str) -> list[tuple[dict[str, Any], ModelRequest]]:
    rows = recorded(client)
    return [(row, ADAPTER.read(wire(row["body"], row["path"]))) for row in rows if "thread" not in row["body"]]


def scenarios(client: str) -> list[tuple[str, list[tuple[dict[str, Any], ModelRequest]]]]:
    """Scenario and requests, for those in which one conversation asks at a time."""
    out: list[tuple[str, list[tuple[dict[str, Any], ModelRequest]]]] = []
    for name, rows in groupby(requests(client), key=lambda row: row[0]["scenario"]):
        asked = list(rows)
        if not any(word in name for word in ("sub", "explore")):  # several conversations at once: see below
            out.append((name, asked))
    return out


def goes_on(before: ModelRequest, after: ModelRequest) -> bool:
    """Whether `after` only adds to `before`, by meaning."""
    old, new = readings(before.messages), readings(after.messages)
    matcher = StrictMatcher()
    return len(new) > len(old) and all(map(matcher.same, old, new)) and before.tools == after.tools


@pytest.mark.parametrize("client", CLIENTS)
def test_every_request_is_read(client: str):
    for row, request in requests(client):
        body = row["body"]
        assert request.model == body["model"] and request.stream is bool(body.get("stream"))
        assert request.max_tokens == body.get("max_tokens")
        assert request.messages and "billing-header" not in request.messages[0].content
        assert (request.messages[0].role == "system") is bool(body.get("system")) is bool(request.instructions)
        said = "".join(m.content + m.reasoning for m in request.messages)
        for text in texts(body["messages"]):
            assert text in said
        calls = [call for m in request.messages for call in m.tool_calls]
        uses = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"] if "input" in b]
        assert [(c.id, c.name) for c in calls] == [(b["id"], b["name"]) for b in uses]
        assert all(c.arguments == b["input"] for c, b in zip(calls, uses, strict=True) if not c.error)
        ids = {call.id for call in calls}
        results = [m for m in request.messages if m.role == "tool"]
        assert all(m.tool_call_id in ids for m in results)


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    """Every text that a client sent, wherever it stands."""
    out: list[str] = []
    todo: list[Any] = [message["content"] for message in messages]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            out.append(item)
        elif isinstance(item, list):
            todo += cast("list[Any]", item)
        elif item is not None:
            todo += [item[key] for key in ("text", "thinking", "content") if key in item]
    return out


@pytest.mark.parametrize("client", CLIENTS)
def test_each_request_goes_on_from_the_one_before(client: str):
    broken: set[tuple[str, str, int]] = set()
    pairs = 0
    for name, rows in scenarios(client):
        for i, ((_, before), (_, after)) in enumerate(pairwise(rows), start=1):
            pairs += 1
            if not goes_on(before, after):
                broken.add((client, name, i))
    assert broken == {key for key in NO_PREFIX if key[0] == client}
    assert pairs or client in ("anthropic-sdk",)


@pytest.mark.parametrize("scenario", ["sub", "twosubs", "explore"])
def test_agents_under_one_key_each_go_on_from_a_request_of_their_own(scenario: str):
    rows = [request for row, request in requests("claude-code") if row["scenario"] == scenario]
    openings = 0
    for i, request in enumerate(rows):
        again = any(readings(r.messages) == readings(request.messages) for r in rows[:i])
        if not any(goes_on(earlier, request) for earlier in rows[:i]) and not again:
            openings += 1
    assert openings == 2  # the parent and its children, which begin alike


def test_the_thread_of_the_tool_runner_is_refused():
    for row in recorded("anthropic-sdk"):
        if "thread" in row["body"]:
            with pytest.raises(GatewayError, match="thread"):
                ADAPTER.read(wire(row["body"]))
            return
    raise AssertionError("the recording has gone")


def test_a_tool_that_claude_code_loads_changes_no_list():
    first, *later = [r for row, r in requests("claude-code") if row["scenario"] == "toolsearch"]
    assert len(later) == 2 and all(request.tools == first.tools for request in later)
    offered = {tool["function"]["name"] for tool in first.tools}
    assert {"Bash", "ToolSearch"} < offered and not {"WebFetch", "DeferredToolPlaceholder"} & offered
    (loaded,) = [m.content for m in later[0].messages if m.role == "tool"]
    assert loaded.startswith('Tool loaded: {"type": "function", "function": {"name": "WebFetch"')
    assert [t["function"]["name"] for t in later[0].loaded_tools] == ["WebFetch", "NotebookEdit"]


def test_broken_arguments_come_back_as_the_model_wrote_them():
    for scenario, raw in (("badargs", '{"command": "echo unterminated'), ("lengthcall", '{"command": "echo cut')):
        last = [r for row, r in requests("claude-code") if row["scenario"] == scenario][-1]
        (call,) = [c for m in last.messages for c in m.tool_calls]
        assert call.error and call.raw_arguments == raw


def test_an_image_that_a_tool_read_is_media():
    last = [r for row, r in requests("claude-code") if row["scenario"] == "image"][-1]
    (result,) = [m for m in last.messages if m.role == "tool"]
    (media,) = [part for part in result.parts if not isinstance(part, str)]
    assert media.media_type == "image/png" and media.data.startswith(b"\x89PNG")
