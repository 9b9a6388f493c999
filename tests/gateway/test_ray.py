"""Gateways as Ray actors: where sessions go, what comes back of them, and what the death of an actor leaves."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tokens.small import train, write_folder
from uni_agent.engine.config import ScriptedEngineConfig
from uni_agent.errors import ConfigError, UniAgentError
from uni_agent.gateway import FinishedSession, GatewaySession, RolloutGateway
from uni_agent.gateway.app_config import GatewayAppConfig
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.keys import signed_key
from uni_agent.gateway.ray import GatewayLostError, GatewayManager, GatewayParts
from uni_agent.gateway.ray.placement import nodes_for
from uni_agent.tokens.config import RendererConfig

ray: Any = pytest.importorskip("ray", reason="ray is not installed (extra: ray)")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SECRET_VARIABLE = "UNI_AGENT_TEST_SESSION_SECRET"
ANSWERS = ["first answer", "second answer", "third answer"]


@pytest.fixture(scope="module")
def cluster() -> Generator[None]:
    """A Ray of one node. Its workers find this file's folder, where the factories below are defined."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=80 * 2**20)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_folder(tmp_path_factory.mktemp("model"), train(), "qwen2_5")
    for name, answers in (("script", ANSWERS), ("constant", ["the same answer"] * 4)):
        lines = [json.dumps({"text": text}) + "\n" for text in answers]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def app(folder: Path) -> Callable[..., GatewayAppConfig]:
    def make(script: str = "script", **gateway: Any) -> GatewayAppConfig:
        return GatewayAppConfig(
            engine=ScriptedEngineConfig(type="scripted", turns=[]),
            script=folder / f"{script}.jsonl",
            renderer=RendererConfig(tokenizer=folder),
            gateway=GatewayConfig.model_validate(gateway),
        )

    return make


@pytest.fixture(scope="module")
def manager(cluster: None, app: Callable[..., GatewayAppConfig]) -> Generator[GatewayManager]:
    """Two gateways that share a session secret."""
    os.environ[SECRET_VARIABLE] = "the trainer's secret"
    with GatewayManager(app(session_secret_env=SECRET_VARIABLE), 2, num_cpus=0.1) as manager:
        yield manager
    del os.environ[SECRET_VARIABLE]


