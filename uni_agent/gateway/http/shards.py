"""Several processes behind one address: each owns its sessions, and passes on what belongs to another.

All of them listen on the one port (SO_REUSEPORT), and on a Unix socket of their own for what the others pass on. A
session's id says who owns it, and a key says whose session it opens, so nothing is shared and nobody is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from uni_agent.config.load import from_data, plain_data
from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.gateway.app_config import GatewayAppConfig

_log = logging.getLogger(__name__)

_START_SECONDS = 600.0
_STOP_SECONDS = 10.0
_RESTART_SECONDS = 1.0
_ORPHAN_SECONDS = 1.0
_LAYOUT = "layout.json"


class ShardSupervisor:
    """Starts the processes, and starts anew those that die: their sessions come back from the journal."""

    def __init__(self, config: GatewayAppConfig, token: str) -> None:
        self._count = config.gateway.processes
        self._token = token
        self._context = multiprocessing.get_context("spawn")
        check_layout(config)
        self._reserved = _reserve(config.gateway.host, config.gateway.port)
        port = self._reserved.getsockname()[1]
        host = config.gateway.host
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared, not bound
        self.url = config.gateway.public_url or f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
        gateway = config.gateway.model_copy(update={"port": port, "public_url": self.url})
        self._config = config.model_copy(update={"gateway": gateway})
        self._folder = tempfile.TemporaryDirectory(prefix="uni-agent-gateway-")  # mode 0700: only we reach the sockets
        self._processes: list[BaseProcess] = []

    def start(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Start all processes; returns when all listen, or when `stopped`. Raises UniAgentError for one that fails."""
        self._processes = [self._spawn(number) for number in range(self._count)]
        deadline = time.monotonic() + _START_SECONDS
        for number, process in enumerate(self._processes):
            while not self._ready(number).exists() and not stopped():
                if not process.is_alive():
                    raise UniAgentError(
                        f"gateway process {number} ended with code {process.exitcode}: see its messages"
                    )
                if time.monotonic() > deadline:
                    raise UniAgentError(f"gateway process {number} did not start within {_START_SECONDS:g} s")
                time.sleep(0.05)

    def watch(self) -> None:
        """Start anew what has died."""
        for number, process in enumerate(self._processes):
            if not process.is_alive():
                _log.error("gateway process %d ended with code %s; it is started anew", number, process.exitcode)
                self._ready(number).unlink(missing_ok=True)
                time.sleep(_RESTART_SECONDS)
                self._processes[number] = self._spawn(number)

    def pids(self) -> list[int]:
        """The process ids, by shard."""
        return [process.pid or 0 for process in self._processes]

    def close(self) -> None:
        """Stop all processes, with force where they do not listen. Idempotent."""
        for process in self._processes:
            if process.is_alive():
                process.terminate()
        for process in self._processes:
            process.join(_STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._processes = []
        self._reserved.close()
        self._folder.cleanup()

    def _spawn(self, number: int) -> BaseProcess:
        sockets = [str(Path(self._folder.name) / f"{n}.sock") for n in range(self._count)]
        Path(sockets[number]).unlink(missing_ok=True)
        data = json.dumps(plain_data(self._config))
        process = self._context.Process(
            target=run_shard, args=(data, number, sockets, self._token, str(self._ready(number))), daemon=False
        )
        process.start()
        return process

    def _ready(self, number: int) -> Path:
        return Path(self._folder.name) / f"{number}.ready"


def serve_shards(config: GatewayAppConfig, token: str | None, announce: Callable[[str, str | None], None]) -> int:
    """Serve with `gateway.processes` processes until SIGTERM or Ctrl-C.

    `announce` is told the address, and the admin token when nobody chose one.
    """
    made = token or secrets.token_urlsafe(32)
    supervisor = ShardSupervisor(config, made)
    stopped: list[int] = []
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda number, _: stopped.append(number))
    try:
        supervisor.start(lambda: bool(stopped))
        announce(supervisor.url, None if token else made)
        while not stopped:
            time.sleep(0.2)
            supervisor.watch()
    finally:
        supervisor.close()
    return 0


def run_shard(data: str, number: int, sockets: list[str], token: str, ready: str) -> None:
    """The life of one process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor ends us
    try:
        config = from_data(GatewayAppConfig, json.loads(data), "gateway process")
        asyncio.run(_shard(config, number, sockets, token, Path(ready)))
    except UniAgentError as error:
        print(f"uni-agent: gateway process {number}: {error}", file=sys.stderr)
        raise SystemExit(1) from error


async def _shard(config: GatewayAppConfig, number: int, sockets: list[str], token: str, ready: Path) -> None:
    from uni_agent.gateway.http.collector import spare_collections
    from uni_agent.gateway.http.forward import Forwarder
    from uni_agent.gateway.http.server import GatewayServer

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    supervisor = os.getppid()
    forwarder = Forwarder(number, sockets, config.gateway)
    server = GatewayServer(config.build(shard=number, shards=len(sockets)), admin_token=token, forwarder=forwarder)
    try:
        await server.start(unix_socket=Path(sockets[number]), reuse_port=True)
        spare_collections()
        await asyncio.to_thread(ready.touch)
        while not stop.is_set() and os.getppid() == supervisor:  # a killed supervisor leaves nobody behind
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), _ORPHAN_SECONDS)
    finally:
        await server.close()
        await forwarder.close()


def check_layout(config: GatewayAppConfig) -> None:
    """Raises ConfigError when the journals were written by another number of processes: owners would change."""
    folder = config.gateway.journal.folder
    if folder is None:
        return
    path = folder / _LAYOUT
    count = config.gateway.processes
    try:
        known: Any = json.loads(path.read_text(encoding="utf-8"))["processes"]
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"processes": count}), encoding="utf-8")
        return
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if known != count:
        raise ConfigError(
            f"gateway.processes is {count}, but the journals in {folder} are those of {known} processes: "
            f"start with processes: {known}, or with another journal.folder"
        )


def _reserve(host: str, port: int) -> socket.socket:
    """A socket that holds the port for our processes. Raises ConfigError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError as error:
        held.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return held
