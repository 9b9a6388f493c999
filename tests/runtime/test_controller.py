"""The controller: every rollout ends once, faults stay where they are, cancellation tears down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from uni_agent.deployment.base import SandboxSpec
from uni_agent.deployment.dummy import DummyConfig, DummyDeployment
from uni_agent.errors import ConfigError, ModelError, SandboxError, StoreError
from uni_agent.model.scripted import Play, ScriptedModel, ScriptedSession
from uni_agent.pipeline import PipelineConfig
from uni_agent.reward.base import AbstractRewardSpec, RewardContext
from uni_agent.runtime.board import make_board
from uni_agent.runtime.controller import Controller
from uni_agent.runtime.rollout import RolloutParts
from uni_agent.store.reader import RunReader
from uni_agent.store.run import RunStore
from uni_agent.tokens.base import ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.types import ExitReason, Message, RewardResult, RolloutKey, Task, ToolCall

FINISH = Message("assistant", tool_calls=(ToolCall("", "finish", {"answer": "x"}),))


class BrokenReward(AbstractRewardSpec):
    """Grading that never comes to a verdict."""

    needs_sandbox = False

    async def compute_reward(self, context: RewardContext) -> RewardResult:
        raise OSError("the grader's disk is gone")


class Run:
    """One run over dummy sandboxes in a folder of its own."""

    def __init__(self, folder: Path, play: Play, *, tasks: int = 2, deployment: Any = None, **blocks: Any) -> None:
        self.folder = folder
        self.config = PipelineConfig.model_validate(
            {
                "data": {"type": "jsonl", "path": "unused"},
                "model": {"type": "scripted", "path": "unused"},
                "tools": ["finish", "execute_bash"],
                "deployment": deployment or DummyConfig(),
                "reward": {"type": "dummy"},
                **blocks,
            }
        )
        self.tasks = [Task(id=f"t{i}", prompt="go") for i in range(tasks)]
        self.model = ScriptedModel(play)

    def controller(self, store: RunStore) -> Controller:
        board = make_board("none", total=len(self.tasks))
        return Controller(self.config, self.tasks, RolloutParts(self.model, asyncio.Semaphore(8)), store, board)

    async def go(self) -> dict[str, int]:
        store = RunStore.create(self.folder, name="r", config={}, digest="d")
        try:
            await self.controller(store).run()
        finally:
            await asyncio.to_thread(store.close)
        return self.reasons()

    def reasons(self) -> dict[str, int]:
        with RunReader(self.folder) as reader:
            return reader.summary().exit_reasons

    @property
    def live(self) -> int:
        assert isinstance(self.config.deployment, DummyConfig)
        return self.config.deployment.backend.live


def always(*turns: Message | Exception) -> Play:
    played = ScriptedModel.of(turns).play
    return played


async def test_every_sample_of_every_task_ends_once_and_sandboxes_are_gone(tmp_path: Path) -> None:
    run = Run(tmp_path, always(FINISH), tasks=5, run={"samples_per_task": 3, "concurrency": 4})
    assert await run.go() == {"finished": 15}
    assert run.live == 0


async def test_infrastructure_faults_are_retried_and_count_once(tmp_path: Path) -> None:
    failures = {"t0#0": 1}

    def play(request_id: str, messages: list[Message], turn: int) -> Message | Exception:
        del messages, turn
        if failures.get(request_id, 0):
            failures[request_id] -= 1
            return ModelError("down for a moment")
        return FINISH

    run = Run(tmp_path, play, run={"retries": 1})
    assert await run.go() == {"finished": 2}
    with RunReader(tmp_path) as reader:
        assert reader.summary().superseded == 1


async def test_a_fault_that_stays_is_recorded_untrusted_and_hurts_no_neighbour(tmp_path: Path) -> None:
    """LIFE-04, RWD-02: a failure is data of its own rollout, never a 0 and never the end of the batch."""

    def play(request_id: str, messages: list[Message], turn: int) -> Message | Exception:
        del messages, turn
        return KeyError("bug") if request_id == "t1#0" else FINISH

    run = Run(tmp_path, play, tasks=4, run={"retries": 0})
    assert await run.go() == {"finished": 3, "unknown_error": 1}
    with RunReader(tmp_path) as reader:
        row = reader.find("t1", 0)
        assert row.score is None and not row.trusted
        assert "KeyError" in row.error
        assert reader.summary().reward_mean == 1.0


class TornModel(ScriptedModel):
    """A model whose record of one conversation contradicts itself."""

    async def open(self, request_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> ScriptedSession:
        session = await ScriptedModel.open(self, request_id, messages, tools)
        return TornSession(self, request_id, list(messages)) if request_id == "t1#0" else session


class TornSession(ScriptedSession):
    """Its chain trains a token that nobody sampled."""

    @property
    def caches(self) -> Sequence[RolloutCache]:
        return [RolloutCache("r", response_ids=[1], response_mask=[1], response_logprobs=[0.0])]


async def test_a_record_that_contradicts_itself_never_trains_and_ends_no_other_rollout(tmp_path: Path) -> None:
    run = Run(tmp_path, always(FINISH), tasks=3, run={"retries": 0})
    run.model = TornModel(run.model.play)
    assert await run.go() == {"finished": 2, "unknown_error": 1}
    with RunReader(tmp_path) as reader:
        row = reader.find("t1", 0)
        assert "cannot be accounted for" in row.error and not row.trusted
        assert reader.chains(row.id) == []


async def test_a_sandbox_that_never_starts_is_a_sandbox_error(tmp_path: Path) -> None:
    broken = DummyConfig(fail_starts=1000, startup_attempts=1)
    run = Run(tmp_path, always(FINISH), tasks=1, deployment=broken, run={"retries": 0})
    assert await run.go() == {"sandbox_error": 1}


class ImpossibleBoxes(DummyConfig):
    """A deployment that cannot give what the task asks."""

    def build(self, spec: SandboxSpec) -> DummyDeployment:
        raise ConfigError("workdir '/usr/x' lies in a read-only place")


async def test_what_a_sandbox_cannot_give_is_a_sandbox_error(tmp_path: Path) -> None:
    run = Run(tmp_path, always(FINISH), tasks=1, deployment=ImpossibleBoxes(), run={"retries": 0})
    assert await run.go() == {"sandbox_error": 1}


async def test_a_sandbox_lost_in_mid_episode_is_a_sandbox_error_without_a_score(tmp_path: Path) -> None:
    bash = Message("assistant", tool_calls=(ToolCall("", "execute_bash", {"command": "x"}),))
    lost = DummyConfig.model_validate({"replies": {"x": {"exit_code": 0, "sandbox_state": "timed_out"}}})
    run = Run(tmp_path, always(bash, FINISH), tasks=1, deployment=lost, run={"retries": 0})
    assert await run.go() == {"sandbox_error": 1}
    with RunReader(tmp_path) as reader:
        assert reader.find("t0", 0).score is None


async def test_grading_that_fails_is_a_reward_error_and_is_graded_again_first(tmp_path: Path) -> None:
    reward = {"type": f"{__name__}:BrokenReward"}
    run = Run(tmp_path, always(FINISH), tasks=1, reward=reward, run={"retries": 0, "reward_retries": 2})
    assert await run.go() == {"reward_error": 1}
    with RunReader(tmp_path) as reader:
        row = reader.find("t0", 0)
        assert row.score is None and row.trusted is False and "disk is gone" in row.error
        assert len(reader.events(kind="reward_failed")) == 3


async def test_cancelling_tears_every_sandbox_down_records_it_and_a_resume_redoes_it(tmp_path: Path) -> None:
    """SBX-16."""
    run = Run(tmp_path, always(FINISH), tasks=5, run={"concurrency": 5})
    run.model.delay = 30
    store = RunStore.create(tmp_path, name="r", config={}, digest="d")
    work = asyncio.create_task(run.controller(store).run())
    while run.live < 5:
        await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    await asyncio.to_thread(store.close, "interrupted")
    assert run.live == 0
    assert run.reasons() == {"cancelled": 5}

    run.model.delay = 0
    store = RunStore.resume(tmp_path, config={}, digest="d")
    await run.controller(store).run()
    await asyncio.to_thread(store.close)
    assert run.reasons() == {"finished": 5}


async def test_a_resume_keeps_what_counts_and_redoes_the_rest(tmp_path: Path) -> None:
    down = {"t1#0"}

    def play(request_id: str, messages: list[Message], turn: int) -> Message | Exception:
        del messages, turn
        return SandboxError("gone") if request_id in down else FINISH

    run = Run(tmp_path, play, tasks=3, run={"retries": 0})
    assert await run.go() == {"finished": 2, "sandbox_error": 1}
    down.clear()
    store = RunStore.resume(tmp_path, config={}, digest="d")
    assert store.completed() == {RolloutKey("t0", 0), RolloutKey("t2", 0)}
    outcome = await run.controller(store).run()
    await asyncio.to_thread(store.close)
    assert (outcome.kept, outcome.exit_reasons) == (2, {ExitReason.FINISHED: 1})
    assert run.reasons() == {"finished": 3}


async def test_abnormal_endings_are_masked_when_the_configuration_says_so(tmp_path: Path) -> None:
    prose = Message("assistant", "no call")
    run = Run(tmp_path, always(prose), tasks=1, interaction={"mask_abnormal_exit_traj": True, "max_turns": 1})
    assert await run.go() == {"max_step_limit": 1}


class FullStore(RunStore):
    """A store whose disk stays full."""

    @property
    def error(self) -> BaseException | None:
        return OSError("No space left on device")


async def test_nothing_is_started_while_the_store_cannot_be_written(tmp_path: Path) -> None:
    run = Run(tmp_path, always(FINISH), tasks=1)
    store = FullStore.create(tmp_path, name="r", config={}, digest="d")
    controller = run.controller(store)
    controller.store_patience = 0
    with pytest.raises(StoreError, match="No space left"):
        await controller.run()
    await asyncio.to_thread(store.close, "failed")
    assert run.live == 0 and run.reasons() == {}
