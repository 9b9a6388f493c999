"""The cases of the hand-over to the trainer, each with its input: where to find them by their ids.

TRN-01, TRN-02 and TRN-04 ask for one value for each sample and none for padding, whatever the shape of the batch;
TRN-07 for tokens that say what the agent saw.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.support import BASH_CHAT, serving
from tests.tokens.graph.support import Session, renderer_of
from tests.tokens.small import BASH, train, user, write_folder
from tests.training.algorithms.reference import Chain, Group, Sample, grpo
from uni_agent.cli import main
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.model.tokens import AgentChatModel
from uni_agent.store.records import RolloutRecord
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.graph import SessionGraph
from uni_agent.training.algorithms.context import Row
from uni_agent.training.algorithms.metrics import Sides, batch_metrics
from uni_agent.training.batches import spread_padding
from uni_agent.training.config import CreditConfig, TrainConfig
from uni_agent.training.outcome import Outcome, trajectories_of
from uni_agent.trajectory import Trajectory
from uni_agent.trajectory.render_check import checked_render, render_difference
from uni_agent.types import ExitReason, Message, RewardResult

SAMPLED = "<think>\np\n</think>\n\nhi"
BY_CHAIN = CreditConfig(sample_weighting="chain")


@pytest.fixture
def batch() -> Any:
    """The estimators over tensors; skips where torch is missing."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: pip install 'uni-agent[train]'")
    from tests.training.algorithms import batch

    return batch


def unparted(_: list[int]) -> list[tuple[str, int, int]]:
    """No segments."""
    return []


def group(chains: Sequence[int], rewards: Sequence[float]) -> Group:
    """One prompt: a sample for each entry, its chains of one turn of two tokens and one of context."""
    made: Group = []
    for count, reward in zip(chains, rewards, strict=True):
        made.append(Sample(reward, [Chain([1, 1, 0], [(turn, 0, 2)]) for turn in range(count)]))
    return made


def firsts(advantages: list[list[float]], made: Group) -> list[list[float]]:
    """The advantage of each sample's chains, at their first tokens; no other token of a chain has another."""
    rows = iter(advantages)
    found = [[next(rows) for _ in sample.chains] for sample in made]
    assert all(row[0] == row[1] and row[2] == 0.0 for sample in found for row in sample)
    return [[row[0] for row in sample] for sample in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chains", "rewards"),
    [
        ([1, 3, 1, 2], [1, 0, 0, 1]),  # the case
        ([1, 1, 1, 1], [1, 0, 0, 1]),
        ([9, 1], [0, 1]),
        ([2, 2, 2], [1, 1, 1]),
        ([1, 4, 2, 1, 1], [0.25, 0, -1, 1, 0.5]),
        ([3], [1]),  # the standard deviation of one is no number
        ([1], [0]),
    ],
)
@pytest.mark.parametrize("by_std", [False, True])
def test_trn_01_the_group_is_of_samples(batch: Any, chains: list[int], rewards: list[float], by_std: bool) -> None:
    made = group(chains, rewards)
    found, _ = batch.estimate(batch.rows_of([made]), credit=BY_CHAIN, by_std=by_std)
    values = firsts(found, made)
    mean = sum(rewards) / len(rewards)
    for own, reward in zip(values, rewards, strict=True):
        assert len(set(own)) == 1 and all(map(math.isfinite, own))
        if len(rewards) == 1:
            assert own[0] == 0.0
        elif not by_std:
            assert own[0] == pytest.approx(reward - mean)
    expected = grpo([made], by_std=by_std)
    assert found == [pytest.approx(row) for row in expected]
    # The same rewards in chains of one each: nothing else decides.
    alone, _ = batch.estimate(batch.rows_of([group([1] * len(chains), rewards)]), credit=BY_CHAIN, by_std=by_std)
    assert [own[0] for own in values] == [row[0] for row in alone]


@pytest.mark.slow
def test_trn_01_groups_of_uneven_sizes_do_not_mix(batch: Any) -> None:
    made = [group([1, 3, 1, 2], [1, 0, 0, 1]), group([2], [1]), group([1, 5], [10, 0])]
    found, _ = batch.estimate(batch.rows_of(made), credit=BY_CHAIN, by_std=False)
    assert [row[0] for row in found] == [0.5, -0.5, -0.5, -0.5, -0.5, 0.5, 0.5, 0, 0, 5, -5, -5, -5, -5, -5]


@pytest.mark.slow
@pytest.mark.parametrize("chains", [[1, 3], [1, 1], [7, 1, 2], [2, 2, 2, 2], [1, 16]])
def test_trn_02_weights_of_samples_are_equal_or_the_choice_has_a_name(batch: Any, chains: list[int]) -> None:
    made = group(chains, [1.0] + [0.0] * (len(chains) - 1))
    rows = batch.rows_of([made])
    shared, _ = batch.estimate(rows, credit=CreditConfig(), by_std=False)
    named, _ = batch.estimate(rows, credit=BY_CHAIN, by_std=False)
    weights = [
        sum(a / b for a, b in zip(own, other, strict=True))
        for own, other in zip(firsts(shared, made), firsts(named, made), strict=True)
    ]
    assert weights == [pytest.approx(weights[0])] * len(chains)
    assert sum(weights) == pytest.approx(len(rows))


