"""Sessions of one worker, from their first attempt to their records: a real gateway in a thread, no Ray."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.small import train, write_folder
from tests.training.framework.fakes import HERE, EchoClient
from uni_agent.engine.verl import VerlBackend
from uni_agent.gateway import RolloutGateway
from uni_agent.store import RunReader, RunStore
from uni_agent.store.records import RolloutRecord, RolloutRow
from uni_agent.tokens.base import Renderer
from uni_agent.training.failures import FailurePolicy
from uni_agent.training.framework.attempt import Attempts, Wanted
from uni_agent.training.framework.config import FrameworkSettings, read_settings
from uni_agent.training.framework.logs import SessionLogs
from uni_agent.training.framework.parts import MODEL, build_renderer, gateway_config
from uni_agent.training.framework.rollout import Delivered, Rollouts, Slots
from uni_agent.training.framework.runner import result_of
from uni_agent.training.framework.scoring import Scorer
from uni_agent.training.record import JournalCollector
from uni_agent.types import ExitReason, RewardResult

if find_spec("torch") is None:
    pytest.skip("torch is not installed (extra: train)", allow_module_level=True)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), train(), "qwen2_5")


@pytest.fixture(scope="module")
def renderer(folder: Path) -> Renderer:
    return build_renderer(settings(folder, {}))


def settings(
    folder: Path, runners: Mapping[str, Any], *, run: Mapping[str, Any] | None = None, **lengths: int
) -> FrameworkSettings:
    named = {name: {"runner_fqn": f"{HERE}.{name}", **runner} for name, runner in runners.items()}
    rollout: dict[str, Any] = {
        "name": "vllm",
        "n": 2,
        "prompt_length": 256,
        "response_length": 512,
        **lengths,
        "multi_turn": {"format": "hermes"},
        "custom": {
            "uni_agent": dict(run or {}),
            "agent_framework": {"agent_runners": named or {"talk": {}}, "log_dir": ""},
        },
    }
    return read_settings({"actor_rollout_ref": {"model": {"path": str(folder)}, "rollout": rollout}})


class Threaded:
    """A gateway in a thread, called as the worker calls those of its cluster."""

    def __init__(self, gateway: RolloutGateway) -> None:
        self._gateway = gateway

    async def acreate_session(self, **settings: Any) -> Any:
        return await asyncio.to_thread(partial(self._gateway.create_session, **settings))

    async def afinalize(self, session_id: str) -> Any:
        return await asyncio.to_thread(self._gateway.finalize, session_id)

    async def aabort(self, session_id: str, reason: str) -> Any:
        return await asyncio.to_thread(self._gateway.abort, session_id, reason)

    async def aforget(self, session_id: str) -> None:
        await asyncio.to_thread(self._gateway.forget, session_id)


class Bench:
    """The sessions of one worker over an echoing engine."""

    def __init__(self, own: FrameworkSettings, gateway: RolloutGateway, renderer: Renderer) -> None:
        manager: Any = Threaded(gateway)
        attempts = Attempts(own, manager, Scorer([]), SessionLogs(""))
        policy = FailurePolicy(own.failures, own.retries)
        self.settings = own
        self.rollouts = Rollouts(own, attempts, renderer, policy, Slots.of(own), pause=0.01)

    async def run(self, agent: str, told: str, *, index: int = 0, validate: bool = False, **columns: Any) -> Delivered:
        row = {
            "uid": uuid.uuid4().hex,
            "global_steps": 7,
            "agent_name": agent,
            "raw_prompt": [{"role": "user", "content": told}],
            **columns,
        }
        sampling = self.settings.val_sampling if validate else self.settings.sampling
        return await self.rollouts.run(Wanted(row, index, validate, sampling))


@contextmanager
def opened(own: FrameworkSettings, renderer: Renderer, log: Path) -> Generator[Bench]:
    client = EchoClient(own.model_path, str(log / "calls.jsonl"))
    backend = VerlBackend(client, engine="vllm", max_context=own.max_context, own_aborts=True)
    with RolloutGateway(backend=backend, renderer=renderer, config=gateway_config(own), model_name=MODEL) as gateway:
        yield Bench(own, gateway, renderer)


def fields(delivered: Delivered) -> dict[str, Any]:
    """The fields of the only record."""
    ((_, found, _),) = delivered.records
    return found


def side(delivered: Delivered) -> dict[str, Any]:
    return fields(delivered)["extra_fields"]["uni_agent"]


async def test_a_prompt_that_fills_the_window_leaves_nothing_and_is_no_failure(
    folder: Path, renderer: Renderer, tmp_path: Path
) -> None:
    own = settings(folder, {"full": {}, "idle": {}}, run={"train": _train(on_infra_failure="drop")})
    with opened(own, renderer, tmp_path) as bench:
        assert await bench.run("full", "say x") == Delivered([])
        assert bench.rollouts.exits == {"token_limit": 1} and not bench.rollouts.policy.counts
        idle = await bench.run("idle", "say x")
        assert not idle.records and "without a turn" in idle.failure, "a runner that never asked is broken"


async def test_an_ending_that_is_dropped_in_training_counts_in_a_validation(
    folder: Path, renderer: Renderer, tmp_path: Path
) -> None:
    own = settings(folder, {"overflow": {}}, run={"train": {**_train(), "exits": {"token_limit": "drop"}}})
    with opened(own, renderer, tmp_path) as bench:
        assert await bench.run("overflow", "say x") == Delivered([])
        assert bench.rollouts.policy.counts == {"dropped_by_exit": 1}
        checked = await bench.run("overflow", "say x", validate=True)
        assert fields(checked)["rm_scores"].sum() == 0.5 and fields(checked)["response_mask"].sum() == 0
        assert side(checked)["trusted"] and side(checked)["exit_reason"] == "token_limit"
        numbers = side(checked)["metrics"]
        assert numbers["tokens_trained"] == 0 and numbers["tokens_masked"] == numbers["tokens_sampled"] > 0


async def test_counts_of_failures_go_along_with_the_next_sample_that_trains(
    folder: Path, renderer: Renderer, tmp_path: Path
) -> None:
    own = settings(
        folder,
        {"broken": {"runner_kwargs": {"first": 2}}, "talk": {}, "overflow": {}},
        run={"train": {**_train(), "exits": {"token_limit": "drop"}}},
    )

    def told(delivered: Delivered) -> dict[str, float]:
        return {name: count for name, count in side(delivered)["metrics"].items() if name.startswith("failures_")}

    with opened(own, renderer, tmp_path) as bench:
        await bench.run("broken", "say x", validate=True)
        assert not told(await bench.run("talk", "say x", validate=True)), "nobody reads it there"
        await bench.run("overflow", "say x")
        counts = dict(bench.rollouts.policy.counts)
        assert counts["dropped_by_exit"] == 1 and counts["infrastructure_failures"] >= 2
        assert told(await bench.run("talk", "say x")) == {f"failures_{name}": count for name, count in counts.items()}
        assert told(await bench.run("talk", "say x")) == {}


async def test_a_validation_has_no_acc_of_which_verl_would_count_missing_samples_as_zero(
    folder: Path, renderer: Renderer, tmp_path: Path
) -> None:
    with opened(settings(folder, {"talk": {}, "post": {}}), renderer, tmp_path) as bench:
        checked = await bench.run("talk", "say x", validate=True)
        assert fields(checked)["extra_fields"]["reward_extra_info"] == {"accuracy": 1.0, "answer": "x"}
        trained = await bench.run("talk", "say x")
        assert fields(trained)["extra_fields"]["reward_extra_info"] == {"acc": 1.0, "answer": "x"}
        posted = await bench.run("post", "say x")
        assert fields(posted)["rm_scores"].sum() == 0.75
        assert fields(posted)["extra_fields"]["reward_extra_info"] == {"acc": 0.5, "finished": False}


class Watched:
    """A renderer that notes which threads ask it."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self.threads: set[threading.Thread] = set()

    def __getattr__(self, name: str) -> Any:
        self.threads.add(threading.current_thread())
        return getattr(self._renderer, name)


