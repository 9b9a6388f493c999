"""The settings: Uni-Agent's names, verl's own keys, and what is said about mistakes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.framework import fakes
from uni_agent.errors import ConfigError, RewardError, UniAgentError
from uni_agent.optional import load
from uni_agent.training.config import FailureConfig, Fate
from uni_agent.training.failures import FailurePolicy, Tries, fate_of
from uni_agent.training.framework import AgentFrameworkRolloutAdapter, RunnerResult
from uni_agent.training.framework.config import read_settings
from uni_agent.training.framework.dispatch import load_runner
from uni_agent.training.framework.queue import fail_prompts
from uni_agent.training.framework.scoring import Scorer
from uni_agent.training.framework.worker import FrameworkWorker, worker_class
from uni_agent.types import ExitReason


def verl(framework: dict[str, Any] | None = None, run: dict[str, Any] | None = None, **rollout: Any) -> dict[str, Any]:
    custom: dict[str, Any] = {"agent_framework": framework or {}}
    if run is not None:
        custom["uni_agent"] = run
    return {
        "actor_rollout_ref": {
            "model": {"path": "/models/policy"},
            "rollout": {"name": "vllm", "prompt_length": 100, "response_length": 200, "custom": custom, **rollout},
        },
        "data": {"apply_chat_template_kwargs": {"enable_thinking": False}},
        "transfer_queue": {"enable": True},
    }


def test_everything_is_read_under_the_names_that_uni_agent_and_verl_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNI_AGENT_LOG_DIR", "/logs")
    framework: dict[str, Any] = {
        "gateway_count": 3,
        "mask_unfinished_episode": True,
        "use_reward_loop_worker": False,
        "agent_runners": {
            "swe": {
                "runner_fqn": "a.b.run",
                "runner_kwargs": {"x": 1},
                "tool_config_path": "tools.yaml",
                "dispatch_mode": "ray_task",
                "max_concurrent_sessions": 8,
                "trajectory_selection": "longest",
            }
        },
    }
    settings = read_settings(
        verl(
            framework,
            n=4,
            temperature=0.8,
            top_p=0.9,
            top_k=20,
            calculate_log_probs=False,
            val_kwargs={"n": 2, "temperature": 0, "top_p": 1.0, "top_k": -1},
            multi_turn={"format": "qwen3_coder"},
            max_model_len=250,
        )
    )
    assert settings.framework.model_dump()["agent_runners"]["swe"] == {
        **framework["agent_runners"]["swe"],
        "session_timeout": 14_400.0,
    }
    assert (settings.n, settings.val_n, settings.logprobs, settings.max_context) == (4, 2, False, 250)
    assert settings.sampling.model_dump(exclude={"max_tokens", "seed"}) == {
        "temperature": 0.8,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert settings.val_sampling.temperature == 0
    assert settings.renderer.model_dump()["tool_parser"] == "qwen3_coder"
    assert settings.renderer.template_kwargs == {"enable_thinking": False}
    assert settings.log_dir == "/logs" and settings.model_path == "/models/policy"


def test_an_unknown_key_is_an_error_that_says_what_was_meant() -> None:
    with pytest.raises(ConfigError, match="gateway_count") as raised:
        read_settings(verl({"gateway_cont": 2}))
    assert "agent_framework" in str(raised.value)
    with pytest.raises(ConfigError, match="max_concurrent_sessions"):
        read_settings(verl({"agent_runners": {"a": {"max_concurrent_session": 2}}}))
    with pytest.raises(ConfigError, match="dispatch_mode"):
        read_settings(verl({"agent_runners": {"a": {"dispatch_mode": "thread"}}}))
    with pytest.raises(ConfigError, match="agent_runners"):
        read_settings(verl({"agent_runners": {}}))
    with pytest.raises(ConfigError, match=r"model\.path"):
        read_settings({**verl(), "actor_rollout_ref": {"rollout": {}}})


def test_rollback_is_accepted_and_said_to_do_nothing(caplog: pytest.LogCaptureFixture) -> None:
    read_settings(verl({"enable_last_assistant_rollback": True}))
    assert "never rolled back" in caplog.text
    caplog.clear()
    read_settings(verl({"enable_last_assistant_rollback": False}))
    assert not caplog.text


def test_the_train_block_fills_in_what_the_framework_block_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UNI_AGENT_LOG_DIR", raising=False)
    train = {
        "steps": 1,
        "rollout": {"type": "gateway", "gateway_count": 2, "agent_runners": {"mine": {"runner_fqn": "a.b"}}},
        "failures": {"on_infra_failure": "mask"},
        "exits": {"time_limit": "drop"},
    }
    settings = read_settings(verl({"gateway_count": 5}, {"run_dir": "/run", "train": train}))
    assert settings.framework.gateway_count == 5 and list(settings.framework.agent_runners) == ["mine"]
    assert settings.failures.on_infra_failure == "mask" and settings.exits == {ExitReason.TIME_LIMIT: "drop"}
    assert settings.log_dir == "/run/sessions"
    assert read_settings(verl({"log_dir": ""}, {"run_dir": "/run"})).log_dir == ""


def test_each_runner_takes_from_the_train_block_what_its_own_block_leaves_open() -> None:
    runners = {"slow": {"runner_fqn": "a.b", "session_timeout": 60, "max_concurrent_sessions": 4}}
    run = {"train": {"steps": 1, "rollout": {"type": "gateway", "agent_runners": runners}}}
    assert read_settings(verl(run=run)).framework.runner(None)[1].session_timeout == 60
    stated: dict[str, Any] = {"slow": {"max_concurrent_sessions": 8, "tool_config_path": "t"}, "fast": {}}
    framework = read_settings(verl({"agent_runners": stated}, run)).framework
    slow, fast = framework.runner("slow")[1], framework.runner("fast")[1]
    assert (slow.runner_fqn, slow.session_timeout, slow.max_concurrent_sessions, slow.tool_config_path) == (
        "a.b",
        60,
        8,
        "t",
    )
    assert fast.session_timeout == 14_400.0


def test_the_train_block_of_the_pipeline_counts_where_verl_was_told_of_none(tmp_path: Path) -> None:
    pipeline = tmp_path / "train.yaml"
    pipeline.write_text(
        "data: {type: jsonl, path: tasks.jsonl}\nmodel: {type: verl, path: model}\ndeployment: {type: host}\n"
        "reward: {type: dummy}\ntrain: {steps: 1, samples_per_task: 2, exits: {time_limit: drop}}\n"
    )
    assert read_settings(verl(run={"pipeline": str(pipeline)})).exits == {ExitReason.TIME_LIMIT: "drop"}


def test_the_pipeline_brings_its_limits_and_its_renderer(tmp_path: Path) -> None:
    pipeline = tmp_path / "train.yaml"
    pipeline.write_text(
        "data: {type: jsonl, path: tasks.jsonl}\n"
        "model: {type: verl, path: model, renderer: {tool_parser: qwen3_coder}}\n"
        "deployment: {type: host}\nreward: {type: dummy}\n"
        "run: {concurrency: 3, retries: 1, reward_retries: 0}\n"
    )
    settings = read_settings(verl(run={"pipeline": str(pipeline), "run_dir": str(tmp_path)}))
    assert (settings.concurrency, settings.retries, settings.reward_retries) == (3, 1, 0)
    assert settings.renderer.model_dump()["tool_parser"] == "qwen3_coder"


def test_rows_find_their_runner_by_name_and_one_runner_serves_all() -> None:
    one = read_settings(verl({"agent_runners": {"a": {"runner_fqn": "x.y"}}})).framework
    assert one.runner("whatever")[0] == one.runner(None)[0] == "a"
    two = read_settings(verl({"agent_runners": {"a": {"runner_fqn": "x.y"}, "b": {"runner_fqn": "x.z"}}})).framework
    assert two.runner("b")[1].runner_fqn == "x.z"
    with pytest.raises(ConfigError, match=r"'c'.*a, b"):
        two.runner("c")


def test_runners_and_frameworks_that_do_not_exist_are_named() -> None:
    assert load_runner(f"{fakes.HERE}.talk") is fakes.talk
    with pytest.raises(ConfigError, match="has no 'tlak'"):
        load_runner(f"{fakes.HERE}.tlak")
    with pytest.raises(ConfigError, match="cannot be called"):
        load_runner(f"{fakes.HERE}.NOT_CALLABLE")
    with pytest.raises(ConfigError, match="runner_fqn"):
        load_runner("talk")
    assert worker_class(read_settings(verl())) is FrameworkWorker
    assert worker_class(read_settings(verl({"framework_class_fqn": f"{fakes.HERE}.RefusingWorker"}))) is (
        fakes.RefusingWorker
    )
    with pytest.raises(ConfigError, match="FrameworkWorker"):
        worker_class(read_settings(verl({"framework_class_fqn": f"{fakes.HERE}.Talker"})))


def test_a_teacher_and_the_v0_trainer_are_refused() -> None:
    with pytest.raises(ConfigError, match="teacher"):
        AgentFrameworkRolloutAdapter.create(config=verl(), llm_client=None, teacher_client={"t": object()})
    with pytest.raises(ConfigError, match="use_v1"):
        AgentFrameworkRolloutAdapter.create(
            config={**verl(), "transfer_queue": {"enable": False}}, llm_client=None, teacher_client=None
        )


def test_what_runners_may_return() -> None:
    assert RunnerResult.of(None) == RunnerResult()
    assert RunnerResult.of(1).reward == 1.0
    told = RunnerResult.of({"reward": 0.5, "acc": 1.0})
    assert told.reward == 0.5 and told.info["acc"] == 1.0
    with pytest.raises(UniAgentError, match="returned str"):
        RunnerResult.of("fine")


def verdicts(policy: FailurePolicy, count: int, **options: Any) -> list[str]:
    tries = Tries()
    out: list[str] = []
    for _ in range(count):
        tries.attempts += 1
        out.append(policy.judge(tries, **options))
        if out[-1] in ("drop", "mask"):
            break
    return out


def test_retries_come_first_then_the_policy_within_its_budgets() -> None:
    replace = FailurePolicy(FailureConfig(on_infra_failure="replace", per_rollout=2), retries=1)
    assert verdicts(replace, 9) == ["retry", "replace", "replace", "drop"]
    retry = FailurePolicy(FailureConfig(on_infra_failure="retry", per_rollout=9, budget=3), retries=0)
    assert verdicts(retry, 9) == ["retry", "retry", "retry", "drop"]
    assert verdicts(retry, 9) == ["drop"] and retry.counts["budget_exhausted"] == 2
    own = FailurePolicy(FailureConfig(per_rollout=9), retries=0)
    assert verdicts(own, 9) == ["replace"] * 4 + ["drop"]
    assert verdicts(own, 9) == ["replace"] * 4 + ["drop"]
    for choice in ("drop", "mask"):
        policy = FailurePolicy(FailureConfig(on_infra_failure=choice), retries=1)
        assert verdicts(policy, 9) == ["retry", choice]
        assert policy.counts["infrastructure_failures"] == 2


def test_what_would_fail_again_is_not_tried_again_and_validation_has_no_masked_rows() -> None:
    mask = FailurePolicy(FailureConfig(on_infra_failure="mask"), retries=1)
    assert verdicts(mask, 9, hopeless=True) == ["mask"]
    assert verdicts(mask, 9, validate=True) == ["retry", "drop"]
    assert verdicts(mask, 9, validate=True, hopeless=True) == ["drop"]
    replace = FailurePolicy(FailureConfig(), retries=0)
    assert verdicts(replace, 9, validate=True) == ["drop"]


def test_counts_are_taken_once() -> None:
    policy = FailurePolicy(FailureConfig(on_infra_failure="drop"), retries=1)
    assert policy.take() == {}
    verdicts(policy, 9)
    policy.counts["unscored"] += 1
    assert policy.take() == {"infrastructure_failures": 2.0, "retried": 1.0, "dropped": 1.0, "unscored": 1.0}
    assert policy.take() == {}
    policy.counts["unscored"] += 1
    assert policy.take() == {"unscored": 1.0} and policy.counts["unscored"] == 2


class Flaky:
    """The trainer's side of TransferQueue, which fails its first `failing` calls."""

    def __init__(self, failing: int) -> None:
        self.failing = failing
        self.tags: dict[str, dict[str, dict[str, Any]]] = {
            "train": {
                "a": {"is_prompt": True, "status": "running"},
                "b": {"is_prompt": True, "status": "finished"},
                "a_0_0": {"status": "running"},
            },
            "val": {"c": {"is_prompt": True, "status": "pending"}},
        }

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        self._fail()
        return {partition: {key: dict(tag) for key, tag in items.items()} for partition, items in self.tags.items()}

    def kv_put(self, *, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self._fail()
        self.tags[partition_id][key].update(tag)

    def _fail(self) -> None:
        self.failing -= 1
        if self.failing >= 0:
            raise TimeoutError("the controller does not answer")


def test_prompts_of_a_dead_worker_are_marked_however_often_the_queue_refuses() -> None:
    waits: list[float] = []
    queue = Flaky(3)
    assert fail_prompts(queue, pause=waits.append) == 2
    assert waits == [0.1, 0.2, 0.4]
    statuses = {key: tag["status"] for items in queue.tags.values() for key, tag in items.items()}
    assert statuses == {"a": "failure", "b": "finished", "a_0_0": "running", "c": "failure"}
    with pytest.raises(TimeoutError, match="does not answer"):
        fail_prompts(Flaky(10**6), seconds=0)
    with pytest.raises(TimeoutError, match="does not answer"):
        fail_prompts(Flaky(10**6), pause=lambda _: True)


def test_fates_follow_the_table_then_the_ending() -> None:
    assert fate_of(ExitReason.FINISHED, {}, masked=False) == "train"
    assert fate_of(ExitReason.TIME_LIMIT, {}, masked=True) == "mask"
    assert fate_of(ExitReason.TIME_LIMIT, {ExitReason.TIME_LIMIT: "train"}, masked=True) == "train"
    assert fate_of(ExitReason.SANDBOX_ERROR, {}, masked=False) == "drop"
    dropped: dict[ExitReason, Fate] = {ExitReason.TOKEN_LIMIT: "drop"}
    assert fate_of(ExitReason.TOKEN_LIMIT, dropped, masked=False, validation=True) == "mask"
    assert fate_of(ExitReason.SANDBOX_ERROR, dropped, masked=False, validation=True) == "drop"


@pytest.mark.slow
def test_a_batch_of_the_v0_trainer_and_a_uid_that_verl_would_split_are_refused() -> None:
    pytest.importorskip("tensordict", reason="verl is not installed (extra: train)")
    from uni_agent.training.framework.rows import read_batch

    with pytest.raises(ConfigError, match="use_v1"):
        read_batch(SimpleNamespace(non_tensor_batch={}))
    tensordict: Any = load("tensordict", extra="train", needed_for="this test")
    with pytest.raises(ConfigError, match="uid"):
        read_batch(tensordict.TensorDict({"uid": tensordict.NonTensorStack("a_b")}, batch_size=[1]))


def test_a_reward_that_is_no_number_is_an_error_and_an_old_clients_wrapping_is_undone() -> None:
    scorer, row = Scorer([]), {"uid": "u", "global_steps": 1}
    with pytest.raises(RewardError, match="runner gave a reward of nan"):
        asyncio.run(scorer.score(RunnerResult(reward=float("nan")), None, [], row))
    score = asyncio.run(scorer.score(RunnerResult(), {"reward_info": {"reward": 0.5, "acc": 1}}, [], row))
    assert (score.value, score.source, score.info["acc"], score.trusted) == (0.5, "session", 1, True)
    none = asyncio.run(scorer.score(RunnerResult(info={"a": 1}), {}, [], row))
    assert (none.value, none.source, none.trusted) == (0.0, "none", False)


def test_a_runner_that_runs_past_its_deadline_is_an_agent_error() -> None:
    from uni_agent.errors import AgentError
    from uni_agent.training.framework import RunnerConfig
    from uni_agent.training.framework.dispatch import dispatch

    session = fakes.lone_session(0.2)
    with pytest.raises(AgentError, match="session_timeout"):
        asyncio.run(dispatch(RunnerConfig(runner_fqn=f"{fakes.HERE}.sleep"), session))
    assert "r'" not in repr(session) and session.openai_base_url.endswith("/v1")
