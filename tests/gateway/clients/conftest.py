"""The installed clients, and gateways for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.clients.harness import Clients, Gateway

Serve = Callable[[Sequence[str]], Gateway]


@pytest.fixture(scope="session")
def clients() -> Clients:
    """The clients that `.ci/clients/install` puts into the folder named by UNI_AGENT_CLIENTS."""
    folder = os.environ.get("UNI_AGENT_CLIENTS")
    if not folder:
        pytest.skip("UNI_AGENT_CLIENTS names no folder with agent clients; make one with .ci/clients/install DIR")
    return Clients(Path(folder).absolute())


@pytest.fixture
def serve(tmp_path: Path) -> Generator[Serve]:
    """`serve(texts)` starts a gateway whose model says `texts`, one a turn, in each session."""
    with ExitStack() as stack:

        def start(script: Sequence[str]) -> Gateway:
            return stack.enter_context(Gateway(script, tmp_path / "gateway"))

        yield start
