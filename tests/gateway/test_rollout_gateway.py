"""The gateway in a thread of the trainer's process."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.fake_servers import Play, serving
from tests.gateway.support import call
from tests.tokens.conftest import MakeRenderer
from tests.tokens.small import TEMPLATES
from uni_agent.engine.scripted import ScriptedBackend
from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.gateway import GatewayConfig, RolloutGateway, signed_key
from uni_agent.gateway.errors import GatewayError

HI = [{"role": "user", "content": "hi"}]


def chat(base_url: str, key: str, messages: list[Any]) -> Any:
    answer = httpx.post(
        f"{base_url}/v1/chat/completions", json={"messages": messages}, headers={"Authorization": f"Bearer {key}"}
    )
    answer.raise_for_status()
    return answer.json()["choices"][0]["message"]


def test_a_trainer_reads_trajectories_directly(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    backend = ScriptedBackend(["one", "two"], encode=renderer.tokenizer.encode)
    with RolloutGateway(backend=backend, renderer=renderer) as gateway:
        session = gateway.create_session(metadata={"task": "t"}, max_turns=5)
        messages = [*HI, chat(session.base_url, session.api_key, HI), {"role": "user", "content": "and?"}]
        assert chat(session.base_url, session.api_key, messages)["content"] == "two"
        assert gateway.info(session.session_id)["turns"] == 2
        gateway.set_reward(session.session_id, {"score": 1})
        finished = gateway.finalize(session.session_id)
        [trajectory] = finished.trajectories
        assert trajectory.reward == 1.0 and trajectory.num_turns == 2 and finished.metadata == {"task": "t"}
        assert trajectory.ids == backend.calls[1].prompt_ids + trajectory.ids[len(backend.calls[1].prompt_ids) :]
        gateway.forget(session.session_id)
        with pytest.raises(GatewayError, match="no longer kept"):
            gateway.info(session.session_id)
        lost = gateway.create_session("named")
        assert gateway.abort(lost.session_id, "worker died").reason == "worker died"
        with pytest.raises(GatewayError, match="max_turn"):
            gateway.create_session(max_turn=1)
    with pytest.raises(UniAgentError, match="not running"):
        gateway.create_session()


def test_what_keeps_it_from_starting_is_raised(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    with RolloutGateway(backend=ScriptedBackend(), renderer=renderer) as first:
        port = int(first.url.rpartition(":")[2])
        second = RolloutGateway(backend=ScriptedBackend(), renderer=renderer, config=GatewayConfig(port=port))
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            second.start()
    with pytest.raises(ConfigError, match="renderer, or the folder"):
        RolloutGateway(backend=ScriptedBackend())
    with pytest.raises(ConfigError, match=r"gateway.processes: .* thread"):
        RolloutGateway(backend=ScriptedBackend(), renderer=renderer, config=GatewayConfig(processes=2))
    with pytest.raises(ConfigError, match="no folder"):
        RolloutGateway.from_engine(engine_url="http://127.0.0.1:1", model="org/name")


def test_secrets_come_from_the_variables_that_the_configuration_names(
    make: MakeRenderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = GatewayConfig(admin_token_env="THE_TOKEN", session_secret_env="THE_SECRET")
    renderer = make("qwen3")
    with pytest.raises(ConfigError, match="THE_SECRET"):
        RolloutGateway(backend=ScriptedBackend(), renderer=renderer, config=config)
    monkeypatch.setenv("THE_TOKEN", "of the admin")
    monkeypatch.setenv("THE_SECRET", "shared")
    backend = ScriptedBackend(["one"], encode=renderer.tokenizer.encode)
    with RolloutGateway(backend=backend, renderer=renderer, config=config) as gateway:
        assert chat(gateway.url, signed_key(b"shared", "api", "s1"), HI)["content"] == "one"
        told = httpx.get(f"{gateway.url}/sessions/s1", headers={"Authorization": "Bearer of the admin"})
        assert told.json()["turns"] == gateway.info("s1")["turns"] == 1


def test_a_journal_brings_sessions_back(make: MakeRenderer, tmp_path: Path) -> None:
    renderer = make("qwen3")
    config = GatewayConfig.model_validate({"journal": {"folder": tmp_path}})
    backend = ScriptedBackend(["one", call("ls")], encode=renderer.tokenizer.encode)
    with RolloutGateway(backend=backend, renderer=renderer, config=config) as gateway:
        session = gateway.create_session("kept")
        said = chat(session.base_url, session.api_key, HI)
    with RolloutGateway(backend=backend, renderer=renderer, config=config) as gateway:
        base = f"{gateway.url}/sessions/kept"
        chat(base, session.api_key, [*HI, said, {"role": "user", "content": "next"}])
        [trajectory] = gateway.finalize("kept").trajectories
        assert trajectory.num_turns == 2 and sum(trajectory.response_mask) == trajectory.accounting.sampled
        assert json.dumps(trajectory.to_json())


@pytest.mark.parametrize(("engine", "flavour"), [("vllm", "vllm-generate"), ("sglang", "sglang")])
async def test_three_lines_put_it_before_an_engine(
    make: MakeRenderer, small_folder: Path, tmp_path: Path, engine: Any, flavour: Any
) -> None:
    folder = Path(shutil.copytree(small_folder, tmp_path / "model"))
    (folder / "chat_template.jinja").write_text((TEMPLATES / "qwen3.jinja").read_text())
    ids = make("qwen3").tokenizer.encode("hello")
    async with serving(flavour, Play(ids)) as server:
        with await asyncio.to_thread(
            RolloutGateway.from_engine(engine_url=server.url, model=str(folder), engine=engine).start
        ) as gateway:
            session = await asyncio.to_thread(gateway.create_session)
            said = await asyncio.to_thread(chat, session.base_url, session.api_key, HI)
            assert said["content"] == "hello"
            [trajectory] = (await asyncio.to_thread(gateway.finalize, session.session_id)).trajectories
            assert trajectory.response_ids[:-1] == ids
