"""`uni-agent gateway`: a stand-alone gateway in front of an engine."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from uni_agent.errors import ConfigError
from uni_agent.gateway.app_config import GatewayAppConfig

_ENGINES = ("scripted", "embedded", "vllm", "sglang", "tinker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("config", nargs="?", help="YAML with engine, renderer, sampling and gateway; flags go over it")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes a free one")
    parser.add_argument(
        "--admin-token", help="token of the admin API (default: UNI_AGENT_ADMIN_TOKEN, or a random one)"
    )
    parser.add_argument("--engine", choices=_ENGINES, help="what samples")
    parser.add_argument("--script", help="scripted: JSON lines {text or token_ids, finish_reason, delay, fault, …}")
    parser.add_argument("--script-shared", action="store_true", help="all sessions take turns from the one script")
    parser.add_argument("--tokenizer", help="folder with tokenizer.json and chat template")
    parser.add_argument("--model", help="embedded: folder of the model; else the model's name at the server")
    parser.add_argument("--url", action="append", help="vllm, sglang: address of the server; may be repeated")
    parser.add_argument("--max-context", type=int, help="scripted, embedded: context window in tokens")
    parser.add_argument("--journal", help="folder for the journal of committed turns")
    parser.add_argument("--processes", type=int, help="processes that share the sessions")
    parser.add_argument("--public-url", help="how agents reach the gateway, when not at host and port")
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help="set any key")


def execute(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C. Raises ConfigError for what cannot be served."""
    config = read_config(args)
    token = args.admin_token or config.gateway.admin_token()
    if config.gateway.processes > 1:
        from uni_agent.gateway.http.shards import serve_shards

        return serve_shards(config, token, announce)
    return asyncio.run(_serve(config, token))


def read_config(args: argparse.Namespace) -> GatewayAppConfig:
    """The configuration that the flags, the file and `-o` state. Raises ConfigError."""
    from uni_agent.config.load import from_data, load_config

    flags = _flags(args)
    if args.config is not None:
        layers = [("command line", flags)] if flags else []
        return load_config(GatewayAppConfig, args.config, args.override, extra_layers=layers).config
    if "engine" not in flags:
        raise ConfigError(f"name an engine (--engine {', '.join(_ENGINES)}), or a YAML file with one")
    return from_data(GatewayAppConfig, flags, "command line", args.override)


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    """The configuration tree that the flags state; only what was given."""
    data: dict[str, Any] = {}
    engine = _engine(args)
    if engine:
        data["engine"] = engine
    if args.max_context is not None:
        data.setdefault("engine", {})["max_context"] = args.max_context
    if args.script is not None:
        data["script"] = _absolute(args.script)
    if args.script_shared:
        data["script_shared"] = True
    if args.tokenizer is not None:
        data["renderer"] = {"tokenizer": _absolute(args.tokenizer)}
    if args.model is not None:
        data["model_name"] = Path(args.model).name or args.model
    names = ("host", "port", "processes", "public_url")
    gateway: dict[str, Any] = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.journal is not None:
        gateway["journal"] = {"folder": _absolute(args.journal)}
    if args.engine == "scripted":
        gateway["retries"] = 0  # a fault in a script is meant to be seen
    if gateway:
        data["gateway"] = gateway
    return data


def _engine(args: argparse.Namespace) -> dict[str, Any]:
    kind: str | None = args.engine
    if kind is None:
        return {}
    if kind == "scripted":
        if args.script is None:
            raise ConfigError("--engine scripted needs --script FILE")
        return {"type": "scripted", "turns": []}
    if kind == "embedded":
        if args.model is None:
            raise ConfigError("--engine embedded needs --model FOLDER")
        return {"type": "embedded", "path": _absolute(args.model)}
    engine: dict[str, Any] = {"type": kind}
    if kind in ("vllm", "sglang"):
        if not args.url:
            raise ConfigError(f"--engine {kind} needs --url ADDRESS")
        engine["urls"] = args.url
    if args.model is not None and kind != "sglang":
        engine["model"] = args.model
    return engine


def _absolute(path: str) -> str:
    return path if path.startswith("pkg://") else str(Path(path).expanduser().absolute())


async def _serve(config: GatewayAppConfig, token: str | None) -> int:
    from uni_agent.gateway.http.collector import spare_collections
    from uni_agent.gateway.http.server import GatewayServer

    server = GatewayServer(config.build(), admin_token=token)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    try:
        await server.start()
        spare_collections()
        announce(server.url, None if token else server.admin_token)
        await stop.wait()
    finally:
        await server.close()
    return 0


def announce(url: str, made_token: str | None) -> None:
    """Say where the gateway is, and the token when nobody chose one."""
    print(f"listening on {url}", flush=True)
    if made_token is not None:
        print(f"admin token: {made_token}", file=sys.stderr, flush=True)
