"""Another project's gateway in front of an engine that answers at once; run by a Python that has it installed.

    PYTHON benchmarks/gateway_peers.py agentcore|rllm TOKENIZER SCRIPT

Prints `listening on URL gateway pid N`: the CPU time of process N is that of the gateway alone. `{session}` in the URL
stands for a session's name. What of the work is done in process N differs:

agentcore  agentcore-rl-toolkit[gateway]. It renders the conversation, tokenises it, reads the tool calls in what was
           sampled and keeps the tokens: the same work as our gateway's.
rllm       rllm-model-gateway 0.1.0, with tokenizers and jinja2 for the engine. A proxy: it asks a vLLM server for
           token ids and log-probabilities, keeps each request and answer whole in memory, and takes these fields out
           of what the client gets. It renders, tokenises and reads no turn itself. The server does that for the whole
           prompt of each turn, here in a process of its own (`engine`) that is not counted and answers from a cache.
           The released package has no cumulative mode that would send prompts as token ids.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from typing import Any


def turns_of(script: Path) -> list[str]:
    """The texts of the script."""
    return [json.loads(line)["text"] for line in script.read_text().splitlines()]


def parsed(text: str) -> tuple[str, dict[str, Any] | None]:
    """The text before a turn's tool call, and the call's name and arguments; None where it has no call."""
    said, mark, call = text.partition("<tool_call>")
    return said, json.loads(call.partition("</tool_call>")[0]) if mark else None


def agentcore(tokenizer_folder: str, script: Path) -> None:
    """Serve agentcore-rl-toolkit's gateway until the process is ended."""
    from agentcore_rl_toolkit.rollout_gateway import HfTemplateRenderer, RolloutGateway, TurnRecord
    from aiohttp import web
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    outputs = [tokenizer.encode(text + "<|im_end|>", add_special_tokens=False) for text in turns_of(script)]

    class Instant:
        """Plays the script to each session."""

        def __init__(self) -> None:
            self.positions: dict[str | None, int] = {}

        async def generate(self, *, prompt_ids: list[int], session_id: str | None = None, **_: Any) -> Any:
            """The next turn."""
            at = self.positions[session_id] = self.positions.get(session_id, -1) + 1
            ids = outputs[at % len(outputs)]
            return TurnRecord(
                prompt_ids=list(prompt_ids),
                output_ids=list(ids),
                finish_reason="stop",
                output_log_probs=[-0.5] * len(ids),
            )

    def calls(body: str, _: Any) -> tuple[str, list[dict[str, Any]], bool]:
        text, call = parsed(body)
        return text, [{"name": call["name"], "input": call["arguments"]}] if call else [], False

    renderer = HfTemplateRenderer(tokenizer, tool_parser=calls)
    gateway = RolloutGateway(backend=Instant(), renderer=renderer, tokenizer=tokenizer)

    async def serve() -> None:
        runner = web.AppRunner(gateway.app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        announce(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


def rllm(tokenizer_folder: str, script: Path) -> None:
    """Serve rllm-model-gateway until the process is ended. Its engine ends with it."""
    from rllm_model_gateway.models import GatewayConfig, WorkerConfig
    from rllm_model_gateway.server import create_app

    # The engine holds the other end of its stdin: it ends when this process does, however that comes.
    command = [sys.executable, __file__, "engine", tokenizer_folder, str(script)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdin is not None and engine.stdout is not None
        url = engine.stdout.readline().strip()
        if not url:
            raise SystemExit("the engine ended before it listened")
        app = create_app(GatewayConfig(store_worker="memory", workers=[WorkerConfig(url=url)]))
        listener = listening()
        announce(listener.getsockname()[1], "/sessions/{session}")
        serve_asgi(app, listener)


def engine(tokenizer_folder: str, script: Path) -> None:
    """Serve what the proxy needs of a vLLM server until stdin is closed. Prints its URL."""
    app = instant_vllm(Path(tokenizer_folder), turns_of(script))
    listener = listening()
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    serve_asgi(app, listener)


def instant_vllm(tokenizer_folder: Path, script: list[str]) -> Any:
    """An ASGI application that answers Chat requests as vLLM does with `logprobs` and `return_token_ids`.

    Turn n of a conversation, counted by its assistant messages, is line n of the script. A prompt is rendered and then
    tokenised message by message, each once.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    template = chat_template(tokenizer_folder)

    @cache
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    @cache
    def answer(turn: int) -> dict[str, Any]:
        text, call = parsed(script[turn % len(script)])
        ids = encode(script[turn % len(script)] + "<|im_end|>")
        message: dict[str, Any] = {"role": "assistant", "content": text, "tool_calls": []}
        if call:
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
            message["tool_calls"] = [{"id": f"call_{turn}", "type": "function", "function": function}]
        return {
            "index": 0,
            "message": message,
            "logprobs": {"content": [logprob(tokenizer.decode([token])) for token in ids]},
            "finish_reason": "tool_calls" if call else "stop",
            "stop_reason": None,
            "token_ids": ids,
        }

    async def chat(request: Request) -> Response:
        body = await request.json()
        if body.get("stream") or not (body.get("logprobs") and body.get("return_token_ids")):
            return JSONResponse({"error": "only whole answers with logprobs and token ids are served"}, 400)
        text = template.render(messages=body["messages"], tools=body.get("tools"), add_generation_prompt=True)
        *messages, last = text.split("<|im_end|>\n")
        prompt = [token for part in messages for token in encode(part + "<|im_end|>\n")] + encode(last)
        choice = answer(sum(message["role"] == "assistant" for message in body["messages"]))
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(choice["token_ids"])}
        out = {"id": "chatcmpl-1", "object": "chat.completion", "created": 0, "model": body["model"]}
        return JSONResponse({**out, "choices": [choice], "usage": usage, "prompt_token_ids": prompt})

    async def health(_: Request) -> Response:
        return Response()

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/health", health)])


def chat_template(tokenizer_folder: Path) -> Any:
    """The folder's chat template."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    file = tokenizer_folder / "chat_template.jinja"
    stated = tokenizer_folder / "tokenizer_config.json"
    text = file.read_text() if file.exists() else json.loads(stated.read_text())["chat_template"]
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
    return environment.from_string(text)


def logprob(token: str) -> dict[str, Any]:
    """One sampled token as Chat answers state it."""
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}


def listening() -> socket.socket:
    """A socket on a free port. asyncio turns Nagle's delay of 40 ms off only where the protocol is named."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    return listener


def serve_asgi(app: Any, listener: socket.socket) -> None:
    """Serve `app` until the process is asked to end.

    uvicorn writes a line per request to stdout unless told not to. Nobody reads ours after the first line, so the pipe
    would fill and the server stand still.
    """
    import uvicorn

    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=600)
    uvicorn.Server(config).run(sockets=[listener])


def announce(port: int, path: str = "") -> None:
    """Say where the gateway is."""
    print(f"listening on http://127.0.0.1:{port}{path} gateway pid {os.getpid()}", flush=True)


if __name__ == "__main__":
    KINDS = {"agentcore": agentcore, "rllm": rllm, "engine": engine}
    if sys.argv[1] not in KINDS:
        raise SystemExit(f"unknown peer {sys.argv[1]!r}: agentcore or rllm")
    KINDS[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
