"""Backends of every kind over fake servers and clients, for the tests of their common contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, cast

from pydantic import TypeAdapter

from tests.engine.fake_clients import Answer, FakeTinkerClient, FakeTinkerSdk, FakeVerlClient
from tests.engine.fake_servers import FakeServer, Flavour, Play, serving
from uni_agent.engine import EngineConfig, SamplingBackend, SamplingParams
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.engine.tinker import TinkerBackend
from uni_agent.engine.verl import VerlBackend

ENGINE: TypeAdapter[Any] = TypeAdapter(EngineConfig)
REMOTE: list[Flavour] = ["vllm-generate", "vllm-completions", "sglang"]
PARAMS = SamplingParams(stop_token_ids=(9,))


def engine(flavour: Flavour, *urls: str, **options: Any) -> SamplingBackend:
    where: dict[str, Any] = {"url": urls[0]} if len(urls) == 1 else {"urls": list(urls)}
    raw = {"type": flavour.partition("-")[0], "backoff": 0.01, **where, **options}
    return ENGINE.validate_python(raw).build()


@asynccontextmanager
async def playing(flavour: Flavour, *plays: Play, **options: Any) -> AsyncGenerator[tuple[SamplingBackend, FakeServer]]:
    async with serving(flavour, *plays) as server:
        backend = engine(flavour, server.url, **options)
        await backend.start()
        try:
            yield backend, server
        finally:
            await backend.close()


Make = Callable[..., Awaitable[SamplingBackend]]


@asynccontextmanager
async def maker(kind: Literal["scripted", "verl", "tinker"] | Flavour) -> AsyncGenerator[Make]:
    """Makes backends of `kind` with a window of 64 that play (ids, finish reason, seconds); they are not started."""
    async with AsyncExitStack() as stack:

        async def build(*plays: tuple[list[int], str, float]) -> SamplingBackend:
            if kind == "scripted":
                turns = [ScriptedTurn(ids, cast("Any", finish), delay=delay) for ids, finish, delay in plays]
                backend: SamplingBackend = ScriptedBackend(turns, max_context=64)
            elif kind == "verl":
                backend = VerlBackend(FakeVerlClient(*(Answer(*play) for play in plays)), max_context=64)
            elif kind == "tinker":
                client = FakeTinkerClient(*(Answer(*play) for play in plays))
                backend = TinkerBackend(client=client, sdk=FakeTinkerSdk, model_path="tinker://w", max_context=64)
            else:
                server = await stack.enter_async_context(
                    serving(kind, *(Play(ids, finish, delay=delay) for ids, finish, delay in plays))
                )
                backend = engine(kind, server.url)
            stack.push_async_callback(backend.close)
            return backend

        yield build


def ids_key(flavour: Flavour) -> Callable[[dict[str, Any]], list[int]]:
    """Where the ids stand in an answer."""
    return lambda body: body["output_ids"] if flavour == "sglang" else body["choices"][0]["token_ids"]


def logprob_list(flavour: Flavour, body: dict[str, Any]) -> list[Any]:
    if flavour == "sglang":
        return body["meta_info"]["output_token_logprobs"]
    logprobs = body["choices"][0]["logprobs"]
    return logprobs["content"] if flavour == "vllm-generate" else logprobs["token_logprobs"]


async def told(server: FakeServer, *, closed: bool = True) -> None:
    """The server has seen the connection close (`closed`), and been told by name where it has a route for that."""
    async with asyncio.timeout(5):
        while (closed and not server.disconnected) or (server.flavour != "vllm-completions" and not server.aborted):
            await asyncio.sleep(0.01)
    sent = server.requests[0]
    named = {"sglang": [sent.get("rid")], "vllm-generate": [f"generate-tokens-{sent.get('request_id')}"]}
    assert server.aborted == named.get(server.flavour, [])