@pytest.mark.parametrize("chains", [[1, 3], [1, 3, 1, 2]])
def test_trn_02_metrics_count_samples_and_chains_apart(chains: list[int]) -> None:
    rows = [Row("p", f"p_{s}", c, trusted=True) for s, count in enumerate(chains) for c in range(count)]
    metrics = batch_metrics(Sides(rows, [None] * len(rows), [1.0] * len(rows)), group_size=4, version=0, counts={})
    assert (metrics["uni_agent/samples"], metrics["uni_agent/chains"]) == (len(chains), sum(chains))


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "dp"), [(7, 4), (7, 8), (1, 8), (9, 2), (5, 3), (8, 4)])
@pytest.mark.parametrize("name", ["grpo", "turn_grpo"])
def test_trn_04_padding_has_no_advantage_and_changes_none(batch: Any, name: str, rows: int, dp: int) -> None:
    chains = [1, 3, 1, 2] if rows == 7 else [1] * rows
    made = batch.rows_of([group(chains, [float(i % 2) for i in range(len(chains))])])
    assert len(made) == rows
    filler = [replace(made[0][0], group=f"pad{i}", sample=f"pad{i}_0", padding=True, trusted=False) for i in range(dp)]
    more = [*made, *((row, [0], 0.0) for row in filler[: -rows % dp])]
    assert len(more) % dp == 0
    plain, counts = batch.estimate(made, name=name, credit=CreditConfig())
    padded, also = batch.estimate(more, name=name, credit=CreditConfig())
    assert padded == [*plain, *([0.0] for _ in more[rows:])]
    assert counts == also


@pytest.mark.parametrize(("rows", "dp"), [(7, 4), (7, 8), (1, 8), (9, 2), (5, 3)])
def test_trn_04_padding_counts_in_no_metric_and_is_dealt_evenly(rows: int, dp: int) -> None:
    known: list[Row] = [Row("p", f"p_{i}", trusted=True) for i in range(rows)]
    side = {"exit_reason": "finished", "render": "form", "metrics": {"tokens_sampled": 2.0}}
    filler = [Row(f"pad{i}", f"pad{i}_0", padding=True, trusted=False) for i in range(-rows % dp)]

    def told(own: list[Row]) -> dict[str, float]:
        return batch_metrics(Sides(own, [side] * len(own), [1.0] * len(own)), group_size=rows, version=0, counts={})

    assert told([*known, *filler]) == told(known)
    assert told(known)["uni_agent/tokens/sampled"] == 2.0 * rows
    order = spread_padding([False] * rows + [True] * len(filler), dp, 1)
    assert sorted(order) == list(range(rows + len(filler)))


@pytest.fixture(scope="module")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("qwen3"), train(), "qwen3")


@pytest.mark.parametrize(
    ("sampled", "content", "thought"),
    [
        (SAMPLED, "hi", "p"),  # the case
        ("<think>\np\n</think>\n\n", "", "p"),
        ("hi", "hi", ""),
        (SAMPLED + '\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "hi", "p"),
    ],
)
async def test_trn_07_through_the_gateway(
    qwen3_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], sampled: str, content: str, thought: str
) -> None:
    renderer = RendererConfig().build(qwen3_folder)
    journal = tmp_path / "gateway-0.journal"
    async with serving(renderer, [sampled], journal=journal) as gateway:
        opened = await gateway.open("s")
        answer = (await gateway.chat(opened, [{"role": "user", "content": "go"}], tools=[BASH_CHAT])).json
        told = answer["choices"][0]["message"]
        (trajectory,) = (await gateway.finalize(opened))["trajectories"]
    assert ((told["content"] or "").strip(), (told.get("reasoning_content") or "").strip()) == (content, thought)
    assert "<|im_end|>" not in json.dumps(told) and "think>" not in json.dumps(told)
    assert len(told.get("tool_calls") or ()) == sampled.count("<tool_call>")
    own = Trajectory.from_json(trajectory)
    assert renderer.decode(own.response_ids) == sampled + "<|im_end|>"
    assert own.response_ids == [*renderer.tokenizer.encode(sampled), renderer.stop_token_ids[0]]
    assert BASH["function"]["description"] in json.loads('"' + prompt_tools(renderer.decode(own.prompt_ids)) + '"')
    target = tmp_path / "out.jsonl"
    for form in ("jsonl", "rows", "sessions"):
        asked = ["export", "--journal", str(journal), "--format", form, "--render", str(qwen3_folder)]
        assert main([*asked, "-o", str(target)]) == 0
        record = json.loads(target.read_text())
        record = record["trajectories"][0] if form == "sessions" else record
        extra = (json.loads(record["detail"]) if form == "rows" else record)["extra"]
        exact = "<think>" in sampled
        # This template writes an empty thinking block where there was none.
        assert extra["render_difference"] is None if exact else extra["render_difference"]["kind"] == "form"
        assert f"render of their messages: 1 {'exact' if exact else 'form'}" in capsys.readouterr().err


