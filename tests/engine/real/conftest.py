"""One vLLM server for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.engine.conftest import POLICY
from tests.engine.real.server import RunningServer, VllmServer


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningServer]:
    """A vLLM server with the packaged policy.

    UNI_AGENT_VLLM_PYTHON names the python that starts it; UNI_AGENT_VLLM_URL one that is already up with its flags.
    """
    if url := os.environ.get("UNI_AGENT_VLLM_URL"):
        yield RunningServer(url)
        return
    python = os.environ.get("UNI_AGENT_VLLM_PYTHON")
    if not python:
        pytest.skip("UNI_AGENT_VLLM_PYTHON names no python with vLLM; make one with .ci/vllm/install DIR")
    with VllmServer(Path(python), POLICY, tmp_path_factory.mktemp("vllm") / "server.log") as server:
        yield RunningServer(server.url)
