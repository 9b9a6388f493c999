"""The Tinker backend with the real SDK, against a service that is played at the wire (tinker 0.38: JSON, and protobuf
for what was sampled). Only the routes of one sampling session are there."""

from __future__ import annotations

import asyncio
import importlib
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from uni_agent.engine.base import SamplingParams, WeightSpan
from uni_agent.engine.tinker import TinkerBackend
from uni_agent.errors import ModelError

pytest.importorskip("tinker", reason="the Tinker SDK is not installed: pip install 'uni-agent[tinker]'")

PARAMS = SamplingParams(max_tokens=8, temperature=0.5, seed=3, stop_token_ids=(9,))


class FakeService:
    """One session; `sampled` are (ids, logprobs, `stop` or `length`) for one request after the other."""

    def __init__(self, *sampled: tuple[list[int], list[float], str]) -> None:
        self.sampled = list(sampled)
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.keys: set[str] = set()
        self.hang = False
        self.url = ""

    def named(self, path: str) -> list[dict[str, Any]]:
        return [body for at, body in self.requests if at == path]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body: dict[str, Any] = await request.json() if request.can_read_body else {}
        self.requests.append((request.path, body))
        self.keys.add(request.headers.get("X-API-Key", ""))
        replies: dict[str, dict[str, Any]] = {
            "/api/v1/client/config": {},
            "/api/v1/create_session": {"type": "create_session", "session_id": "s"},
            "/api/v1/create_sampling_session": {"type": "create_sampling_session", "sampling_session_id": "ss"},
            "/api/v1/session_heartbeat": {"type": "session_heartbeat"},
            "/api/v1/telemetry": {"status": "accepted"},
            "/api/v1/asample": {"request_id": f"r{len(self.requests)}", "sample_sequence_ids": ["q1"]},
        }
        if request.path == "/api/v1/retrieve_future":
            if self.hang:
                await asyncio.sleep(60)
            return web.Response(body=self._proto(), content_type="application/x-protobuf")
        if request.path in replies:
            return web.json_response(replies[request.path])
        return web.json_response({"detail": "not played"}, status=404)

    def _proto(self) -> bytes:
        wire: Any = importlib.import_module("tinker.proto.tinker_public_pb2")
        ids, logprobs, reason = self.sampled.pop(0)
        response = wire.SampleResponse(prompt_cache_hit_tokens=1)
        sequence = response.sequences.add()
        sequence.tokens = struct.pack(f"<{len(ids)}i", *ids)
        sequence.logprobs = struct.pack(f"<{len(logprobs)}f", *logprobs)
        sequence.stop_reason = wire.STOP_REASON_STOP if reason == "stop" else wire.STOP_REASON_LENGTH
        return response.SerializeToString()


@asynccontextmanager
async def connected(
    monkeypatch: pytest.MonkeyPatch, *sampled: tuple[list[int], list[float], str]
) -> AsyncGenerator[tuple[TinkerBackend, FakeService]]:
    service = FakeService(*sampled)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", service.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    monkeypatch.setenv("T_KEY", "tml-secret")
    backend = TinkerBackend(
        base_model="Q/q", base_url=f"http://127.0.0.1:{runner.addresses[0][1]}", api_key_env="T_KEY"
    )
    try:
        await backend.start()
        yield backend, service
    finally:
        await runner.cleanup()


async def test_ids_and_logprobs_come_as_the_service_sent_them(monkeypatch: pytest.MonkeyPatch) -> None:
    sampled = ([1, 2, 9], [-0.5, -0.25, -0.125], "stop"), ([3] * 8, [-1.0] * 8, "length")
    async with connected(monkeypatch, *sampled) as (backend, service):
        first = await backend.generate("a", [5, 6], PARAMS)
        second = await backend.generate("a", [5, 6, *first.token_ids], PARAMS)
    assert (first.token_ids, first.logprobs, first.finish_reason) == ([1, 2, 9], [-0.5, -0.25, -0.125], "stop")
    assert (first.weight_spans, first.cached_tokens) == ((WeightSpan("Q/q", 0, 3),), 1)
    assert (second.token_ids, second.finish_reason) == ([3] * 8, "length")
    asked = service.named("/api/v1/asample")
    assert [body["prompt"]["chunks"][0]["tokens"] for body in asked] == [[5, 6], [5, 6, 1, 2, 9]]
    params = asked[0]["sampling_params"]
    expected = {"max_tokens": 8, "temperature": 0.5, "top_p": 1.0, "top_k": -1, "seed": 3, "stop": [9]}
    assert {key: params[key] for key in expected} == expected
    assert service.keys == {"tml-secret"}


async def test_a_stop_token_that_is_not_in_the_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch, ([1, 2], [-0.5, -0.25], "stop")) as (backend, _):
        with pytest.raises(ModelError, match="left it out"):
            await backend.generate("a", [5], PARAMS)


async def test_a_cancelled_call_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connected(monkeypatch) as (backend, service):
        service.hang = True
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.generate("a", [5], PARAMS), 0.5)
        assert len(service.named("/api/v1/asample")) == 1
