"""A real vLLM server on the CPU, and a proxy that writes down what passes between it and its client."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from aiohttp import ClientSession, web

MODEL = "policy"
WINDOW = 2048
START_SECONDS = 400
_FLAGS = (
    *("--served-model-name", MODEL, "--max-model-len", str(WINDOW), "--max-num-seqs", "16"),
    *("--dtype", "float32", "--enforce-eager", "--enable-scale-out"),
    *("--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"),
)
_SETTINGS = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # /pause, /resume, /update_weight_version
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on the CPU: one process less to start
}


class VllmServer:
    """vLLM serving `folder` on a free port of this host. Use as a context manager: the exit always kills it."""

    def __init__(self, python: Path, folder: Path, log: Path) -> None:
        self._python = python
        self._folder = folder
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        # A test run that is killed takes its server with it, where the system can say so.
        guard = [path, "--pdeathsig", "TERM", "--"] if (path := shutil.which("setpriv")) else []
        argv = [*guard, str(self._python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._folder)]
        argv += ["--host", "127.0.0.1", "--port", str(port), *_FLAGS]
        env = {**os.environ, **_SETTINGS}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # its processes load the same files
        env.pop("PYTHONPATH", None)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, start_new_session=True
            )
        try:
            self._wait(self._process)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        for number, seconds in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)  # all of its processes: a dead parent leaves them behind
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        process.wait(1)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise AssertionError(f"vLLM exited with {process.returncode}:\n{self.log()}")
            with suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.url}/health", timeout=5).close()
                return
            time.sleep(0.2)
        raise AssertionError(f"vLLM did not answer within {START_SECONDS} s:\n{self.log()}")

    def log(self) -> str:
        """The end of what it wrote."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""


class RunningServer:
    """A server as its tests see it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The decoded answer; None when it is empty."""
        data = json.dumps(body or {}).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None

    def sampled(self) -> int:
        """Tokens that it has sampled since its start."""
        return self._metric("vllm:generation_tokens_total")

    def settled(self) -> int:
        """`sampled` once nothing runs and it has stood still for a while: it is counted a little late."""
        deadline = time.monotonic() + 60
        last, since = -1, time.monotonic()
        while time.monotonic() < deadline:
            count, idle = self.sampled(), self._metric("vllm:num_requests_running") == 0
            if count != last or not idle:
                last, since = count, time.monotonic()
            elif time.monotonic() - since > 0.5:
                return count
            time.sleep(0.05)
        raise AssertionError("the server does not come to rest")

    def rescored(self, prompt: list[int], response: list[int]) -> list[float]:
        """The logprobs of `response` [T] after `prompt` by one pass over both, at temperature 1."""
        body = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
        answer = self.post("/inference/v1/generate", {"token_ids": prompt + response, "sampling_params": body})
        rows = answer["prompt_logprobs"][len(prompt) :]
        return [row[str(token)]["logprob"] for row, token in zip(rows, response, strict=True)]

    def _metric(self, name: str) -> int:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return int(sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{")))


@dataclass
class Exchange:
    """One request to the engine, and its reply as it came over the wire."""

    path: str
    sent: dict[str, Any]
    raw: bytearray = field(default_factory=bytearray)

    @property
    def prompt_ids(self) -> list[int]:
        """The ids that the engine says it read."""
        for event in self._events():
            for where in (event, *event["choices"]):
                if where.get("prompt_token_ids"):
                    return where["prompt_token_ids"]
        return []

    @property
    def token_ids(self) -> list[int]:
        """The ids that it sampled."""
        return [token for choice in self.choices() for token in choice["token_ids"]]

    @property
    def logprobs(self) -> list[float]:
        """Their logprobs."""
        out: list[float] = []
        for choice in self.choices():
            row = choice["logprobs"]
            out += [one["logprob"] for one in row["content"]] if "content" in row else row["token_logprobs"]
        return out

    def choices(self) -> list[dict[str, Any]]:
        """The choice of each event of the stream, or of the whole answer."""
        return [choice for event in self._events() for choice in event["choices"]]

    def _events(self) -> list[dict[str, Any]]:
        if not self.raw.startswith(b"data:"):
            return [json.loads(self.raw)]
        lines = [line.removeprefix(b"data: ") for line in bytes(self.raw).splitlines() if line.startswith(b"data:")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]


@asynccontextmanager
async def logged(
    upstream: str, *, window: int = WINDOW, deaf: bool = False
) -> AsyncGenerator[tuple[str, list[Exchange]]]:
    """The address of a proxy in front of `upstream`, and the generations that have passed through it.

    `window` is what the proxy says the server's window is. A `deaf` one does not hear that its client hung up.
    """
    seen: list[Exchange] = []
    async with ClientSession() as client:

        async def forward(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            exchange = Exchange(request.path, json.loads(body) if body else {})
            if request.path.endswith(("/generate", "/completions")):
                seen.append(exchange)
            async with client.request(
                request.method, upstream + request.path_qs, data=body, headers={"Content-Type": "application/json"}
            ) as answer:
                reply = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                with suppress(ConnectionError):  # the client hung up
                    await reply.prepare(request)
                    async for piece in answer.content.iter_any():
                        exchange.raw += piece
                        await reply.write(piece.replace(b'"max_model_len":%d' % WINDOW, b'"max_model_len":%d' % window))
                    await reply.write_eof()
            return reply

        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{tail:.*}", forward)
        runner = web.AppRunner(app, handler_cancellation=not deaf, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
        finally:
            await runner.cleanup()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
