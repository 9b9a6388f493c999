"""Requests of real clients: each is read, and the turn that was served is found again in the next request."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, cast

import pytest

from tests.gateway.protocols.responses.support import Recorded, read_body, recordings, same
from uni_agent.gateway.protocols.reading import call_of
from uni_agent.types import Message, ToolCall

# Turns that do not come back as they were served, by the client's own doing.
GONE = {
    ("codex/compact", 3): "the summary comes back as a user message",
    ("codex/fcut_tool", 1): "the text of a stream that broke off stays in front of it, with ids that are not ours",
    ("codex/sub", 3): "the last turn of a sub-agent",
    ("openai-agents/resp-sub", 1): "the last turn of a sub-agent",
    ("opencode/responses.noenc", 0): "a title",
    ("opencode/responses.think", 0): "a title",
}


def served(recorded: Recorded) -> Message | None:
    """The turn as the gateway would have stored it."""
    if recorded.served is None:
        return None
    calls: list[ToolCall] = []
    for namespace, name, arguments, given in recorded.served["calls"]:
        shown = f"{namespace}__{name}" if namespace else name
        calls.append(call_of("x", shown, json.dumps({"input": given}) if given is not None else arguments))
    return Message("assistant", recorded.served["text"], recorded.served["thinking"], tuple(calls))


@pytest.mark.parametrize("name", recordings())
def test_every_recorded_request_is_read(name: str) -> None:
    for recorded in recordings()[name]:
        request = read_body(recorded.body)
        items = cast("list[dict[str, Any]] | str", recorded.body["input"])
        roles = [message.role for message in request.messages]
        said = [message for message in request.messages if message.role == "assistant"]
        assert all(message.content or message.reasoning or message.tool_calls for message in said)
        if not isinstance(items, str):
            results = [item for item in items if str(item.get("type")).endswith("_call_output")]
            calls = [item for item in items if item.get("type") in ("function_call", "custom_tool_call")]
            assert roles.count("tool") == len(results)
            assert [call.id for message in said for call in message.tool_calls] == [c["call_id"] for c in calls]
            assert roles.count("user") == sum(item.get("role") == "user" for item in items)
        assert not any(a == b == "assistant" for a, b in pairwise(roles))
        assert request.model and request.stream is bool(recorded.body.get("stream"))
        assert request.instructions == bool(recorded.body.get("instructions"))


@pytest.mark.parametrize("name", recordings())
def test_the_turn_that_was_served_comes_back_as_the_same(name: str) -> None:
    requests = recordings()[name]
    for i, recorded in enumerate(requests[:-1]):
        stored = served(recorded)
        if stored is None:
            continue
        later = [read_body(request.body).messages for request in requests[i + 1 :]]
        found = [m for messages in later for m in messages if m.role == "assistant" and same([stored], [m])]
        assert bool(found) is ((name, i) not in GONE), (i, stored)


@pytest.mark.parametrize("name", [name for name in recordings() if name.startswith("codex/")])
def test_proto_13_tools_of_codex_stay_the_same_over_its_turns(name: str) -> None:
    requests = [read_body(recorded.body) for recorded in recordings()[name]]
    if name in ("codex/compact", "codex/sub"):  # compaction and sub-agents have tools of their own
        return
    assert all(request.tools == requests[0].tools and request.ignored == requests[0].ignored for request in requests)
    assert len({tool["function"]["name"] for tool in requests[0].tools}) == len(requests[0].tools) > 5


def test_codex_is_offered_functions_and_namespaces_and_told_what_is_left_out() -> None:
    request = read_body(recordings()["codex/basic"][0].body)
    names = [tool["function"]["name"] for tool in request.tools]
    assert names == [
        *("exec_command", "write_stdin", "request_user_input", "view_image"),
        *("multi_agent_v1__close_agent", "multi_agent_v1__resume_agent", "multi_agent_v1__send_input"),
        *("multi_agent_v1__spawn_agent", "multi_agent_v1__wait_agent", "get_goal", "create_goal", "update_goal"),
    ]
    assert request.ignored == ("tools: web_search",)
    assert request.tool_choice.mode == "auto" and request.tool_choice.parallel and request.max_tokens is None


def test_codex_code_mode_brings_its_tools_inside_the_input() -> None:
    first, second = (read_body(recorded.body) for recorded in recordings()["codex/codemode_nons"])
    names = [tool["function"]["name"] for tool in first.tools]
    assert names[:2] == ["exec", "wait"] and any("__" in name for name in names)
    assert not second.tool_choice.parallel
    call = next(call for message in second.messages for call in message.tool_calls)
    assert call.name == "exec" and call.arguments["input"].startswith("const r = await")
    result = next(message for message in second.messages if message.role == "tool")
    assert result.content.startswith("Script completed") and "chunk_id" in result.content and not result.parts


def test_an_image_that_a_tool_returns_is_media() -> None:
    messages = read_body(recordings()["codex/image"][1].body).messages
    (media,) = next(message for message in messages if message.role == "tool").parts
    assert not isinstance(media, str) and media.media_type == "image/png" and media.data.startswith(b"\x89PNG")


def test_a_call_is_found_again_under_its_namespace() -> None:
    request = read_body(recordings()["codex/sub"][-1].body)
    names = [call.name for message in request.messages for call in message.tool_calls]
    assert names == ["multi_agent_v1__spawn_agent", "multi_agent_v1__wait_agent"]


def test_an_output_format_is_named_as_ignored() -> None:
    request = read_body(recordings()["openai-sdk/resp_parse"][0].body)
    assert request.ignored == ("text.format",) and request.messages == (Message("user", "x"),)
