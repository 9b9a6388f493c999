"""Who may do what with a session, how it ends, and what it may use up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.gateway.support import ADMIN, Gateway, call, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.gateway.keys import random_key, read_key, signed_key

HI = [{"role": "user", "content": "hi"}]


async def test_a_session_is_known_by_its_path_and_by_its_key(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["one", "two", "three"]) as gateway:
        session = await gateway.open()
        body = {"messages": HI}
        path = f"/sessions/{session.session_id}/v1/chat/completions"
        assert (await gateway.request("POST", path, body)).status == 200
        assert (await gateway.request("POST", path, body, "x")).status == 200
        assert (await gateway.chat(session, HI, tools=None)).status == 200
        finished = await gateway.finalize(session)
        assert sum(not t["abandoned"] for t in finished["trajectories"]) == 1, "the newest of three equal requests"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "/v1/v1/chat/completions"])
async def test_a_base_url_works_with_and_without_v1(make: MakeRenderer, path: str) -> None:
    async with serving(make("qwen3"), ["one"]) as gateway:
        session = await gateway.open()
        answer = await gateway.request("POST", f"/sessions/{session.session_id}{path}", {"messages": HI})
        assert answer.status == 200


async def test_what_opens_no_session_is_refused(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["one"]) as gateway:
        mine, other = await gateway.open(), await gateway.open()
        named = await gateway.open("task-1")
        chat = {"messages": HI}

        async def status(path: str, key: str = "") -> int:
            return (await gateway.request("POST", path, chat, key)).status

        forged = random_key("api", mine.session_id)
        assert await status("/v1/chat/completions") == 401
        assert await status("/v1/chat/completions", "sk-mistyped") == 401
        assert await status("/v1/chat/completions", forged) == 401
        assert await status("/v1/chat/completions", mine.reward_key) == 403
        assert await status("/v1/chat/completions", ADMIN) == 401
        assert await status(f"/sessions/{mine.session_id}/v1/chat/completions", other.api_key) == 403
        assert await status(f"/sessions/{mine.session_id}/v1/chat/completions", forged) == 401
        assert await status("/sessions/task-1/v1/chat/completions") == 401
        assert await status("/sessions/task-1/v1/chat/completions", named.api_key) == 200
        assert await status("/sessions/nowhere/v1/chat/completions") == 404
        for trace in ("", "/trajectories"):
            answer = await gateway.request("GET", f"/sessions/{other.session_id}{trace}", None, mine.api_key)
            assert answer.status == 403, "an agent's key is no administrator's token"
        assert (await gateway.info(other))["turns"] == 0


async def test_only_the_reward_key_writes_the_reward(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["one"]) as gateway:
        session, other = await gateway.open(), await gateway.open()
        await gateway.chat(session, HI)
        path = f"/sessions/{session.session_id}/reward_info"
        for key, status in ((session.api_key, 403), (other.reward_key, 403), ("", 401), ("guess", 401)):
            assert (await gateway.request("POST", path, {"reward": 1.0}, key)).status == status
        assert (await gateway.info(session))["reward_info"] is None
        for body in (b"[1]", b"{", b"1", b'{"reward": NaN}'):
            assert (await gateway.request("POST", path, body, session.reward_key)).status == 400
        assert (await gateway.request("POST", path, {"reward": 0.5, "log": "x"}, session.reward_key)).status == 200
        [trajectory] = (await gateway.finalize(session))["trajectories"]
        assert trajectory["reward"] == 0.5 and trajectory["reward_info"] == {"reward": 0.5, "log": "x"}


async def test_a_finalized_session_stays_as_it_is(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["one", "two"]) as gateway:
        session = await gateway.open()
        await gateway.chat(session, HI)
        first = await gateway.finalize(session)
        late = await gateway.chat(session, HI)
        assert late.status == 410 and "finalized" in late.json["error"]["message"]
        assert await gateway.finalize(session) == first
        path = f"/sessions/{session.session_id}/abort"
        assert (await gateway.request("POST", path, None, ADMIN)).status == 410
        assert (await gateway.request("DELETE", f"/sessions/{session.session_id}", None, ADMIN)).status == 204
        assert (await gateway.chat(session, HI)).status == 401, "the key of a forgotten session opens nothing"


async def test_the_end_of_a_session_cancels_what_is_under_way(make: MakeRenderer) -> None:
    slow = ScriptedTurn(list(range(50, 90)), token_delay=0.05)
    async with serving(make("qwen3"), [slow, slow]) as gateway:
        session = await gateway.open()
        whole = asyncio.create_task(gateway.chat(session, HI))
        streamed = asyncio.create_task(gateway.chat(session, HI, stream=True))
        await asyncio.sleep(0.5)
        finished = await gateway.finalize(session)
        assert finished["trajectories"] == [], "nothing is committed late"
        assert finished["accounting"]["dropped"]["finalized"] > 0
        answer, stream = await whole, await streamed
        assert answer.status == 410
        assert stream.cut or stream.status == 410
        assert b"[DONE]" not in stream.body
        assert await gateway.finalize(session) == finished


async def test_an_agent_that_leaves_stops_its_turn(make: MakeRenderer) -> None:
    slow = ScriptedTurn(list(range(50, 90)), token_delay=0.05)
    async with serving(make("qwen3"), [slow]) as gateway:
        session = await gateway.open()
        task = asyncio.create_task(gateway.chat(session, HI, stream=True))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for _ in range(100):
            if (await gateway.info(session))["in_flight"] == 0:
                break
            await asyncio.sleep(0.02)
        info = await gateway.info(session)
        assert info["in_flight"] == 0 and info["turns"] == 0
        assert info["accounting"]["dropped"]["disconnected"] > 0


@pytest.mark.parametrize(
    ("settings", "limit"), [({"max_turns": 2}, "max_turns"), ({"max_sampled_tokens": 3}, "max_sampled_tokens")]
)
async def test_a_used_up_session_answers_429_that_is_not_worth_a_retry(
    make: MakeRenderer, settings: dict[str, Any], limit: str
) -> None:
    async with serving(make("qwen3"), ["one", "two", "three", "four"]) as gateway:
        session = await gateway.open(**settings)
        statuses = [(await gateway.chat(session, HI)).status for _ in range(4)]
        assert statuses[-1] == 429 and statuses[0] == 200
        answer = await gateway.chat(session, HI)
        assert answer.headers["x-should-retry"] == "false" and "Retry-After" not in answer.headers
        finished = await gateway.finalize(session)
        assert {t["materialization_reason"] for t in finished["trajectories"]} == {limit}


async def test_too_many_at_once_are_told_to_come_back(make: MakeRenderer) -> None:
    backend = ScriptedBackend([ScriptedTurn([60], delay=0.5)], repeat=True)
    async with serving(make("qwen3"), backend=backend, config={"max_in_flight": 3}) as gateway:
        one, two = await gateway.open(max_concurrent=1), await gateway.open()
        tasks = [asyncio.create_task(gateway.chat(one, HI)) for _ in range(2)]
        answers = await asyncio.gather(*tasks)
        assert sorted(a.status for a in answers) == [200, 429]
        refused = next(a for a in answers if a.status == 429)
        assert int(refused.headers["Retry-After"]) >= 1
        tasks = [asyncio.create_task(gateway.chat(two, [{"role": "user", "content": str(i)}])) for i in range(6)]
        statuses = [a.status for a in await asyncio.gather(*tasks)]
        assert statuses.count(429) == 3, "the gateway's own limit"


async def test_idle_sessions_expire_and_ended_ones_are_forgotten(make: MakeRenderer) -> None:
    config = {"retention": 100.0, "session": {"ttl": 1000.0}}
    clock = [1_000_000.0]
    async with serving(make("qwen3"), ["one"], config=config, clock=lambda: clock[0]) as gateway:
        session = await gateway.open()
        await gateway.chat(session, HI)
        sessions = gateway.node.sessions
        clock[0] += 1001.0
        await sessions.sweep()
        info = await gateway.info(session)
        assert (info["phase"], info["reason"], info["turns"]) == ("aborted", "expired", 1)
        clock[0] += 101.0
        await sessions.sweep()
        gone = await gateway.request("GET", f"/sessions/{session.session_id}", None, ADMIN)
        assert gone.status == 410


async def test_the_trainer_fixes_what_the_client_may_not_choose(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), ["one", "two"]) as gateway:
        session = await gateway.open(sampling={"temperature": 1.0, "max_tokens": 7, "seed": 3})
        await gateway.chat(session, HI, temperature=0.1, top_p=0.5, max_tokens=128_000)
        [asked] = gateway.backend.calls
        assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.max_tokens) == (1.0, 0.5, 7)
        free = await gateway.open()
        await gateway.chat(free, HI, temperature=0.1, max_completion_tokens=5)
        asked = gateway.backend.calls[-1]
        assert (asked.sampling.temperature, asked.sampling.max_tokens) == (0.1, 5)


async def test_signed_keys_open_sessions_without_a_handshake(make: MakeRenderer) -> None:
    secret = b"shared"
    async with serving(make("qwen3"), ["one", "two"], secret=secret) as gateway:
        key = signed_key(secret, "api", "row-17.0")
        answer = await gateway.request("POST", "/v1/chat/completions", {"messages": HI}, key)
        assert answer.status == 200
        wrong = signed_key(b"other", "api", "row-18")
        assert (await gateway.request("POST", "/v1/chat/completions", {"messages": HI}, wrong)).status == 401
        reward = signed_key(secret, "reward", "row-17.0")
        path = "/sessions/row-17.0/reward_info"
        assert (await gateway.request("POST", path, {"reward": 1}, reward)).status == 200
        done = await gateway.request("POST", "/sessions/row-17.0/finalize", None, ADMIN)
        assert done.json["trajectories"][0]["reward"] == 1.0
        await gateway.request("DELETE", "/sessions/row-17.0", None, ADMIN)
        late = await gateway.request("POST", "/v1/chat/completions", {"messages": HI}, key)
        assert late.status == 410, "an ended session is not opened again"


async def test_an_administrator_sees_mistakes_in_what_he_sends(make: MakeRenderer) -> None:
    async with serving(make("qwen3")) as gateway:
        for body, words in (
            (b"[]", "object"),
            (b'{"ttl": -1}', "ttl"),
            (b'{"sampling": {"temprature": 1}}', "temprature"),
            (b'{"session_id": "a/b"}', "session"),
            (b'{"session_id": 7}', "session_id"),
            (b"{", "JSON"),
        ):
            answer = await gateway.request("POST", "/sessions", body, ADMIN)
            assert answer.status == 400 and words in answer.json["error"]["message"], answer.body
        await gateway.open("twice")
        assert (await gateway.request("POST", "/sessions", {"session_id": "twice"}, ADMIN)).status == 400
        assert (await gateway.request("POST", "/sessions", {}, "wrong")).status == 401
        listed = await gateway.request("GET", "/sessions?limit=5", None, ADMIN)
        assert [s["session_id"] for s in listed.json["sessions"]] == ["twice"]


async def test_sessions_are_listed_in_pages_in_the_order_of_their_creation(make: MakeRenderer) -> None:
    async with serving(make("qwen3")) as gateway:
        for name in ("d", "a", "c", "e", "b"):
            await gateway.open(name)
        pages: list[list[str]] = []
        behind = ""
        while behind is not None:
            answer = await gateway.request("GET", f"/sessions?limit=2&after={behind}", None, ADMIN)
            pages.append([session["session_id"] for session in answer.json["sessions"]])
            behind = answer.json["next"]
        assert pages == [["d", "a"], ["c", "e"], ["b"]]
        for query, word in (("after=x", "after"), ("limit=0", "limit"), ("limit=1001", "limit")):
            answer = await gateway.request("GET", f"/sessions?{query}", None, ADMIN)
            assert answer.status == 400 and word in answer.json["error"]["message"]


def test_a_key_names_its_session_and_kind() -> None:
    for kind in ("api", "reward"):
        for name in ("s-1", "a.b:c#d@e=f+g~h-i", "x" * 200):
            key = read_key(random_key(kind, name))
            assert key is not None and (key.kind, key.session_id) == (kind, name)
    for text in ("", "uak-", "uak-cw.zz", "uak-../../x." + "0" * 48, "uak-cw==." + "0" * 48, "é" * 40):
        assert read_key(text) is None


async def served_models(gateway: Gateway) -> Any:
    return (await gateway.request("GET", "/v1/models")).json


async def test_side_routes_answer_every_client(make: MakeRenderer) -> None:
    async with serving(make("qwen3"), [call("ls")]) as gateway:
        session = await gateway.open()
        assert (await served_models(gateway))["data"][0]["id"] == "model"
        for prefix in ("", f"/sessions/{session.session_id}"):
            assert (await gateway.request("GET", f"{prefix}/v1/models/any-name")).json["id"] == "any-name"
            assert (await gateway.request("HEAD", f"{prefix}/api/hello")).status == 404
            assert (await gateway.request("GET", f"{prefix}/props")).json["error"]["message"]
        assert (await gateway.request("GET", "/healthz")).json["status"] == "ok"
        await gateway.chat(session, HI)
        metrics = (await gateway.request("GET", "/metrics")).body.decode()
        assert 'uni_agent_gateway_turns_total{drift="new"} 1.0' in metrics
        path = "/v1/messages/count_tokens?beta=true"
        counted = await gateway.request("POST", path, {"model": "m", "messages": HI, "tools": []}, session.api_key)
        assert counted.json == {"input_tokens": len(make("qwen3").initial([_user("hi")], []))}
        assert (await gateway.info(session))["turns"] == 1, "counting is no turn"


def _user(text: str) -> Any:
    from uni_agent.types import Message

    return Message("user", text)