async def test_records_of_long_chains_are_made_beside_the_event_loop(
    folder: Path, renderer: Renderer, tmp_path: Path
) -> None:
    own = settings(folder, {"talk": {}}, prompt_length=16_384)
    with opened(own, renderer, tmp_path) as bench:
        watched: Any = Watched(renderer)
        bench.rollouts.renderer = watched
        await bench.run("talk", "say x")
        assert watched.threads == {threading.current_thread()}
        watched.threads.clear()
        long = await bench.run("talk", "word " * 1500 + "say x")
        assert len(fields(long)["prompts"]) > 4096 and side(long)["render"] == "exact"
        assert watched.threads and threading.current_thread() not in watched.threads


async def test_a_chain_that_the_trainers_length_cuts_is_still_what_the_agent_saw(
    folder: Path, renderer: Renderer, tmp_path: Path
) -> None:
    own = settings(folder, {"talk": {"runner_kwargs": {"turns": 2}}}, response_length=12)
    with opened(own, renderer, tmp_path) as bench:
        delivered = await bench.run("talk", "say one two three four five")
        assert len(fields(delivered)["responses"]) == 12 and side(delivered)["render"] == "exact"


PIPELINE = """
data: {{type: jsonl, path: tasks.jsonl}}
model: {{type: verl, path: {folder}, renderer: {{tool_parser: hermes}}}}
agent: {{type: interaction, system_prompt: You work in a shell.}}
tools: [execute_bash, finish]
deployment: {{type: host, isolation: none}}
reward: {{type: command, command: "false"}}
interaction: {{max_turns: 3, format_error_budget: 0}}
run: {{samples_per_task: 2, retries: 0}}
train: {{steps: 1, exits: {exits}}}
"""


