"""The gateway over the `renderers` package: what clients are told and what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.support import call, serving
from tests.tokens.small import TEMPLATES, train, write_folder
from uni_agent.gateway.app_config import GatewayAppConfig
from uni_agent.tokens.foreign.package import PackageRenderer
from uni_agent.tokens.renderer import ChatTemplateRenderer

pytest.importorskip("renderers", reason="the renderers package is not installed (extra: renderers)")

SCRIPT = [call("ls", before="<think>\nlook\n</think>\n\n"), "Two files.", "Bye."]


def app(folder: Path, renderer: dict[str, Any]) -> GatewayAppConfig:
    return GatewayAppConfig.model_validate(
        {"engine": {"type": "scripted", "turns": []}, "renderer": {"tokenizer": folder, **renderer}}
    )


async def played(renderer: Any, *, stream: bool) -> tuple[list[Any], dict[str, Any]]:
    """An agent's session: what it was told, and what was recorded."""
    told: list[Any] = []
    async with serving(renderer, SCRIPT) as gateway:
        session = await gateway.open("same")
        messages: list[Any] = [{"role": "user", "content": "what is here?"}]
        for following in ("a\nb", "thanks", None):
            answer = await gateway.chat(session, messages, stream=stream)
            assert answer.status == 200, answer.body
            message = joined(answer.events) if stream else answer.json["choices"][0]["message"]
            told.append(message)
            messages.append(message)
            if calls := message.get("tool_calls"):
                messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": following})
            elif following:
                messages.append({"role": "user", "content": following})
        return told, await gateway.finalize(session)


def joined(events: list[tuple[str, Any]]) -> dict[str, Any]:
    """The message that the chunks of a stream make."""
    calls: list[Any] = []
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": calls}
    choices: list[Any] = [choice for _, chunk in events if chunk != "[DONE]" for choice in chunk["choices"]]
    for delta in [choice["delta"] for choice in choices]:
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name) or ""
        parts: list[Any] = delta.get("tool_calls") or []
        for part in parts:
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": "function", "function": {"name": "", "arguments": ""}})
            for name in ("name", "arguments"):
                calls[part["index"]]["function"][name] += part["function"].get(name) or ""
    return message


def plain(message: dict[str, Any]) -> Any:
    """What a message says, whitespace at its ends and the ids of calls left out."""
    calls: list[Any] = message.get("tool_calls") or []
    named = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    return (message.get("content") or "").strip(), (message.get("reasoning_content") or "").strip(), named


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_session_is_told_and_recorded_as_with_the_chat_template(tmp_path: Path, stream: bool) -> None:
    folder = write_folder(tmp_path, train())
    template = app(folder, {"chat_template": TEMPLATES / "qwen3.jinja"}).build_renderer()
    package = app(folder, {"type": "renderers_package", "renderer": "qwen3"}).build_renderer()
    assert isinstance(template, ChatTemplateRenderer) and isinstance(package, PackageRenderer)
    ours = await played(template, stream=stream)
    theirs = await played(package, stream=stream)
    said = theirs[0][0]["tool_calls"][0]["function"]
    assert said["name"] == "bash" and json.loads(said["arguments"]) == {"command": "ls"}
    assert [plain(message) for message in theirs[0]] == [plain(message) for message in ours[0]]
    assert len(theirs[1]["trajectories"]) == 1
    for name in ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "spans", "num_turns"):
        assert theirs[1]["trajectories"][0][name] == ours[1]["trajectories"][0][name], name
    assert theirs[1]["accounting"]["trained"] == theirs[1]["accounting"]["sampled"] > 0
