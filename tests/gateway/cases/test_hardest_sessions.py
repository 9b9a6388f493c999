"""The fifteen hardest cases, 8 to 15: what becomes of a session. The invariants are told in test_hardest_turns.py."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.cases.support import (
    EACH,
    STREAMED,
    THINK,
    engine,
    finished,
    shown,
)
from tests.gateway.replay.agent import Agent, calls, said
from tests.gateway.replay.record import NotingBackend
from tests.gateway.support import ADMIN, BASH_CHAT, BASH_MESSAGES, call, serving
from tests.tokens.conftest import MakeRenderer
from tests.tokens.small import BASH
from uni_agent.engine.base import TokenOutput
from uni_agent.engine.scripted import ScriptedTurn

# --------------------------------------------------------------------------------------------------- 8


@EACH
async def test_case_8_sub_agents_at_once_under_one_key_leave_the_parent_whole(
    make: MakeRenderer, protocol: str
) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("go")] * 20)) as gateway:
        session = await gateway.open()
        parent = Agent(gateway, session, protocol, system="You are main.").user("build it")
        [asked] = calls(await parent.ask())
        children = [
            Agent(gateway, session, protocol, i % 2 == 0, "You are a child.").user(f"part {i}") for i in range(4)
        ]

        async def work(child: Agent) -> None:
            for turn in range(3):
                [mine] = calls(await child.ask())
                child.result(mine[3], f"ok {turn}")

        async with asyncio.TaskGroup() as group:
            for child in children:
                group.create_task(work(child))
        [asked] = calls(await parent.result(asked[3], "children are done").ask())
        other = {**BASH, "function": {**BASH["function"], "name": "python"}}
        tools: dict[str, Any] = {
            "chat": [BASH_CHAT, other],
            "responses": [{"type": "function", **BASH["function"]}, {"type": "function", **other["function"]}],
            "messages": [BASH_MESSAGES, {"name": "python", "input_schema": {"type": "object"}}],
        }
        parent.result(asked[3], "and now with other tools")
        before = list(parent.history)
        await parent.ask(tools=tools[protocol])
        parent.history = before
        await parent.ask()
        done = await finished(gateway, parent)
    lengths = sorted(len(t["trained"]) for t in done["trajectories"])
    assert lengths == [1, 3, 3, 3, 3, 3], "four children, the parent, and one turn under other tools"
    assert done["accounting"]["turns"] == 16 and done["accounting"]["dropped"] == {}


# --------------------------------------------------------------------------------------------------- 9


@EACH
async def test_case_9_a_compaction_names_the_chain_that_it_continues(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    summary = "The user wants a file; step one is done and step two is not, see notes.txt for more."
    script = [call("touch notes.txt", before="A first step. "), summary, call("ls"), "done", "verbatim"]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, system="You are main.").user("make a file")
        [asked] = calls(await agent.ask())
        agent.result(asked[3], "ok")
        kept = agent.history[1:]
        await agent.user("CRITICAL: Respond with TEXT ONLY. Summarize.").ask()
        agent.history = []
        [asked] = calls(await agent.user(f"This session is being continued. {summary}").ask())
        await agent.result(asked[3], "notes.txt").ask()
        agent.history = []
        agent.user("This session is being continued from a previous conversation.")
        agent.history += kept
        await agent.ask()
        done = await finished(gateway, agent)
    first, *later = done["trajectories"]
    assert sum(len(t["trained"]) for t in done["trajectories"]) == 5
    assert [t["continues"] for t in later] == [first["id"]] * 2, "by the summary, and by the turn kept verbatim"


# -------------------------------------------------------------------------------------------------- 10


@EACH
@STREAMED
async def test_case_10_a_lost_answer_asked_for_again(make: MakeRenderer, protocol: str, stream: bool) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("lost"), call("kept"), "x", "done", "y"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        await agent.send()  # its answer never arrives
        [asked] = calls(await agent.ask())
        assert "kept" in asked[2]
        agent.result(asked[3], "ok")
        await agent.send()
        await agent.ask()
        done = await finished(gateway, agent)
    main = [t for t in done["trajectories"] if not t["abandoned"]]
    assert len(main) == 1 and len(main[0]["turns"]) == 2
    assert sum(len(t["trained"]) for t in done["trajectories"]) == 4
    for t in done["trajectories"]:
        assert "<|im_start|>assistant\n<|im_start|>" not in shown(t, renderer), "one generation prompt per turn"


async def test_case_10_a_retry_at_the_end_leaves_the_reward_with_the_turns_before_it(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("ls"), "lost", "done"])) as gateway:
        agent = Agent(gateway, await gateway.open()).user("go")
        [asked] = calls(await agent.ask())
        agent.result(asked[3], "ok")
        await agent.send()
        await agent.ask()
        path = f"/sessions/{agent.session.session_id}/reward_info"
        assert (await gateway.request("POST", path, {"reward": 1.0}, agent.session.reward_key)).status == 200
        done = await finished(gateway, agent)
    rewarded = [t for t in done["trajectories"] if t["reward"] == 1.0]
    assert [len(t["trained"]) for t in rewarded] == [2]


@pytest.mark.parametrize(
    ("headers", "abandoned"),
    [({"x-stainless-retry-count": "1"}, 1), ({"x-uni-agent-intent": "resample"}, 0), ({}, 1)],
    ids=["marked", "resample", "unmarked"],
)
@pytest.mark.parametrize("policy", ["keep", "drop"])
async def test_case_10_retries_are_told_from_resamples(
    make: MakeRenderer, headers: dict[str, str], abandoned: int, policy: str
) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["one", "two"])) as gateway:
        agent = Agent(gateway, await gateway.open(abandoned=policy)).user("go")
        await agent.send()
        await agent.send(headers=headers)
        done = await finished(gateway, agent)
    lost = abandoned and policy == "drop"
    assert len(done["trajectories"]) == (1 if lost else 2)
    assert done["accounting"]["abandoned"] == abandoned
    assert set(done["accounting"]["dropped"]) == ({"abandoned_retry"} if lost else set())


@EACH
async def test_case_10_a_resend_that_races_the_first_is_trained_beside_it(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    script = [ScriptedTurn(renderer.tokenizer.encode(f"answer {i}"), delay=0.2) for i in range(3)]
    async with serving(renderer, backend=engine(renderer, [*script, "on"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol).user("go")
        answers = await asyncio.gather(*(agent.send() for _ in range(3)))
        texts = [said(agent.pieces(answer)) for answer in answers]
        agent.history += agent.native(answers[1])
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    assert sorted(texts) == ["answer 0", "answer 1", "answer 2"]
    continued = next(t for t in done["trajectories"] if len(t["turns"]) == 2)
    assert texts[1] in shown(continued, renderer)
    assert sum(len(t["trained"]) for t in done["trajectories"]) == 4


# -------------------------------------------------------------------------------------------------- 11


@EACH
async def test_case_11_edited_injected_and_deleted_parts_of_the_past(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    script = [call(f"step {i}", before=f"This is step number {i}. ") for i in range(4)]
    async with serving(renderer, backend=engine(renderer, [*script, "edited", "injected", "deleted"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol).user("go")
        marks = [len(agent.history)]
        for i in range(4):
            [asked] = calls(await agent.ask())
            agent.result(asked[3], f"output {i}")
            marks.append(len(agent.history))
        whole = list(agent.history)
        foreign: dict[str, Any] = {"role": "assistant", "content": "Something else was said here, by nobody."}
        agent.history = [*whole[: marks[1]], foreign, {"role": "user", "content": "and?"}, *whole[marks[2] :]]
        await agent.ask()
        few_shot = [{"role": "user", "content": "example"}, {"role": "assistant", "content": "like so"}]
        agent.history = [*whole, *few_shot, {"role": "user", "content": "now you"}]
        await agent.ask()
        results = [i for i, m in enumerate(whole) if "output 1" in json.dumps(m)]
        agent.history = [m for i, m in enumerate(whole) if i not in results]
        await agent.ask()
        done = await finished(gateway, agent)
    assert sum(len(t["trained"]) for t in done["trajectories"]) == 7
    for t in done["trajectories"]:
        words = shown(t, renderer)
        for text in ("Something else was said here", "like so"):
            assert words.count(text) <= 1
            for (kind, _, start, end), _ in zip(t["spans"], range(99), strict=False):
                if kind == "sampled":
                    assert text not in renderer.decode(t["response_ids"][start:end]), "context, never trained"
    assert len(done["trajectories"]) == 3, "the whole chain with the injection, the edit, and the deletion"


# -------------------------------------------------------------------------------------------------- 12


@EACH
@STREAMED
@pytest.mark.parametrize("end", ["disconnect", "finalize", "abort"])
async def test_case_12_an_end_in_mid_generation_leaves_no_late_turn(
    make: MakeRenderer, protocol: str, stream: bool, end: str
) -> None:
    renderer = make("qwen3")
    slow = ScriptedTurn(renderer.tokenizer.encode("a long answer of many words, one at a time"), token_delay=0.03)
    async with serving(renderer, backend=engine(renderer, ["first", slow])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        await agent.ask()
        gateway.backend.asked.clear()
        sending = asyncio.ensure_future(agent.user("more").send())
        await gateway.backend.asked.wait()
        await asyncio.sleep(0.1)
        if end == "disconnect":
            sending.cancel()
            await asyncio.wait([sending])
            for _ in range(100):
                if not (await gateway.info(agent.session))["in_flight"]:
                    break
                await asyncio.sleep(0.01)
        path = f"/sessions/{agent.session.session_id}/{'abort' if end == 'abort' else 'finalize'}"
        ended = await gateway.request("POST", path, None, ADMIN)
        assert ended.status == 200
        if end != "disconnect":
            answer = await sending
            assert answer.status == 410 or answer.cut
            for sign in (b"message_stop", b"[DONE]", b"response.completed", b'"finish_reason":"stop"'):
                assert sign not in answer.body
        await asyncio.sleep(0.3)
        info = await gateway.info(agent.session)
        assert info["turns"] == 1
        dropped = info["accounting"]["dropped"]
        assert dropped.keys() <= {"disconnected", "finalized", "aborted"}
        if stream:
            assert sum(dropped.values()) > 0, "what was sampled is counted"
        late = await agent.send()
        assert late.status == 410


# -------------------------------------------------------------------------------------------------- 13


@pytest.mark.parametrize("logprobs", [(), (-0.1, -0.2)], ids=["none", "too few"])
async def test_case_13_missing_logprobs_are_none_and_short_ones_an_error(
    make: MakeRenderer, logprobs: tuple[float, ...]
) -> None:
    renderer = make("qwen3")
    ids = renderer.tokenizer.encode("a longer answer than that")

    class Given(NotingBackend):
        def amended(self, output: TokenOutput) -> TokenOutput:
            return replace(output, logprobs=list(logprobs) or None) if len(self.given) == 1 else output

    async with serving(renderer, backend=Given(renderer, [ScriptedTurn(ids), "two"])) as gateway:
        agent = Agent(gateway, await gateway.open()).user("go")
        answer = await agent.send()
        if logprobs:
            assert answer.status in (500, 502), "ids and logprobs that do not fit are no turn"
            await agent.ask()
        else:
            agent.history += agent.native(answer)
            await agent.user("more").ask()
        done = await gateway.finalize(agent.session)
    if logprobs:
        assert done["accounting"]["turns"] == 1 and sum(done["accounting"]["dropped"].values()) == len(ids) + 1
    else:
        assert done["trajectories"][0]["response_logprobs"] is None


@EACH
@STREAMED
async def test_case_13_a_weight_update_in_mid_turn_is_one_turn_of_two_versions(
    make: MakeRenderer, protocol: str, stream: bool
) -> None:
    renderer = make("qwen3")
    encode = renderer.tokenizer.encode
    script = [
        ScriptedTurn(encode("<think>\nso"), finish_reason="abort", weight_version="1"),
        ScriptedTurn(encode(" be it\n</think>\n\nfine"), weight_version="2"),
        ScriptedTurn(encode("more"), weight_version="2"),
    ]
    async with serving(renderer, backend=engine(renderer, script)) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        pieces = await agent.ask()
        assert (said(pieces, "thinking").strip(), said(pieces).strip()) == ("so be it", "fine")
        await agent.user("and").ask()
        done = await gateway.finalize(agent.session)
        first, second, _ = gateway.backend.given
    assert first.output and second.prompt == first.prompt + first.output.token_ids
    [trajectory] = done["trajectories"]
    cut = len(first.output.token_ids)
    assert [span[0] for span in trajectory["weight_spans"]][:2] == ["1", "2"]
    assert trajectory["weight_spans"][0][1:] == [0, cut]
    assert len(trajectory["trained"]) == 2 and done["accounting"]["dropped"] == {}


@EACH
async def test_case_13_an_engine_that_fails_after_a_part_was_streamed(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    ids = renderer.tokenizer.encode("half of what was to be said")
    async with serving(renderer, backend=engine(renderer, [ScriptedTurn(ids, fail_after=3), "whole", "on"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream=True).user("go")
        answer = await agent.send()
        assert answer.cut and b"error" in answer.body
        await agent.ask()
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert done["accounting"]["dropped"] == {"failed": 3} and len(trajectory["trained"]) == 2


# -------------------------------------------------------------------------------------------------- 14


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGES: dict[str, Any] = {
    "chat": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}],
    "responses": [{"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}],
    "messages": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}],
}


@EACH
@pytest.mark.parametrize("media", ["refuse", "placeholder"])
async def test_case_14_images_are_refused_clearly_or_stand_as_text(
    make: MakeRenderer, protocol: str, media: str
) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["seen", "on"]), config={"media": media}) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol)
        kind = "input_text" if protocol == "responses" else "text"
        text = {"type": kind, "text": "Look: "}
        agent.history = [{"role": "user", "content": [text, *IMAGES[protocol], *IMAGES[protocol]]}]
        answer = await agent.send()
        if media == "refuse":
            assert answer.status == 400 and "image" in answer.json["error"]["message"]
            assert not gateway.backend.given
            return
        agent.history += agent.native(answer)
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert "Look: [image][image]<|im_end|>" in shown(trajectory, renderer)
    assert len(trajectory["trained"]) == 2


# -------------------------------------------------------------------------------------------------- 15


class Routing(NotingBackend):
    """Gives experts for what a call computed anew: prompt tokens beyond the cached ones, and the sample."""

    def amended(self, output: TokenOutput) -> TokenOutput:
        import numpy as np

        rows = [[[id_ % 256, (id_ // 256) % 256]] for id_ in output.token_ids]
        return replace(output, routed_experts=np.array(rows, dtype=np.uint8))


async def branching(agents: list[Agent], part: int) -> None:
    """Turn `part` of a session with a shared beginning and two leaves."""
    for number, agent in enumerate(agents):
        pieces = await agent.ask()
        asked = calls(pieces)
        if asked:
            agent.result(asked[0][3], f"output {part} of {number if part else 'both'}")
        else:
            agent.user(f"more {part} of {number}")


async def exported(make: MakeRenderer, journal: Path, *, restarts: bool) -> str:
    """The export of one session, with or without a restart between any two turns."""
    renderer = make("qwen3")
    script = [call("start", before=THINK), call("left"), call("right"), "left again", "right again", "a", "b"]
    position = 0
    agents: list[Agent] = []
    done: dict[str, Any] = {}
    for parts in [[0], [1], [2], [3]] if restarts else [[0, 1, 2, 3]]:
        async with serving(renderer, backend=Routing(renderer, script[position:]), journal=journal) as gateway:
            agents = [replace(agent, gateway=gateway) for agent in agents]
            for part in parts:
                if part == 0:
                    agents = [Agent(gateway, await gateway.open("fixed-id")).user("go")]
                await branching(agents, part)
                position += len(agents)
                if part == 0:
                    second = replace(agents[0], history=list(agents[0].history))
                    second.history[-1] = {**second.history[-1], "content": "another output"}
                    agents.append(second)
            if 3 in parts:
                done = await gateway.finalize(agents[0].session)
    assert all(trajectory["routed_experts"] for trajectory in done["trajectories"])
    return json.dumps(done, sort_keys=True)


async def test_case_15_restarts_between_turns_change_no_byte_of_the_export(make: MakeRenderer, tmp_path: Path) -> None:
    import re

    steady = await exported(make, tmp_path / "steady", restarts=False)
    restarted = await exported(make, tmp_path / "restarted", restarts=True)

    def plain(text: str) -> str:
        """Without the ids of calls, which are drawn, and logprobs, which count on in each engine."""
        data = json.loads(text)
        for trajectory in data["trajectories"]:
            trajectory["response_logprobs"] = None
        return re.sub(r"call[0-9a-f]{26}", "call", json.dumps(data, sort_keys=True))

    assert plain(restarted) == plain(steady)


async def test_case_15_a_finished_session_is_exported_the_same_after_a_restart(
    make: MakeRenderer, tmp_path: Path
) -> None:
    renderer = make("qwen3")
    script = [call("start", before=THINK), "one", "two", "three"]
    path = tmp_path / "journal"
    async with serving(renderer, backend=Routing(renderer, script), journal=path) as gateway:
        opened = await gateway.open("fixed-id")
        agent = Agent(gateway, opened).user("go")
        [asked] = calls(await agent.ask())
        await agent.result(asked[3], "ok").ask()
        agent.history = agent.history[:-1]
        await agent.ask()
        before = await gateway.request("POST", "/sessions/fixed-id/finalize", None, ADMIN)
    async with serving(renderer, backend=Routing(renderer, ()), journal=path) as gateway:
        after = await gateway.request("POST", "/sessions/fixed-id/finalize", None, ADMIN)
    assert after.body == before.body


async def test_case_15_experts_and_prefixes_shared_by_two_leaves_are_trained_once(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=Routing(renderer, [call("start"), "left", "right", "on"])) as gateway:
        agent = Agent(gateway, await gateway.open()).user("go")
        [asked] = calls(await agent.ask())
        shared = list(agent.history)
        await agent.result(asked[3], "one").ask()
        agent.history = shared
        await agent.result(asked[3], "two").ask()
        await agent.user("more").ask()
        done = await finished(gateway, agent)
    assert [len(t["trained"]) for t in done["trajectories"]] == [2, 2]
    assert [len(t["turns"]) for t in done["trajectories"]] == [2, 3]
