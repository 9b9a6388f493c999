"""A scripted OpenAI-compatible server on a real port: the wire is real, only the model is played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Reply = dict[str, Any] | web.Response
"""An assistant message (`content`, `tool_calls`, …), or a whole response for faults."""


@dataclass
class OpenAIServer:
    """Answers `/v1/chat/completions` with what `play(request body)` says; keeps every request in `requests`."""

    play: Callable[[dict[str, Any]], Reply]
    delay: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    keys: list[str] = field(default_factory=list[str])
    url: str = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        if self.delay:
            await asyncio.sleep(self.delay)
        reply = self.play(body)
        if isinstance(reply, web.Response):
            return reply
        top = {key: reply.pop(key) for key in ("prompt_token_ids",) if key in reply}
        choice = {key: reply.pop(key) for key in ("token_ids", "logprobs", "finish_reason") if key in reply}
        sampled = reply.pop("completion_tokens", len(choice.get("token_ids", [0] * 7)))
        choice.setdefault("finish_reason", "tool_calls" if reply.get("tool_calls") else "stop")
        return web.json_response(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion",
                "created": 1,
                "model": body["model"],
                "choices": [{"index": 0, "message": {"role": "assistant", "content": None, **reply}, **choice}],
                "usage": {"prompt_tokens": 11, "completion_tokens": sampled, "total_tokens": 11 + sampled},
                **top,
            }
        )


def call(name: str, arguments: dict[str, Any] | str, call_id: str = "c1") -> dict[str, Any]:
    """A native tool call as it stands on the wire."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


@asynccontextmanager
async def serving(play: Callable[[dict[str, Any]], Reply], *, delay: float = 0.0) -> AsyncGenerator[OpenAIServer]:
    """A server on a free loopback port."""
    server = OpenAIServer(play, delay)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", server.chat)

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})

    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
