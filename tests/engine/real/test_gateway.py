"""`uni-agent gateway` in front of a real vLLM server: the record is what the engine read and sampled."""

from __future__ import annotations

import asyncio
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from tests.engine.conftest import POLICY, rescored
from tests.engine.real.server import Exchange, RunningServer, logged

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ADMIN = {"Authorization": "Bearer admin-token"}
CLOSE = 2e-3
SYSTEM = "You are a shell agent."
TASK = "Create a file named vode.txt containing temu."
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOLS = {"execute_bash": "Run a command in bash.", "finish": "End the task."}


@dataclass
class Heard:
    """One reply as the client read it: what to send back, and its calls as (id, arguments as JSON text)."""

    turn: list[Any]
    calls: list[tuple[str, str]]
    deltas: int = 0


class Speaker(ABC):
    """A client of one protocol, plain HTTP and nothing assumed: it sends back what it was given."""

    def __init__(self) -> None:
        self.history: list[Any] = []

    @abstractmethod
    def request(self, max_tokens: int) -> tuple[str, dict[str, Any]]:
        """Path and body of the next request."""

    @abstractmethod
    def whole(self, body: dict[str, Any]) -> Heard: ...

    @abstractmethod
    def streamed(self, events: list[dict[str, Any]]) -> Heard: ...

    @abstractmethod
    def answer(self, heard: Heard, results: list[str]) -> None:
        """Append the turn and the results of its calls, or a new message of the user when it made none."""


class Chat(Speaker):
    def __init__(self) -> None:
        super().__init__()
        self.history = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": TASK}]

    def request(self, max_tokens: int) -> tuple[str, dict[str, Any]]:
        tools = [
            {"type": "function", "function": {"name": name, "description": about, "parameters": SCHEMA}}
            for name, about in TOOLS.items()
        ]
        body = {"model": "policy", "messages": self.history, "tools": tools, "max_tokens": max_tokens}
        return "/v1/chat/completions", body

    def whole(self, body: dict[str, Any]) -> Heard:
        return self._heard(body["choices"][0]["message"])

    def streamed(self, events: list[dict[str, Any]]) -> Heard:
        text, calls, deltas = "", dict[int, dict[str, Any]](), 0
        for delta in (choice["delta"] for event in events for choice in event.get("choices", ())):
            text += delta.get("content") or ""
            deltas += bool(delta.get("content"))
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part["index"], {"type": "function", "function": {"name": "", "arguments": ""}})
                if part.get("id"):
                    call["id"] = part["id"]
                call["function"]["name"] += part["function"].get("name") or ""
                call["function"]["arguments"] += part["function"].get("arguments") or ""
                deltas += 1
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = list(calls.values())
        return self._heard(message, deltas)

    def _heard(self, message: dict[str, Any], deltas: int = 0) -> Heard:
        calls = [(call["id"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
        return Heard([message], calls, deltas)

    def answer(self, heard: Heard, results: list[str]) -> None:
        self.history += heard.turn
        for (name, _), result in zip(heard.calls, results, strict=True):
            self.history.append({"role": "tool", "tool_call_id": name, "content": result})
        if not heard.calls:
            self.history.append({"role": "user", "content": TASK})


class Responses(Speaker):
    def __init__(self) -> None:
        super().__init__()
        self.history = [{"role": "user", "content": TASK}]

    def request(self, max_tokens: int) -> tuple[str, dict[str, Any]]:
        tools = [
            {"type": "function", "name": name, "description": about, "parameters": SCHEMA}
            for name, about in TOOLS.items()
        ]
        body = {"model": "policy", "instructions": SYSTEM, "input": self.history, "tools": tools, "store": False}
        return "/v1/responses", {**body, "max_output_tokens": max_tokens}

    def whole(self, body: dict[str, Any]) -> Heard:
        return self._heard(body["output"])

    def streamed(self, events: list[dict[str, Any]]) -> Heard:
        deltas = sum(event["type"].endswith(".delta") for event in events)
        return self._heard([event["item"] for event in events if event["type"] == "response.output_item.done"], deltas)

    def _heard(self, items: list[dict[str, Any]], deltas: int = 0) -> Heard:
        calls = [(item["call_id"], item["arguments"]) for item in items if item["type"] == "function_call"]
        return Heard(items, calls, deltas)

    def answer(self, heard: Heard, results: list[str]) -> None:
        self.history += heard.turn
        for (name, _), result in zip(heard.calls, results, strict=True):
            self.history.append({"type": "function_call_output", "call_id": name, "output": result})
        if not heard.calls:
            self.history.append({"role": "user", "content": TASK})


class Messages(Speaker):
    def __init__(self) -> None:
        super().__init__()
        self.history = [{"role": "user", "content": TASK}]

    def request(self, max_tokens: int) -> tuple[str, dict[str, Any]]:
        tools = [{"name": name, "description": about, "input_schema": SCHEMA} for name, about in TOOLS.items()]
        body = {"model": "policy", "system": SYSTEM, "messages": self.history, "tools": tools}
        return "/v1/messages", {**body, "max_tokens": max_tokens}

    def whole(self, body: dict[str, Any]) -> Heard:
        return self._heard(body["content"])

    def streamed(self, events: list[dict[str, Any]]) -> Heard:
        blocks, written, deltas = dict[int, dict[str, Any]](), dict[int, str](), 0
        for event in events:
            if event["type"] == "content_block_start":
                blocks[event["index"]] = event["content_block"]
            elif event["type"] == "content_block_delta":
                deltas += 1
                if event["delta"]["type"] == "text_delta":
                    blocks[event["index"]]["text"] += event["delta"]["text"]
                else:
                    written[event["index"]] = written.get(event["index"], "") + event["delta"]["partial_json"]
        for index, arguments in written.items():
            with suppress(ValueError):  # at temperature 1 the policy does not always write JSON
                blocks[index]["input"] = json.loads(arguments or "{}")
        return self._heard(list(blocks.values()), deltas)

    def _heard(self, blocks: list[dict[str, Any]], deltas: int = 0) -> Heard:
        calls = [(block["id"], json.dumps(block["input"])) for block in blocks if block["type"] == "tool_use"]
        return Heard([{"role": "assistant", "content": blocks}], calls, deltas)

    def answer(self, heard: Heard, results: list[str]) -> None:
        self.history += heard.turn
        blocks = [
            {"type": "tool_result", "tool_use_id": name, "content": result}
            for (name, _), result in zip(heard.calls, results, strict=True)
        ]
        self.history.append({"role": "user", "content": blocks or TASK})


@asynccontextmanager
async def gateway(engine: str, folder: Path) -> AsyncGenerator[str]:
    """The address of `uni-agent gateway` in front of the vLLM server at `engine`."""
    argv = ["-m", "uni_agent", "gateway", "--port", "0", "--admin-token", "admin-token", "--engine", "vllm"]
    argv += ["--url", engine, "--tokenizer", str(POLICY)]
    with (folder / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *argv, stdout=asyncio.subprocess.PIPE, stderr=log, cwd=folder
        )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), 120)).decode()
        assert line.startswith("listening on "), line + (folder / "gateway.log").read_text()
        yield line.removeprefix("listening on ").strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def ask(client: ClientSession, base: str, key: str, speaker: Speaker, stream: bool) -> Heard:
    path, body = speaker.request(60)
    headers = {"Authorization": f"Bearer {key}"}
    async with client.post(base + path, json={**body, "stream": stream}, headers=headers) as answer:
        raw = await answer.read()
        assert answer.status == 200, raw
    if not stream:
        return speaker.whole(json.loads(raw))
    lines = [line.removeprefix(b"data: ") for line in raw.splitlines() if line.startswith(b"data: ")]
    return speaker.streamed([json.loads(line) for line in lines if line != b"[DONE]"])


