"""vLLM and SGLang as their clients see them: real HTTP on a real port, only the sampling is played."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

Flavour = Literal["vllm-generate", "vllm-completions", "sglang"]
WINDOW = 64


@dataclass
class Play:
    """One answer; the first stop id of the request is appended at a `stop`. `edit` changes the finished body, `fault`
    answers in its place. A stream has `piece` tokens in each event, `token_delay` seconds before it; after `breaks`
    tokens the connection is reset, after `ends` the body ends as if all were said, after `fails` it tells of an error
    (with that code and text). `edit_event` changes each event."""

    ids: list[int] = field(default_factory=lambda: [1, 2])
    finish: str = "stop"
    logprobs: list[float] | None = None
    version: str | None = None
    cached: int | None = None
    delay: float = 0.0
    edit: Callable[[dict[str, Any]], None] | None = None
    fault: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
    piece: int = 1
    token_delay: float = 0.0
    breaks: int | None = None
    ends: int | None = None
    fails: tuple[int, int, str] | None = None
    edit_event: Callable[[dict[str, Any]], None] | None = None


@dataclass
class FakeServer:
    """Plays `plays` in turn, the last one for ever."""

    flavour: Flavour
    plays: list[Play]
    model: str = "tiny"
    key: str = ""
    incremental: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    paths: list[str] = field(default_factory=list[str])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    aborted: list[Any] = field(default_factory=list[Any])
    disconnected: int = 0
    url: str = ""
    window: int = WINDOW
    deaf: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    def app(self) -> web.Application:
        @web.middleware
        async def guard(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
                return web.json_response({"error": "Unauthorized"}, status=401)
            return await handler(request)

        app = web.Application(client_max_size=64 << 20, middlewares=[guard])
        if self.flavour == "sglang":
            app.router.add_get("/get_model_info", self.model_info)
            app.router.add_get("/get_server_info", self.server_info)
            app.router.add_post("/generate", self.sglang)
            app.router.add_post("/abort_request", self.abort)
        else:
            app.router.add_get("/v1/models", self.models)
            app.router.add_post("/v1/completions", self.completions)
            if self.flavour == "vllm-generate":
                app.router.add_post("/inference/v1/generate", self.generate)
                app.router.add_post("/inference/v1/abort_requests", self.abort)
        return app

    async def models(self, _: web.Request) -> web.Response:
        card = {"id": self.model, "object": "model", "root": self.model, "max_model_len": self.window}
        adapter = {"id": "adapter", "object": "model", "root": "x", "parent": self.model, "max_model_len": None}
        return web.json_response({"object": "list", "data": [card, adapter]})

    async def model_info(self, _: web.Request) -> web.Response:
        return web.json_response({"model_path": self.model, "is_generation": True, "weight_version": "default"})

    async def server_info(self, _: web.Request) -> web.Response:
        return web.json_response({"context_length": self.window, "max_total_num_tokens": 4096, "version": "0.5"})

    async def abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.aborted.extend(body.get("request_ids") or [body.get("rid")])
        if not self.deaf:
            self.heard.set()
        return web.Response(status=200)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "token_ids", self._generate_body)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "prompt", self._completions_body)

    async def sglang(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, "input_ids", self._sglang_body)

    async def _answer(
        self,
        request: web.Request,
        prompt_field: str,
        write: Callable[[dict[str, Any], Play, list[int], list[float], int], dict[str, Any]],
    ) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        play = self.plays.pop(0) if len(self.plays) > 1 else self.plays[0]
        try:
            await asyncio.sleep(play.delay)
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        if play.fault is not None:
            return await play.fault(request)
        length = len(body[prompt_field])
        if length >= self.window:
            return too_long(self.flavour, length)
        sampling = body.get("sampling_params", body)
        ids, stops = list(play.ids), sampling["stop_token_ids"]
        if play.finish == "stop" and stops:
            ids.append(stops[0])
        limit = sampling.get("max_tokens", sampling.get("max_new_tokens"))
        if len(ids) > limit:
            ids, play = ids[:limit], Play(finish="length")
        logprobs = play.logprobs or [-0.25 * (i + 1) for i in range(len(ids))]
        answer = write(body, play, ids, logprobs, length)
        if play.edit is not None:
            play.edit(answer)
        if body["stream"]:
            return await self._stream(request, body, play, answer, len(ids))
        return web.json_response(answer)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], play: Play, answer: dict[str, Any], total: int
    ) -> web.StreamResponse:
        cut = self._sglang_event if self.flavour == "sglang" else self._vllm_event
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        await response.write(b": keep-alive\n\n")

        async def say(event: dict[str, Any]) -> None:
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        try:
            for start in range(0, max(total, 1), play.piece):
                if play.fails is not None and play.fails[0] <= start:
                    await say({"error": {"message": play.fails[2], "type": "Error", "code": play.fails[1]}})
                    break
                if play.breaks is not None and play.breaks <= start:
                    await asyncio.sleep(0.02)  # what was written is on its way
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if play.ends is not None and play.ends <= start:
                    return response
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.heard.wait(), play.token_delay)
                if self.heard.is_set() and self.flavour != "sglang":
                    await say(cut(answer, start, start, "abort"))
                    break
                event = cut(answer, start, min(start + play.piece, total), None)
                if play.edit_event is not None:
                    play.edit_event(event)
                await say(event)
            else:
                if self.flavour != "sglang":
                    assert body["stream_options"] == {"include_usage": True}
                    await say({"choices": [], "usage": answer["usage"]})
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.disconnected += 1
            raise
        return response

    def _vllm_event(self, answer: dict[str, Any], start: int, end: int, ending: str | None) -> dict[str, Any]:
        """One event of vLLM 0.32: the ids that are new; reason and weight versions stand in the last one."""
        whole = answer["choices"][0]
        logprobs, ids = whole["logprobs"], whole["token_ids"]
        if "content" in logprobs:
            part: dict[str, Any] = {"content": logprobs["content"][start:end]}
        else:
            part = {key: value and value[start:end] for key, value in logprobs.items()}
        length = len(logprobs["content"] if "content" in logprobs else logprobs["token_logprobs"])
        last = ending is not None or end == length
        versions = whole.get("weight_versions")
        if versions and ending is not None:
            versions = [{**span, "end": min(span["end"], end)} for span in versions if span["start"] < end]
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": (ending or whole["finish_reason"]) if last else None,
            "stop_reason": whole["stop_reason"] if last and ending is None else None,
            "token_ids": ids[start:end],
            "logprobs": part,
            "weight_versions": versions if last else None,
        }
        if "prompt_token_ids" in whole:
            choice["prompt_token_ids"] = whole["prompt_token_ids"] if start == 0 else None
        return {"choices": [choice], "usage": None}

    def _sglang_event(self, answer: dict[str, Any], start: int, end: int, ending: str | None) -> dict[str, Any]:
        """One event of SGLang: all ids until then, or what is new with `--incremental-streaming-output`."""
        assert ending is None
        meta, ids = answer["meta_info"], answer["output_ids"]
        first = start if self.incremental else 0
        rows = meta["output_token_logprobs"]
        last = end == len(rows)
        part = {
            **meta,
            "output_token_logprobs": rows[first:end],
            "finish_reason": meta["finish_reason"] if last else None,
        }
        part["completion_tokens"] = meta["completion_tokens"] if last else end
        return {"text": "x", "output_ids": ids[first:end], "meta_info": part}

    def _generate_body(
        self, body: dict[str, Any], play: Play, ids: list[int], logprobs: list[float], prompt: int
    ) -> dict[str, Any]:
        content: list[dict[str, Any]] = [
            {"token_id": t, "logprob": p, "rank": 1, "top_logprobs": []} for t, p in zip(ids, logprobs, strict=True)
        ]
        return {
            "request_id": f"generate-tokens-{body['request_id']}",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": play.finish,
                    "stop_reason": ids[-1] if play.finish == "stop" else None,
                    "token_ids": ids,
                    "logprobs": {"content": content},
                    "weight_versions": play.version and [{"version": play.version, "start": 0, "end": len(ids)}],
                }
            ],
            "usage": self._usage(play, ids, prompt),
        }

    def _completions_body(
        self, body: dict[str, Any], play: Play, ids: list[int], logprobs: list[float], prompt: int
    ) -> dict[str, Any]:
        logs = {"tokens": [f"token_id:{t}" for t in ids], "token_logprobs": logprobs, "top_logprobs": None}
        return {
            "id": f"cmpl-{body['request_id']}",
            "object": "text_completion",
            "model": self.model,
            "choices": [
                {
                    "index": 0,
                    "text": "x",
                    "finish_reason": play.finish,
                    "stop_reason": ids[-1] if play.finish == "stop" else None,
                    "token_ids": ids,
                    "prompt_token_ids": body["prompt"],
                    "logprobs": logs,
                }
            ],
            "usage": self._usage(play, ids, prompt),
        }

    def _usage(self, play: Play, ids: list[int], prompt: int) -> dict[str, Any]:
        details = None if play.cached is None else {"cached_tokens": play.cached}
        return {"prompt_tokens": prompt, "completion_tokens": len(ids), "prompt_tokens_details": details}

    def _sglang_body(
        self, body: dict[str, Any], play: Play, ids: list[int], logprobs: list[float], prompt: int
    ) -> dict[str, Any]:
        reason: dict[str, Any] = {"type": play.finish}
        if play.finish == "stop":
            reason["matched"] = ids[-1]
        if play.finish == "length":
            reason["length"] = len(ids)
        if play.finish == "abort":
            reason["message"] = "aborted for new weights"
        meta: dict[str, Any] = {
            "id": body["rid"],
            "finish_reason": reason,
            "prompt_tokens": prompt,
            "completion_tokens": len(ids),
            "cached_tokens": play.cached or 0,
            "output_token_logprobs": [[p, t, None] for t, p in zip(ids, logprobs, strict=True)],
        }
        if play.version is not None:
            meta["weight_version"] = play.version
        return {"text": "x", "output_ids": ids, "meta_info": meta}


def too_long(flavour: Flavour, length: int) -> web.Response:
    if flavour == "sglang":
        text = f"The input ({length} tokens) is longer than the model's context length ({WINDOW} tokens)."
        return web.json_response({"error": {"message": text}}, status=400)
    text = f"This model's maximum context length is {WINDOW} tokens. However, your request has {length} input tokens."
    return web.json_response({"error": {"message": text, "type": "BadRequestError", "code": 400}}, status=400)


def status(code: int, text: str = "busy", **headers: str) -> Play:
    """An HTTP error."""

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": text}}, status=code, headers=headers)

    return Play(fault=answer)


def page() -> Play:
    """What a proxy says instead."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="<html><body>Welcome</body></html>", content_type="text/html")

    return Play(fault=answer)


def hang_up(after: bytes = b"") -> Play:
    """The connection breaks: before the answer, or after this much of it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "10000"})
        if after:
            await response.prepare(request)
            await response.write(after)
        assert request.transport is not None
        request.transport.abort()
        return response

    return Play(fault=answer)


def npy(values: Any) -> str:
    """base64 of a `.npy` file."""
    import numpy

    buffer = io.BytesIO()
    numpy.save(buffer, values)
    return base64.b64encode(buffer.getvalue()).decode()


@asynccontextmanager
async def serving(
    flavour: Flavour, *plays: Play, model: str = "tiny", key: str = "", port: int = 0
) -> AsyncGenerator[FakeServer]:
    """A server on a free loopback port."""
    server = FakeServer(flavour, list(plays) or [Play()], model, key)
    runner = web.AppRunner(server.app(), handler_cancellation=True, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
