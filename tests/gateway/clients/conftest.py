"""The installed clients, and gateways for them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.clients.harness import POLICY, Clients, Gateway
from tests.tokens.small import TEMPLATES, train, write_folder

Serve = Callable[..., Gateway]


@pytest.fixture(scope="session")
def clients() -> Clients:
    """The clients that `.ci/clients/install` puts into the folder named by UNI_AGENT_CLIENTS."""
    folder = os.environ.get("UNI_AGENT_CLIENTS")
    if not folder:
        pytest.skip("UNI_AGENT_CLIENTS names no folder with agent clients; make one with .ci/clients/install DIR")
    return Clients(Path(folder).absolute())


@pytest.fixture
def serve(tmp_path: Path) -> Generator[Serve]:
    """`serve(script, tokenizer=POLICY)` starts a gateway whose model says `script` in each session.

    A turn is a text, or a whole line of the engine's script.
    """
    with ExitStack() as stack:

        def start(script: Sequence[str | Mapping[str, Any]], tokenizer: Path = POLICY) -> Gateway:
            return stack.enter_context(Gateway(script, tmp_path / "gateway", tokenizer))

        yield start


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with Qwen3's chat template: turns may think."""
    folder = write_folder(tmp_path_factory.mktemp("thinker"), train())
    shutil.copy(TEMPLATES / "qwen3.jinja", folder / "chat_template.jinja")
    return folder