def assert_recorded(trajectories: list[dict[str, Any]], seen: list[Exchange]) -> None:
    """The record is the engine's log: what it read and sampled begins a trajectory, and is trained in exactly one."""
    for one in seen:
        assert one.sent["token_ids"] == one.prompt_ids
        whole = one.prompt_ids + one.token_ids
        trained = 0
        for trajectory in trajectories:
            start = len(one.prompt_ids) - len(trajectory["prompt_ids"])
            at = slice(start, start + len(one.token_ids))
            ids = trajectory["prompt_ids"] + trajectory["response_ids"]
            if ids[: len(whole)] == whole and all(trajectory["response_mask"][at]):
                assert trajectory["response_logprobs"][at] == one.logprobs
                trained += 1
        assert trained == 1
    total = sum(len(one.token_ids) for one in seen)
    assert sum(sum(trajectory["response_mask"]) for trajectory in trajectories) == total


def assert_rescored(trajectory: dict[str, Any], vllm: RunningServer) -> None:
    """One pass over the whole trajectory, by the engine and by transformers, gives the logprobs of its sampled ids."""
    prompt, response = trajectory["prompt_ids"], trajectory["response_ids"]
    sampled = [n for n, on in enumerate(trajectory["response_mask"]) if on]
    assert sampled
    recorded = [trajectory["response_logprobs"][n] for n in sampled]
    for again in (vllm.rescored(prompt, response), rescored(POLICY, prompt, response)):
        assert recorded == pytest.approx([again[n] for n in sampled], abs=CLOSE)


async def converse(
    client: ClientSession, url: str, speaker: Speaker, sampling: dict[str, Any], stream: bool
) -> tuple[list[Heard], dict[str, Any]]:
    """Four turns in a session of their own, and the record of it."""
    async with client.post(f"{url}/sessions", json={"sampling": sampling}, headers=ADMIN) as made:
        session = await made.json()
    heard: list[Heard] = []
    for _ in range(4):
        heard.append(await ask(client, session["base_url"], session["api_key"], speaker, stream))
        speaker.answer(heard[-1], ["exit code 0" for _ in heard[-1].calls])
    async with client.post(f"{url}/sessions/{session['session_id']}/finalize", headers=ADMIN) as done:
        return heard, await done.json()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", [Chat, Responses, Messages])
async def test_a_conversation_is_recorded_as_the_engine_read_and_sampled_it(
    vllm: RunningServer, tmp_path: Path, kind: type[Speaker], stream: bool
) -> None:
    async with logged(vllm.url) as (engine, seen), gateway(engine, tmp_path) as url, ClientSession() as client:
        for sampling in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            seen.clear()
            heard, record = await converse(client, url, kind(), sampling, stream)
            assert len(seen) == 4
            trajectories = record["trajectories"]
            assert_recorded(trajectories, seen)
            for trajectory in trajectories:
                await asyncio.to_thread(assert_rescored, trajectory, vllm)
                assert {one[0] for one in trajectory["weight_spans"]} == {"default"}
            account = record["accounting"]
            total = sum(len(one.token_ids) for one in seen)
            assert (account["sampled"], account["trained"], account["masked"], account["dropped"]) == (
                total,
                total,
                0,
                {},
            )
            if sampling["temperature"] == 0:
                # The policy solves this task: its first turn is a call, and the client's history is always found again.
                assert json.loads(heard[0].calls[0][1]) == {"command": "echo temu > vode.txt"}
                assert [trajectory["num_turns"] for trajectory in trajectories] == [4]
                assert not stream or (heard[0].deltas > 1 and len(seen[0].choices()) > 1)
