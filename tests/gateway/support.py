"""A gateway on a real port, inside the test's event loop, over an engine that plays what the test says."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.tokens.small import BASH
from uni_agent.engine.base import SamplingBackend
from uni_agent.engine.scripted import Script, ScriptedBackend
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.http.server import GatewayServer
from uni_agent.gateway.journal import Journal
from uni_agent.gateway.node import GatewayNode
from uni_agent.tokens.renderer import ChatTemplateRenderer

ADMIN = "admin-token"

BASH_CHAT = BASH
BASH_RESPONSES = {"type": "function", **BASH["function"]}
BASH_MESSAGES = {
    "name": "bash",
    "description": BASH["function"]["description"],
    "input_schema": BASH["function"]["parameters"],
}


def call(command: str, *, before: str = "") -> str:
    """What a Qwen model writes to call `bash`."""
    body = json.dumps({"name": "bash", "arguments": {"command": command}})
    return f"{before}<tool_call>\n{body}\n</tool_call>"


@dataclass(slots=True)
class Answer:
    """An HTTP answer. `json` is None for what is no JSON; `cut`: the connection broke before its end."""

    status: int
    headers: dict[str, str]
    body: bytes
    cut: bool = False

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def events(self) -> list[tuple[str, Any]]:
        """(event name, data) of a stream; data is decoded, or the text where it is no JSON."""
        out: list[tuple[str, Any]] = []
        for frame in self.body.decode().split("\n\n"):
            lines = frame.split("\n")
            name = "".join(line[7:] for line in lines if line.startswith("event: "))
            data = [line[6:] for line in lines if line.startswith("data: ")]
            if data:
                text = "\n".join(data)
                out.append((name, text if text == "[DONE]" else json.loads(text)))
        return out


@dataclass(slots=True)
class Opened:
    """A session, and how its agent reaches it."""

    session_id: str
    api_key: str
    reward_key: str
    base_url: str


@dataclass(slots=True)
class Gateway:
    """A running gateway. `backend.calls` says what the engine was asked."""

    server: GatewayServer
    backend: Any
    http: aiohttp.ClientSession
    opened: list[Opened] = field(default_factory=list["Opened"])

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def node(self) -> GatewayNode:
        return self.server.node

    async def request(
        self, method: str, path: str, body: Any = None, key: str = "", headers: dict[str, str] | None = None
    ) -> Answer:
        """One request. `body` is JSON data, or bytes as they are."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {**({"Authorization": f"Bearer {key}"} if key else {}), **(headers or {})}
        async with self.http.request(method, self.url + path, data=data, headers=sent) as response:
            pieces: list[bytes] = []
            cut = False
            try:
                async for piece in response.content.iter_any():
                    pieces.append(piece)
            except aiohttp.ClientError:
                cut = True
            return Answer(response.status, dict(response.headers), b"".join(pieces), cut)

    async def open(self, session_id: str | None = None, **settings: Any) -> Opened:
        body = {**settings, **({"session_id": session_id} if session_id else {})}
        answer = await self.request("POST", "/sessions", body, ADMIN)
        assert answer.status == 201, answer.body
        names = ("session_id", "api_key", "reward_key", "base_url")
        opened = Opened(**{name: answer.json[name] for name in names})
        self.opened.append(opened)
        return opened

    async def chat(self, session: Opened, messages: Sequence[Any], **fields: Any) -> Answer:
        tools = fields.pop("tools", [BASH_CHAT])
        headers = fields.pop("headers", None)
        body = {"model": "m", "messages": list(messages), **({"tools": tools} if tools else {}), **fields}
        return await self.request("POST", "/v1/chat/completions", body, session.api_key, headers)

    async def responses(self, session: Opened, items: Any, **fields: Any) -> Answer:
        tools = fields.pop("tools", [BASH_RESPONSES])
        body = {"model": "m", "input": items, **({"tools": tools} if tools else {}), **fields}
        return await self.request("POST", "/v1/responses", body, session.api_key)

    async def messages(self, session: Opened, messages: Sequence[Any], **fields: Any) -> Answer:
        tools = fields.pop("tools", [BASH_MESSAGES])
        headers = {"x-api-key": session.api_key, "anthropic-version": "2023-06-01", **fields.pop("headers", {})}
        body = {"model": "m", "max_tokens": 1000, "messages": list(messages), **fields}
        if tools:
            body["tools"] = tools
        return await self.request("POST", "/v1/messages", body, headers=headers)

    async def finalize(self, session: Opened) -> dict[str, Any]:
        answer = await self.request("POST", f"/sessions/{session.session_id}/finalize", None, ADMIN)
        assert answer.status == 200, answer.body
        check_account(answer.json)
        return answer.json

    async def info(self, session: Opened) -> dict[str, Any]:
        return (await self.request("GET", f"/sessions/{session.session_id}", None, ADMIN)).json


def check_account(finished: dict[str, Any]) -> None:
    """Every sampled token is trained once, masked, or dropped for a reason."""
    account = finished["accounting"]
    assert account["sampled"] == account["trained"] + account["masked"] + sum(account["dropped"].values())
    assert account["trained"] == sum(sum(t["response_mask"]) for t in finished["trajectories"])
    for trajectory in finished["trajectories"]:
        length = len(trajectory["response_ids"])
        assert len(trajectory["response_mask"]) == length
        assert trajectory["response_logprobs"] is None or len(trajectory["response_logprobs"]) == length


@asynccontextmanager
async def serving(
    renderer: ChatTemplateRenderer,
    script: Script = (),
    *,
    backend: SamplingBackend | None = None,
    config: dict[str, Any] | None = None,
    journal: Path | Journal | None = None,
    **options: Any,
) -> AsyncGenerator[Gateway]:
    """A gateway that plays `script` to each session from its start."""
    engine = backend or ScriptedBackend(script, encode=renderer.tokenizer.encode)
    node = GatewayNode(
        engine,
        renderer,
        GatewayConfig.model_validate({"retries": 0, **(config or {})}),
        journal=Journal(journal) if isinstance(journal, Path) else journal,
        **options,
    )
    server = GatewayServer(node, admin_token=ADMIN)
    await server.start()
    try:
        async with aiohttp.ClientSession() as http:
            yield Gateway(server, engine, http)
    finally:
        await server.close()
