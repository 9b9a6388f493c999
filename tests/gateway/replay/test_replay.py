"""Every recording of a real client, played against the gateway.

One session per recording. Without an entry in OUTCOMES a run is one conversation to which its client only appended: it
comes out as one main trajectory with all its turns, each trained. An entry says what else comes out, and why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.gateway.replay.player import MODEL_APIS, Player, RefusingBackend, recordings, script_of
from tests.gateway.replay.record import check_record
from tests.gateway.support import serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.tokens.renderer import ChatTemplateRenderer


@dataclass(frozen=True)
class Outcome:
    """What a run leaves: its chains as `scenario:turns`, and why there is more than one main conversation.

    Behind `+` stands what else is true of a chain: `abandoned` (a retry replaced it), `branch` (shares turns with an
    earlier one), `continues` (goes on from a chain that it keeps a turn of). `statuses`: answers that are other than
    the recorded ones, by path.
    """

    chains: tuple[str, ...]
    why: str = ""
    statuses: tuple[tuple[str, int], ...] = ()


TITLE = "title:1"
SAME_AGAIN = "the client did not like the answer and asked the same again: the newest answer is the conversation's"
EMPTY_LEFT = "an empty answer is dropped and the user message before it edited: a conversation of its own"
THROWN_AWAY = "each request ends with a user message that is gone from the next: no prompt begins the next one"
REMOVED = "a turn without a call is taken out of the history and an error is put in its place"
RENAMED = "a call that the client cannot run comes back as a call of its tool `invalid`, with other arguments"
EMPTIED = "arguments that are no JSON come back as {}"
ONE_AGENT = "a sub-agent, and the main conversation"
TWINS = "two sub-agents got the same task and said the same: the ids of their calls tell them apart"
NO_THREADS = (("/v1/messages", 400),)
NO_PROBES = (("/api/v1/models", 404),)

OUTCOMES: dict[str, Outcome] = {
    "anthropic-sdk/count": Outcome((), "counting tokens takes no turn"),
    "anthropic-sdk/runner_ignored": Outcome((), "threads are refused in the form that the SDK understands", NO_THREADS),
    "claude-agent-sdk/query_agents-sub": Outcome(("sub_agent:2", "main:3"), ONE_AGENT),
    "claude-code/2.1.197.basic": Outcome(("main:3",), "HEAD / may be 404", (("/", 404),)),
    "claude-code/empty": Outcome(("main:1", "main:1"), EMPTY_LEFT),
    "claude-code/explore": Outcome(("sub_agent:2", "main:3"), ONE_AGENT),
    "claude-code/f400long": Outcome(
        ("main:1", "compaction:1+continues", "compaction:1+continues", "main:1"),
        "an overflow (400) is answered by two compactions over other tools, and by a new conversation",
    ),
    "claude-code/sub": Outcome(("sub_agent:2", "main:3"), ONE_AGENT),
    "claude-code/telemetry-on": Outcome(("main:2",), "HEAD /api/hello may be 404", (("/api/hello", 404),)),
    "claude-code/timeout": Outcome(("main:2",), "the request that was left leaves no turn"),
    "claude-code/twosubs": Outcome(("sub_agent:2", "sub_agent:2", "main:3"), TWINS),
    "codex/compact": Outcome(
        ("main:3", "compaction:1", "main:1"),
        "the compaction has no tools; after it the history is new (the recording hides the summary in it)",
    ),
    "codex/sub": Outcome(("sub_agent:2", "main:3"), ONE_AGENT),
    "hermes-agent/badargs": Outcome((*["main:1+abandoned"] * 4, "main:1"), SAME_AGAIN),
    "hermes-agent/compact": Outcome(
        ("main:4", "compaction:1", "main:2+branch"), "the middle of the history is cut out, behind the first turn"
    ),
    "hermes-agent/empty": Outcome((*["main:1+abandoned"] * 3, "main:1"), SAME_AGAIN),
    "hermes-agent/lengthcall": Outcome((*["main:1+abandoned"] * 4, "main:1"), SAME_AGAIN),
    "mini-swe-agent/notool": Outcome(("main:1",) * 3, REMOVED),
    "mini-swe-agent/textbased": Outcome(("main:1",) * 3, REMOVED),
    "openai-agents/cs.fcut_tool": Outcome((), "a stream that broke left no turn, and nobody asked again"),
    "openai-agents/resp-sub": Outcome(("sub_agent:1", "main:2"), ONE_AGENT),
    "openai-sdk/embeddings": Outcome((), "no embeddings here"),
    "openai-sdk/resp": Outcome(("main:1", "main:1+continues"), "the second request leaves the instructions out"),
    "openclaw/empty": Outcome(("main:1", "main:1"), THROWN_AWAY),
    "opencode/badargs": Outcome((TITLE, "main:1", "main:1"), RENAMED),
    "opencode/badtool": Outcome((TITLE, "main:1", "main:1"), RENAMED),
    "opencode/compact": Outcome(
        (TITLE, "main:3", "compaction:1", "main:1+continues"),
        "the history is compacted as one text; the summary is the new history",
    ),
    "opencode/sub": Outcome((TITLE, "sub_agent:2", "main:2"), ONE_AGENT),
    "opencode/twosubs": Outcome((TITLE, "sub_agent:2", "sub_agent:2", "main:2"), TWINS),
    "qwen-code/badargs": Outcome(
        ("main:1+abandoned", "main:1", "main:1"), "sampled again, then repaired by the client and run"
    ),
    "qwen-code/compact": Outcome(
        ("main:5", "main:1"), "the compaction is asked for in the conversation; after it the last turn has another text"
    ),
    "qwen-code/empty": Outcome((*["main:1+abandoned"] * 4, "main:1"), SAME_AGAIN),
    "qwen-code/fcut_tool": Outcome(
        ("main:1", "main:1+continues"), "the first half of a broken stream is kept; when it goes on, it is left out"
    ),
    "qwen-code/length": Outcome(
        ("main:1+abandoned", "main:2", "memory:1"), "a cut turn is sampled again, then continued; then what to remember"
    ),
    "qwen-code/sub": Outcome(("sub_agent:2", "main:3"), ONE_AGENT),
    **{f"strands-agents/{api}-badargs": Outcome(("main:2",), EMPTIED) for api in ("anthropic", "litellm", "responses")},
    **{
        f"openclaw/{name}": Outcome(("main:1", *["main:1+continues"] * (turns - 1)), THROWN_AWAY)
        for name, turns in (
            ("anthropic.think", 3),
            ("badtool", 2),
            ("basic", 2),
            ("bytes", 4),
            ("nums", 2),
            ("parallel", 2),
            ("think", 3),
        )
    },
    "openclaw/anthropic.nosig": Outcome(("main:1",) * 3, THROWN_AWAY + "; thinking comes back as text"),
    **{
        f"opencode/{name}": Outcome((TITLE, f"main:{turns}"), "a title is asked for first")
        for name, turns in (
            ("anthropic.nosig", 3),
            ("anthropic.nums", 2),
            ("basic", 2),
            ("empty", 1),
            ("fcut_tool", 2),
            ("image", 2),
            ("nums", 2),
            ("parallel", 2),
            ("responses.noenc", 3),
            ("responses.think", 3),
        )
    },
}

RESUMED = {"codex/resume1": ("codex/resume1", "codex/resume2")}
"""Runs that a second one went on from."""

NAMES = [name for name in recordings() if name not in ("codex/resume2",)]


@pytest.mark.parametrize("name", NAMES)
async def test_a_recorded_client_leaves_what_it_did(make: MakeRenderer, name: str) -> None:
    steps = [step for part in RESUMED.get(name, (name,)) for step in recordings()[part]]
    renderer = make("qwen3")
    backend = RefusingBackend(renderer, script_of(steps, renderer.tokenizer.encode))
    options: dict[str, Any] = {"config": {"media": "placeholder"}, "renderer_for": partial(with_variables, make)}
    async with serving(renderer, backend=backend, **options) as gateway:
        session = await gateway.open()
        player = Player(gateway, session)
        answers = await player.play(steps)
        finished = await gateway.finalize(session)
    check_record(backend.given, finished)
    turns = sum(step["api"] in MODEL_APIS and step["status"] == 200 and not step["cut"] for step in steps)
    outcome = OUTCOMES.get(name, Outcome((f"main:{turns}",)))
    assert [chain(trajectory) for trajectory in finished["trajectories"]] == list(outcome.chains)
    others = {**dict(outcome.statuses), **(dict(NO_PROBES) if name.startswith("hermes-agent/") else {})}
    for step, answer in zip(steps, answers, strict=True):
        if answer is not None:
            assert answer.status == others.get(step["path"], step["status"]), answer.body
            assert answer.cut == step["cut"]
    check_account(finished, steps, outcome)


def with_variables(make: MakeRenderer, variables: Mapping[str, Any]) -> ChatTemplateRenderer:
    return make("qwen3", **variables)


def check_account(finished: dict[str, Any], steps: Sequence[dict[str, Any]], outcome: Outcome) -> None:
    account = finished["accounting"]
    assert account["masked"] == 0
    assert set(account["dropped"]) == ({"failed"} if any(step["cut"] for step in steps) else set())
    assert account["turns"] == sum(len(trajectory["trained"]) for trajectory in finished["trajectories"])
    if not outcome.why:
        assert "forked" not in account["drift"] and account["drift"].get("new", 0) == 1


def chain(trajectory: dict[str, Any]) -> str:
    """A trajectory as Outcome writes it."""
    marks = (
        ("abandoned", trajectory["abandoned"]),
        ("branch", trajectory["branched_from"] is not None),
        ("continues", trajectory["continues"]),
    )
    return f"{trajectory['scenario']}:{len(trajectory['turns'])}" + "".join(
        f"+{mark}" for mark, is_so in marks if is_so
    )


async def test_a_client_spells_nothing_that_the_gateway_takes_for_a_change(make: MakeRenderer) -> None:
    """A history that is only appended to is clean, or realigned, in each of its requests."""
    renderer = make("qwen3")
    for name in ("claude-code/bytes", "codex/bytes", "hermes-agent/nums", "pydantic-ai/responses-think"):
        steps = recordings()[name]
        backend = RefusingBackend(renderer, script_of(steps, renderer.tokenizer.encode))
        async with serving(renderer, backend=backend) as gateway:
            player = Player(gateway, await gateway.open())
            await player.play(steps)
        found = [drift for drift in player.drifts if drift]
        assert found[0] == {"new": 1} and all(set(drift) <= {"clean", "realigned"} for drift in found[1:]), name


def test_the_table_names_recordings_that_exist() -> None:
    assert set(OUTCOMES) <= set(recordings())
    assert len({name.split("/")[0] for name in recordings()}) == 13
