from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from uni_agent.engine import EngineConfig
from uni_agent.engine.http import ReplicaPool
from uni_agent.model.config import TokenModelConfig

ENGINE: TypeAdapter[Any] = TypeAdapter(EngineConfig)
URLS = [f"http://10.0.0.{i}:8000" for i in range(4)]


def test_a_removed_replica_moves_only_its_own_conversations() -> None:
    before, after = ReplicaPool(URLS), ReplicaPool(URLS[:-1])
    for i in range(200):
        old, new = before.ranked(f"r{i}")[0].url, after.ranked(f"r{i}")[0].url
        assert old in (new, URLS[-1])
    homes = [before.ranked(f"r{i}")[0].url for i in range(200)]
    assert all(homes.count(url) > 20 for url in URLS)


def test_a_failed_replica_comes_last_until_it_has_cooled_down() -> None:
    now = [0.0]
    pool = ReplicaPool(URLS, cooldown=10, clock=lambda: now[0])
    home = pool.ranked("a")[0]
    pool.mark(home, down=True)
    assert pool.ranked("a")[-1] is home
    now[0] = 10.0
    assert pool.ranked("a")[0] is home


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"url": "http://a", "urls": ["http://b"]},
        {"urls": ["http://a", "http://a"]},
        {"url": "localhost:8000"},
        {"url": "http://[::1"},
        {"url": "http://a", "retries": -1},
        {"url": "http://a", "read_timeout": 0},
        {"url": "http://a", "endpoints": "generate"},
    ],
)
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_what_names_no_server_or_two_is_refused(kind: str, raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ENGINE.validate_python({"type": kind, **raw})


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_the_tokenizer_comes_from_the_engines_path(kind: str) -> None:
    raw = {"type": kind, "url": "http://a", "path": "pkg://uni_agent/assets/quickstart_policy"}
    config = TokenModelConfig.model_validate({"type": "tokens", "engine": raw})
    assert isinstance(ENGINE.validate_python(raw).path, Path)
    config.build(seed=1)
