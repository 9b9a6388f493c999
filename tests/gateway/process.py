"""`uni-agent gateway` as a process of its own, spoken to over HTTP alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ADMIN = "admin-token"
START_SECONDS = 100.0


@dataclass(slots=True)
class GatewayProcess:
    """A running gateway."""

    process: subprocess.Popen[bytes]
    url: str
    http: httpx.Client

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that the admin API answers."""
        answer = self.http.request(method, self.url + path, json=body, headers={"Authorization": f"Bearer {ADMIN}"})
        answer.raise_for_status()
        return answer.json()

    def chat(self, key: str, messages: Sequence[Any], **fields: Any) -> httpx.Response:
        return self.http.post(
            f"{self.url}/v1/chat/completions",
            json={"messages": list(messages), **fields},
            headers={"Authorization": f"Bearer {key}"},
        )

    def kill(self) -> None:
        """End it without a chance to say anything."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def gateway_process(*arguments: str | Path, port: int = 0) -> Generator[GatewayProcess]:
    """Start a gateway and stop it. Fails with its messages when it does not come up."""
    command = [sys.executable, "-m", "uni_agent", "gateway", "--admin-token", ADMIN, "--port", str(port)]
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            yield GatewayProcess(process, _address(process, Path(log.name)), httpx.Client(timeout=60.0))
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            if line.startswith("listening on ") and line.endswith("\n"):
                return line.removeprefix("listening on ").strip()
        time.sleep(0.05)
    raise AssertionError(f"the gateway did not start: {log.read_text()}")
