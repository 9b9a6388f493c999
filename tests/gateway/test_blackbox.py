"""What somebody who only has the documentation tries over HTTP, with clients as they are."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.gateway.process import gateway_process
from tests.gateway.support import BASH_MESSAGES, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.script_file import read_script
from uni_agent.engine.scripted import ScriptedBackend
from uni_agent.errors import ModelError
from uni_agent.tokens.renderer import ChatTemplateRenderer

GO = {"role": "user", "content": "go"}
POLICY = Path(__file__).parents[2] / "uni_agent" / "assets" / "quickstart_policy"


def broken(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {arguments}\n</tool_call>'


@pytest.mark.parametrize("arguments", ['{"command": "l}', '{"timeout": 5, "command": "l}', "{"])
async def test_a_broken_call_stays_one_chain_through_the_stream_of_the_anthropic_sdk(
    make: MakeRenderer, arguments: str
) -> None:
    """The SDK hands its user what stands before the break; PROTO-01 wants the sampled ids to stay."""
    anthropic: Any = pytest.importorskip("anthropic")
    async with serving(make("qwen3"), [broken(arguments), "fine"]) as gateway:
        session = await gateway.open()
        client = anthropic.AsyncAnthropic(base_url=session.base_url, api_key=session.api_key)
        asked: dict[str, Any] = {"model": "m", "max_tokens": 100, "tools": [BASH_MESSAGES]}
        async with client.messages.stream(messages=[GO], **asked) as stream:
            said = (await stream.get_final_message()).content
        assert [block.type for block in said] == ["tool_use"]
        result = {"type": "tool_result", "tool_use_id": said[0].id, "content": "no JSON", "is_error": True}
        history = [GO, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        await client.messages.create(messages=history, **asked)
        export = await gateway.finalize(session)
    assert [one["num_turns"] for one in export["trajectories"]] == [2], export["accounting"]
    assert export["accounting"]["trained"] == export["accounting"]["sampled"]


async def test_other_arguments_than_the_broken_ones_are_a_branch(make: MakeRenderer) -> None:
    """Repaired arguments were not said by the model."""
    async with serving(make("qwen3"), [broken('{"command": "l}'), "fine"]) as gateway:
        session = await gateway.open()
        said = (await gateway.chat(session, [GO])).json["choices"][0]["message"]
        said["tool_calls"][0]["function"]["arguments"] = '{"command": "ls"}'
        result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "A"}
        assert (await gateway.chat(session, [GO, said, result])).status == 200
        export = await gateway.finalize(session)
    assert [one["num_turns"] for one in export["trajectories"]] == [1, 1]


@pytest.mark.parametrize("kept", ["summary", "turn"])
async def test_a_short_summary_shows_what_a_conversation_continues(make: MakeRenderer, kept: str) -> None:
    system = {"role": "system", "content": "You are a coder."}
    async with serving(make("qwen3"), ["I look.", "did A and B", "on", "done"]) as gateway:
        session = await gateway.open()
        first = (await gateway.chat(session, [system, GO])).json["choices"][0]["message"]
        asked = [system, GO, first, {"role": "user", "content": "Summarize the conversation."}]
        said = (await gateway.chat(session, asked)).json["choices"][0]["message"]
        start = [system, {"role": "user", "content": f"Summary of what was: {said['content']}"}]
        if kept == "turn":
            start = [system, {"role": "user", "content": "Earlier work was cut."}, said, GO]
        on = (await gateway.chat(session, start)).json["choices"][0]["message"]
        assert (await gateway.chat(session, [*start, on, GO])).status == 200
        old, new = (await gateway.finalize(session))["trajectories"]
    assert (old["continues"], new["continues"]) == (None, old["id"])


async def test_a_conversation_that_quotes_nothing_continues_nothing(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["ok", "done"]) as gateway:
        session = await gateway.open()
        await gateway.chat(session, [GO])
        await gateway.chat(session, [{"role": "user", "content": "ok, another task"}])
        export = await gateway.finalize(session)
    assert [one["continues"] for one in export["trajectories"]] == [None, None]


async def test_a_session_whose_time_is_over_does_not_come_back_between_two_sweeps(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["hi"]) as gateway:
        session, seen = await gateway.open(ttl=0.2), await gateway.open(ttl=0.2)
        await asyncio.sleep(0.4)
        assert (await gateway.chat(session, [GO])).status == 410
        info = await gateway.info(seen)
        assert (info["phase"], info["reason"]) == ("aborted", "expired")


@pytest.mark.parametrize("value", ["abc", [1], {"a": 1}, True])
async def test_a_reward_that_is_no_number_is_refused(make: MakeRenderer, value: Any) -> None:
    async with serving(make("qwen3"), ["hi"]) as gateway:
        session = await gateway.open()
        await gateway.chat(session, [GO])
        path = f"/sessions/{session.session_id}/reward_info"
        for name in ("reward", "score"):
            answer = await gateway.request("POST", path, {name: value}, session.reward_key)
            assert answer.status == 400 and name in answer.json["error"]["message"]
        assert (await gateway.request("POST", path, {"reward": 1, "note": value}, session.reward_key)).status == 200
        export = await gateway.finalize(session)
    assert [one["reward"] for one in export["trajectories"]] == [1.0]


@pytest.mark.parametrize(("fault", "seen"), [("error", 0), ("disconnect", 3), ("reset", 3), ("break", 3)])
async def test_faults_have_the_names_that_people_try(tmp_path: Path, fault: str, seen: int) -> None:
    path = tmp_path / "script.jsonl"
    turns = [{"token_ids": [5, 6, 9], "fault": fault}, {"token_ids": [7], "finish_reason": "tool_calls"}]
    path.write_text("\n".join(map(json.dumps, turns)))
    engine = ScriptedBackend(read_script(path, lambda text: [ord(c) for c in text]))
    await engine.start()
    got: list[int] = []

    def listen(ids: Sequence[int]) -> bool:
        got.extend(ids)
        return False

    with pytest.raises(ModelError):
        await engine.generate("a", [1], SamplingParams(stop_token_ids=(9,)), on_tokens=listen)
    assert len(got) == seen
    after = await engine.generate("a", [1], SamplingParams(stop_token_ids=(9,)))
    assert (after.token_ids, after.finish_reason) == ([7, 9], "stop")


def test_a_stream_that_breaks_ends_in_an_error_and_leaves_no_turn(tmp_path: Path) -> None:
    """STREAM-01 with nothing but the four keys of the seam."""
    script = tmp_path / "script.jsonl"
    script.write_text('{"text": "Hello", "fault": "disconnect"}\n{"text": "Hello there"}\n')
    with gateway_process("--engine", "scripted", "--script", script, "--tokenizer", POLICY) as gateway:
        opened = gateway.admin("POST", "/sessions")
        body = {"model": "m", "max_tokens": 50, "messages": [GO], "stream": True}
        url, head = f"{gateway.url}/v1/messages", {"x-api-key": opened["api_key"]}
        text = ""
        with gateway.http.stream("POST", url, json=body, headers=head) as answer:
            assert answer.status_code == 200
            with pytest.raises(httpx.RemoteProtocolError):
                for piece in answer.iter_text():
                    text += piece
        assert "event: error" in text and "message_stop" not in text
        assert gateway.http.post(url, json=body, headers=head).text.count("event: message_stop") == 1
        export = gateway.admin("POST", f"/sessions/{opened['session_id']}/finalize")
    assert [one["num_turns"] for one in export["trajectories"]] == [1]
    assert export["accounting"]["dropped"]["failed"] > 0


@pytest.mark.parametrize("stream", [False, True])
async def test_template_variables_decide_whether_the_answer_starts_inside_thinking(
    make: MakeRenderer, stream: bool
) -> None:
    """TOK-12 and TOK-16 together: the reader of the answer sees the variables that the prompt was rendered with."""

    def renderer_for(variables: Mapping[str, Any]) -> ChatTemplateRenderer:
        return make("qwen3_6", **variables)

    async with serving(make("qwen3_6"), ["Plain answer"], renderer_for=renderer_for) as gateway:
        for variables, name in (({"enable_thinking": False}, "content"), ({}, "reasoning")):
            session = await gateway.open()
            answer = await gateway.chat(session, [GO], stream=stream, chat_template_kwargs=variables)
            if stream:
                deltas = [data["choices"][0]["delta"] for _, data in answer.events[:-1]]
                said = {key: "".join(d.get(key) or "" for d in deltas) for key in ("content", "reasoning_content")}
            else:
                said = answer.json["choices"][0]["message"]
            assert said["content" if name == "content" else "reasoning_content"] == "Plain answer"
            [one] = (await gateway.finalize(session))["trajectories"]
            assert one["messages"][-1][name] == "Plain answer"


def test_a_window_given_on_the_command_line_refuses_what_does_not_fit(tmp_path: Path) -> None:
    """PROTO-19 over HTTP alone."""
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"text": "many words " * 50}) + "\n")
    arguments = ("--engine", "scripted", "--script", script, "--tokenizer", POLICY, "--max-context", "100")
    with gateway_process(*arguments) as gateway:
        key = gateway.admin("POST", "/sessions")["api_key"]
        assert gateway.http.get(f"{gateway.url}/v1/models").json()["data"][0]["max_model_len"] == 100
        refused = gateway.chat(key, [{"role": "user", "content": "word " * 200}], max_tokens=50)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
        answer = gateway.chat(key, [{"role": "user", "content": "word " * 20}], max_tokens=500).json()
    assert answer["usage"]["total_tokens"] == 100 and answer["choices"][0]["finish_reason"] == "length"