def say(session: GatewaySession, messages: list[Any], text: str) -> None:
    """One more exchange of an agent's conversation, which grows in place."""
    messages.append({"role": "user", "content": text})
    answer = httpx.post(
        f"{session.base_url}/v1/chat/completions",
        json={"model": "m", "messages": messages},
        headers={"Authorization": f"Bearer {session.api_key}"},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text
    messages.append(answer.json()["choices"][0]["message"])


def alive(row: dict[str, Any]) -> bool:
    return row["status"] == "ok"


def settled(manager: GatewayManager, check: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
    """The first health that passes `check`."""
    deadline = time.monotonic() + seconds
    while not check(health := manager.health()):
        assert time.monotonic() < deadline, health
        time.sleep(0.1)
    return health


def actor_of(manager: GatewayManager, session: GatewaySession) -> Any:
    """The handle of the actor that serves a session: what a crash of its process is played on."""
    number = next(i for i, url in enumerate(manager.urls) if session.base_url.startswith(url))
    return manager.actors[number]


def test_sessions_of_the_manager_end_as_those_of_one_gateway_in_process(
    manager: GatewayManager, app: Callable[..., GatewayAppConfig]
) -> None:
    def played(gateway: GatewayManager | RolloutGateway) -> list[FinishedSession]:
        sessions = [gateway.create_session(f"same-{i}", metadata={"task": i}) for i in range(3)]
        for session in sessions:
            messages: list[Any] = []
            for text in ("one", "two"):
                say(session, messages, text)
            assert [m["content"] for m in messages[1::2]] == ANSWERS[:2]
            gateway.set_reward(session.session_id, {"reward": 0.5})
        assert gateway.info("same-0")["phase"] == "active"
        return [gateway.finalize(session.session_id) for session in sessions]

    config = app()
    renderer = config.build_renderer()
    single = RolloutGateway(backend=config.build_backend(renderer), renderer=renderer, config=config.gateway)
    with single:
        expected = played(single)
    got = played(manager)
    assert [finished.to_json() for finished in got] == [finished.to_json() for finished in expected]
    assert got[0].accounting["trained"] > 0 and got[0].trajectories[0].reward == 0.5


def test_each_actor_serves_on_its_own_address_of_the_node(manager: GatewayManager) -> None:
    host = ray.util.get_node_ip_address()
    assert len(set(manager.urls)) == 2 and all(url.startswith(f"http://{host}:") for url in manager.urls)
    for url in manager.urls:
        assert httpx.get(f"{url}/healthz", timeout=30).json()["status"] == "ok"
        token = {"Authorization": f"Bearer {manager.admin_token}"}
        assert httpx.get(f"{url}/sessions", headers=token, timeout=30).status_code == 200


def test_new_sessions_go_to_the_gateway_with_the_fewest_active_ones(manager: GatewayManager) -> None:
    sessions = [manager.create_session() for _ in range(4)]
    by_url = {url: [s for s in sessions if s.base_url.startswith(url)] for url in manager.urls}
    assert [len(found) for found in by_url.values()] == [2, 2]
    free, busy = manager.urls
    manager.finalize(by_url[free][0].session_id)
    manager.abort(by_url[free][1].session_id)
    more = [manager.create_session() for _ in range(2)]
    assert all(session.base_url.startswith(free) for session in more)
    settled(manager, lambda health: [row["active"] for row in health["gateways"]] == [2, 2])
    for session in (*by_url[busy], *more):
        manager.abort(session.session_id)


async def test_sessions_are_created_and_ended_concurrently_from_an_event_loop(manager: GatewayManager) -> None:
    sessions = await asyncio.gather(*(manager.acreate_session() for _ in range(10)))
    counts = [sum(s.base_url.startswith(url) for s in sessions) for url in manager.urls]
    assert counts == [5, 5]
    await manager.aset_reward(sessions[0].session_id, {"score": 1})
    assert (await manager.ainfo(sessions[0].session_id))["reward_info"] == {"score": 1}
    assert (await manager.aabort(sessions[1].session_id, "late")).reason == "late"
    finished = await asyncio.gather(*(manager.afinalize(s.session_id) for s in (sessions[0], *sessions[2:])))
    assert [f.phase for f in finished] == ["finalized"] * 9
    await manager.aforget(sessions[0].session_id)
    with pytest.raises(GatewayError) as caught:
        await manager.ainfo(sessions[0].session_id)
    assert caught.value.kind in (ErrorKind.GONE, ErrorKind.NOT_FOUND)
    assert (await manager.ahealth())["active"] == 0


def test_errors_of_an_actor_arrive_as_what_they_are(manager: GatewayManager) -> None:
    with pytest.raises(GatewayError) as caught:
        manager.info("nobody")
    assert caught.value.kind is ErrorKind.NOT_FOUND
    with pytest.raises(GatewayError) as caught:
        manager.create_session(max_turns=0)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST and caught.value.param == "max_turns"
    session = manager.create_session("only-once")
    with pytest.raises(GatewayError, match="used once"):
        manager.create_session("only-once")
    manager.abort(session.session_id)
    with pytest.raises(GatewayError) as caught:
        manager.finalize(session.session_id)
    assert caught.value.kind is ErrorKind.GONE and caught.value.status == 410


def test_a_session_that_opened_by_its_signed_key_is_found_where_it_is(manager: GatewayManager) -> None:
    for number, url in enumerate(manager.urls):
        name = f"lazy-{number}"
        key = signed_key(b"the trainer's secret", "api", name)
        say(GatewaySession(name, url, key, ""), [], "hello")
        assert manager.info(name)["turns"] == 1
        assert manager.base_url(name) == f"{url}/sessions/{name}"
        assert len(manager.finalize(name).trajectories) == 1


def test_a_dead_actor_loses_its_own_sessions_alone_and_is_replaced(manager: GatewayManager) -> None:
    def address(session: GatewaySession) -> str:
        return session.base_url.split("/sessions")[0]

    lost, kept = manager.create_session(), manager.create_session()
    assert address(lost) != address(kept)
    ray.kill(actor_of(manager, lost))
    with pytest.raises(GatewayLostError, match="no journal") as caught:
        manager.finalize(lost.session_id)
    assert caught.value.session_id == lost.session_id
    elsewhere = manager.create_session()
    assert address(elsewhere) == address(kept)
    for session in (elsewhere, kept):
        say(session, [], "hello")
    health = settled(manager, lambda health: all(alive(row) for row in health["gateways"]))
    assert sorted(row["restarts"] for row in health["gateways"]) == [0, 1]
    with pytest.raises(GatewayLostError, match="did not come back"):
        manager.info(lost.session_id)
    again = manager.create_session()  # the new process has the fewest, and the old address
    assert address(again) == address(lost)
    say(again, [], "hello")
    assert manager.finalize(kept.session_id).accounting["sampled"] > 0


def test_with_a_journal_a_killed_gateway_goes_on_at_the_same_address(
    cluster: None, app: Callable[..., GatewayAppConfig], tmp_path: Path
) -> None:
    # A scripted engine that is started anew plays from its first line again: here all lines are the same.
    with GatewayManager(app("constant", journal={"folder": tmp_path}), 2, num_cpus=0.1) as manager:
        whole, cut = manager.create_session("whole"), manager.create_session("cut")
        conversations: dict[str, list[Any]] = {"whole": [], "cut": []}
        for session in (whole, cut):
            for text in ("one", "two"):
                say(session, conversations[session.session_id], text)
        manager.set_reward("cut", {"reward": 1.0})
        manager.set_reward("whole", {"reward": 1.0})
        ray.kill(actor_of(manager, cut))
        assert manager.info("cut")["turns"] == 2  # waits for the process to be back
        assert manager.base_url("cut") == cut.base_url
        for session in (whole, cut):
            say(session, conversations[session.session_id], "three")
        a, b = manager.finalize("whole"), manager.finalize("cut")
        assert len(a.trajectories) == 1 and a.accounting["trained"] == a.accounting["sampled"] > 0
        names = ("prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward")
        for name in names:
            assert [getattr(t, name) for t in a.trajectories] == [getattr(t, name) for t in b.trajectories]
        assert a.accounting == b.accounting


def test_a_factory_builds_its_engine_inside_each_actor(cluster: None, folder: Path) -> None:
    @ray.remote(num_cpus=0)
    class Server:
        """An engine elsewhere in the cluster."""

        def generate(self, prompt: list[int]) -> list[int]:
            return prompt[:3]

    server = Server.remote()

    def factory() -> GatewayParts:
        from uni_agent.engine.base import TokenOutput
        from uni_agent.tokens.config import RendererConfig as Config

        class Client:
            max_context = None

            async def start(self) -> None: ...

            async def generate(self, request_id: str, prompt_ids: list[int], sampling: Any, **_: Any) -> TokenOutput:
                ids = await server.generate.remote(prompt_ids)
                return TokenOutput([*ids, sampling.stop_token_ids[0]], [-0.5] * (len(ids) + 1), "stop")

            async def release(self, request_id: str) -> None: ...

            async def close(self) -> None: ...

        client: Any = Client()
        return GatewayParts(client, Config(tokenizer=folder).build(None), model_name="served")

    with GatewayManager(factory, 1, config=GatewayConfig(max_context=4096), num_cpus=0.1) as manager:
        session = manager.create_session()
        say(session, [], "hello")
        models = httpx.get(f"{manager.urls[0]}/v1/models", timeout=30).json()
        assert models["data"][0]["id"] == "served"
        trajectory = manager.finalize(session.session_id).trajectories[0]
        assert trajectory.response_ids[:3] == trajectory.prompt_ids[:3]
        url = manager.urls[0]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz", timeout=30)
    with pytest.raises(GatewayLostError, match="no gateway is alive"):
        manager.create_session()


def test_what_the_actors_find_wrong_stops_the_start(cluster: None, app: Callable[..., GatewayAppConfig]) -> None:
    broken = app().model_copy(update={"renderer": RendererConfig(tokenizer=Path("/nowhere"))})
    with pytest.raises(ConfigError, match="/nowhere"):
        GatewayManager(broken, 1, num_cpus=0.1).start()

    def fails() -> GatewayParts:
        raise RuntimeError("no weights")

    with pytest.raises(UniAgentError, match="no weights"):
        GatewayManager(fails, 1, num_cpus=0.1).start()


def test_settings_that_actors_cannot_share_are_refused(app: Callable[..., GatewayAppConfig]) -> None:
    for settings, what in (
        ({"processes": 2}, "processes"),
        ({"port": 80}, "port"),
        ({"public_url": "http://x"}, "url"),
    ):
        with pytest.raises(ConfigError, match=what):
            GatewayManager(app(**settings), 1)
    with pytest.raises(ConfigError, match="brings its own"):
        GatewayManager(app(), 1, config=GatewayConfig())
    with pytest.raises(ConfigError, match="not started"):
        GatewayManager(app(), 1).create_session()


def test_gateways_are_placed_in_turn_on_the_nodes_asked_for() -> None:
    def node(name: str, alive: bool = True) -> dict[str, Any]:
        return {"NodeID": f"id-{name}", "NodeName": name, "NodeManagerAddress": f"ip-{name}", "Alive": alive}

    nodes = [node("b"), node("a"), node("dead", alive=False)]
    assert nodes_for("each_node", None, nodes, "id-b") == ["id-a", "id-b"]
    assert nodes_for("each_node", 3, nodes, "id-b") == ["id-a", "id-b", "id-a"]
    assert nodes_for("this_node", 2, nodes, "id-b") == ["id-b", "id-b"]
    assert nodes_for(["b", "ip-a"], None, nodes, "id-b") == ["id-b", "id-a"]
    assert nodes_for(["id-a"], 2, nodes, "id-b") == ["id-a", "id-a"]
    for placement, count, what in (
        (["dead"], None, "no living node"),
        ("b", None, "none of"),
        ("each_node", 0, "at least 1"),
    ):
        with pytest.raises(ConfigError, match=what):
            nodes_for(placement, count, nodes, "id-b")
    with pytest.raises(ConfigError, match="names 2 nodes"):
        nodes_for(["a"], None, [node("a"), {**node("a"), "NodeID": "id-2"}], "id-a")