def prompt_tools(prompt: str) -> str:
    """The description of the first tool in a prompt, as JSON text."""
    start = prompt.index('"description": "') + len('"description": "')
    return prompt[start : prompt.index('", "parameters"', start)]


async def test_trn_07_in_process() -> None:
    renderer = renderer_of("qwen3")
    ids = [*renderer.tokenizer.encode(SAMPLED), renderer.stop_token_ids[0]]
    model = AgentChatModel(ScriptedBackend([ScriptedTurn(ids)]), renderer, sampling=SamplingParams())
    await model.start()
    session = await model.open("t#0", [user("go")], [BASH])
    turn = await session.query()
    assert (turn.message.content, turn.message.reasoning.strip()) == ("hi", "p")
    record = RolloutRecord(ExitReason.FINISHED, reward=RewardResult(score=1.0, resolved=True))
    made = trajectories_of(
        session.chains,
        record,
        session_id="t#0",
        train=TrainConfig(steps=1),
        masked=False,
        render_of=lambda whole: checked_render(whole, renderer)[0],
    )
    (own,) = made
    assert own.response_ids == ids
    assert '"name": "bash"' in renderer.decode(own.prompt_ids)
    side = Outcome(record, made, True, "train", 1, {}).side_information(0, unparted)
    assert side["render"] == "exact"
    silent = trajectories_of(session.chains, record, session_id="t", train=TrainConfig(steps=1), masked=False)
    assert "render" not in Outcome(record, silent, True, "train", 1, {}).side_information(0, unparted)


@pytest.mark.parametrize(
    ("symptom", "shown", "tools", "expected"),
    [
        ("nothing is wrong", Message("assistant", "hi", "p\n"), (BASH,), None),
        ("EOS text left in content", Message("assistant", "hi<|im_end|>", "p\n"), (BASH,), "text"),
        ("thinking not split", Message("assistant", f"{SAMPLED}"), (BASH,), None),
        ("thinking and EOS left in content", Message("assistant", f"{SAMPLED}<|im_end|>"), (BASH,), "text"),
        ("tools missing from the render", Message("assistant", "hi", "p\n"), (), "tools"),
        ("another answer", Message("assistant", "ho", "p\n"), (BASH,), "text"),
    ],
)
def test_trn_07_each_symptom_is_flagged_at_its_token(
    symptom: str, shown: Message, tools: tuple[Any, ...], expected: str | None
) -> None:
    renderer = renderer_of("qwen3")
    made = Session(SessionGraph("s", renderer), renderer)
    made.ask([user("go")], SAMPLED, tools)
    (chain,) = made.graph.trajectories()
    own = replace(Trajectory.from_chain(chain, session_id="s"), messages=(user("go"), shown), tools=(BASH,))
    found = render_difference(own, renderer)
    assert (None if found is None else found.kind) == expected, symptom
    if found is not None:
        place = (found.span, found.turn)
        assert place == (("prompt", None) if expected == "tools" else ("sampled", 0))
        whole = renderer.initial(own.messages, own.tools)
        common = next(i for i, (a, b) in enumerate(zip(own.ids, whole, strict=False)) if a != b)
        assert found.position == common


def test_trn_07_a_missing_newline_is_another_form() -> None:
    renderer = renderer_of("qwen3")
    made = Session(SessionGraph("s", renderer), renderer)
    made.ask([user("go")], "<think>p</think>hi")
    (chain,) = made.graph.trajectories()
    found = render_difference(Trajectory.from_chain(chain, session_id="s"), renderer)
    assert found is not None
    assert (found.kind, found.span, found.turn) == ("form", "sampled", 0)
    assert found.chain_text.startswith("p") and found.render_text.startswith("\\np")


def test_trn_07_the_trainers_metrics_have_the_share_of_each_kind() -> None:
    kinds = ["exact", "form", "form", "text", None]
    rows = [Row("p", f"p_{i}", trusted=True) for i in range(len(kinds))]
    sides = [{"render": kind} if kind else {} for kind in kinds]
    metrics = batch_metrics(Sides(rows, sides, [1.0] * len(rows)), group_size=4, version=0, counts={})
    shares = {name: value for name, value in metrics.items() if "/render/" in name}
    assert shares == {
        "uni_agent/render/spelling": 0.0,
        "uni_agent/render/form": 0.5,
        "uni_agent/render/text": 0.25,
        "uni_agent/render/tools": 0.0,
    }
    unknown = batch_metrics(Sides(rows, [None] * 5, [1.0] * 5), group_size=4, version=0, counts={})
    assert not [name for name in unknown if "/render/" in name]