@pytest.mark.parametrize(
    ("agent", "exits", "trains"),
    [("own", {}, True), ("own", {"format_error": "mask"}, False), ("other", {"format_error": "mask"}, False)],
)
async def test_the_runs_store_tells_of_each_token_what_the_trainer_was_given(
    folder: Path, renderer: Renderer, tmp_path: Path, agent: str, exits: dict[str, str], trains: bool
) -> None:
    pipeline, other, run_dir = tmp_path / "train.yaml", tmp_path / "other.yaml", tmp_path / "run"
    text = PIPELINE.format(folder=folder, exits=exits)
    pipeline.write_text(text)
    other.write_text(text.replace("samples_per_task: 2, ", "").partition("train:")[0])
    (run_dir / "journal").mkdir(parents=True)
    run = {"pipeline": str(pipeline), "run_dir": str(run_dir), "train": {**_train(), "exits": exits}}
    runner: dict[str, Any] = {"runner_fqn": "uni_agent.training.framework.runner.run_task"}
    runners = {"own": runner, "other": {**runner, "runner_kwargs": {"pipeline": str(other)}}}
    own = settings(folder, runners, run=run)
    info = {"index": 0, "split": "train", "task": '{"id": "t", "prompt": "say no call"}'}
    with opened(own, renderer, tmp_path) as bench:
        delivered = await bench.run(agent, "say no call", index=1, extra_info=info)
    about = side(delivered)
    assert (about["exit_reason"], about["trusted"]) == ("format_error", True)
    assert fields(delivered)["extra_fields"]["reward_extra_info"] == {"success": 0.0, "part/exit_code": 1.0}
    assert about["metrics"]["format_errors"] == 1 and about["metrics"]["turns"] == 1
    (row,) = recorded(run_dir, tmp_path / "store")
    assert row.sample == 7 * 2 + 1, "numbered as the run's samples are, whichever pipeline an agent has"
    trained = int(fields(delivered)["response_mask"].sum())
    assert (trained > 0) == trains and row.tokens["trained"] == about["metrics"]["tokens_trained"] == trained
    assert row.tokens["masked"] == about["metrics"]["tokens_masked"]


def recorded(run_dir: Path, path: Path) -> list[RolloutRow]:
    with RunStore.create(path, name="training", config={}, digest="d") as store:
        JournalCollector(run_dir / "journal", store).close()
    with RunReader(path) as reader:
        return list(reader.each_rollout())


def test_a_grader_that_broke_says_nothing_of_success(folder: Path, tmp_path: Path) -> None:
    from uni_agent.training.pipelines import load_pipeline

    pipeline = tmp_path / "train.yaml"
    pipeline.write_text(PIPELINE.format(folder=folder, exits={}))
    failed = RolloutRecord(ExitReason.REWARD_ERROR, reward=RewardResult.failed("no grader"))
    result = result_of(failed, [], load_pipeline(pipeline))
    assert (result.reward, result.trusted, dict(result.info), result.turn_scores) == (None, False, {}, ())


def _train(**failures: Any) -> dict[str, Any]:
    return {"steps": 1, "samples_per_task": 2, "failures": failures}
