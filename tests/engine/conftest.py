"""Small models, made once: the packaged policy, and a random one with grouped-query attention."""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.backends import REMOTE, Make, maker
from tests.engine.fake_servers import Flavour
from uni_agent.engine.embedded import EmbeddedBackend

POLICY = Path(__file__).resolve().parents[2] / "uni_agent" / "assets" / "quickstart_policy"

Backend = Callable[..., AbstractAsyncContextManager[EmbeddedBackend]]


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with 4 heads over 2 key-value heads, and a window of 64 tokens."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=100,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(params=["policy", "random"])
def model_folder(request: pytest.FixtureRequest, random_model: Path) -> Path:
    return POLICY if request.param == "policy" else random_model


@pytest.fixture
def backend() -> Backend:
    """Started engines that are closed at the end of the block."""

    @asynccontextmanager
    async def started(path: Path, **options: Any) -> AsyncGenerator[EmbeddedBackend]:
        chosen: dict[str, Any] = {"seed": 5, "device": "cpu", **options}
        engine = EmbeddedBackend(path, **chosen)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()

    return started


def rescored(path: Path, prompt: list[int], response: list[int], temperature: float = 1.0) -> list[float]:
    """Logprobs of `response` by one full forward pass of the model as transformers runs it."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        logprobs = (logits / temperature).log_softmax(-1)
        return [float(row[token]) for row, token in zip(logprobs, response, strict=True)]


def vocabulary(path: Path) -> int:
    return json.loads((path / "config.json").read_text())["vocab_size"]


@pytest.fixture(params=["scripted", "verl", "tinker", *REMOTE])
async def make(request: pytest.FixtureRequest) -> AsyncGenerator[Make]:
    """Makes a backend with a window of 64 that plays (ids, finish reason, seconds); it is not started."""
    async with maker(request.param) as build:
        yield build


@pytest.fixture(params=REMOTE)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Each kind of server."""
    return request.param
