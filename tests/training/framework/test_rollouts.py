"""From verl's batch of prompts to what verl's replay buffer reads: real gateways, Ray and TransferQueue."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.small import train, write_folder
from tests.training.framework.fakes import HERE, EchoClient, lone_session
from uni_agent.errors import AgentError, ConfigError, UniAgentError
from uni_agent.optional import load
from uni_agent.training.framework import AgentFrameworkRolloutAdapter, RunnerConfig
from uni_agent.training.framework.dispatch import dispatch

if find_spec("verl") is None or find_spec("transfer_queue") is None:
    pytest.skip("verl or TransferQueue is not installed (extra: train)", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STEP = 7
Row = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Generator[Any]:
    """Ray and TransferQueue with one storage unit."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray = load("ray", extra="train", needed_for="these tests")
    queue = load("transfer_queue", extra="train", needed_for="these tests")
    conf = load("omegaconf", extra="train", needed_for="these tests").OmegaConf
    ray.init(
        address="local",
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=bool(os.environ.get("SHOW_RAY")),
        object_store_memory=100 * 2**20,
        namespace=f"framework-{uuid.uuid4().hex}",
    )
    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
    queue.init(conf.create({"backend": storage}))
    yield queue
    queue.close()
    ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"), train(), "qwen2_5")


class Bench:
    """An adapter over an echoing client, and the trainer's side of TransferQueue."""

    def __init__(self, queue: Any, folder: Path, logs: Path, options: Mapping[str, Any]) -> None:
        self.queue = queue
        self.folder = folder
        self.logs = logs
        self.calls = logs / "calls.jsonl"
        runners = dict(options["runners"])
        for name, runner in runners.items():
            runner.setdefault("runner_fqn", f"{HERE}.{name}")
        failures = {"on_infra_failure": "drop", **options.get("failures", {})}
        self.run = {"train": {"steps": 1, "failures": failures, "exits": options.get("exits", {})}}
        self.run.update(options.get("run", {}))
        self.config: dict[str, Any] = {
            "actor_rollout_ref": {
                "model": {"path": str(folder)},
                "rollout": {
                    "name": "vllm",
                    "n": 2,
                    "temperature": 0.9,
                    "top_p": 0.95,
                    "top_k": 30,
                    "calculate_log_probs": True,
                    "prompt_length": 256,
                    "response_length": options.get("response_length", 512),
                    "val_kwargs": {"n": 1, "temperature": 0.2, "top_p": 0.7, "top_k": 5},
                    "multi_turn": {"format": "hermes"},
                    "custom": {
                        "uni_agent": self.run,
                        "agent_framework": {
                            "gateway_count": 1,
                            "agent_runners": runners,
                            "log_dir": str(logs),
                            **options.get("framework", {}),
                        },
                    },
                },
            },
            "transfer_queue": {"enable": True},
        }
        client = EchoClient(str(folder), str(self.calls))
        self.adapter = AgentFrameworkRolloutAdapter.create(
            config=load("omegaconf", extra="train", needed_for="these tests").OmegaConf.create(self.config),
            llm_client=client,
            teacher_client=None,
            reward_loop_worker_handles=options.get("reward_workers"),
        )

    def submit(self, agent: str, *told: str, validate: bool = False, **columns: Sequence[Any]) -> list[str]:
        """What verl's trainer does with a batch: put the prompts to pending, then hand them over."""
        utils = load("verl.utils.tensordict_utils", extra="train", needed_for="these tests")
        np = load("numpy", extra="train", needed_for="these tests")
        uids = [str(uuid.uuid4()) for _ in told]
        prompts = [[{"role": "user", "content": text}] for text in told]
        data: dict[str, Any] = {
            "uid": uids,
            "raw_prompt": prompts,
            "data_source": ["shell"] * len(told),
            "reward_model": [{"style": "rule", "ground_truth": text} for text in told],
            "extra_info": [{"index": i} for i in range(len(told))],
            "agent_name": [agent] * len(told),
            **columns,
        }
        objects = {}
        for name, values in data.items():
            objects[name] = np.empty(len(told), dtype=object)
            for i, value in enumerate(values):
                objects[name][i] = value
        batch = utils.get_tensordict(objects)
        utils.assign_non_tensor_data(batch, "global_steps", STEP)
        if validate:
            utils.assign_non_tensor_data(batch, "validate", True)
        partition = "val" if validate else "train"
        tags = [{"is_prompt": True, "status": "pending", "global_steps": STEP} for _ in uids]
        self.queue.kv_batch_put(keys=uids, partition_id=partition, tags=tags)
        started = time.monotonic()
        self.adapter.generate_sequences(batch)
        assert time.monotonic() - started < 2, "generate_sequences waits for results"
        return uids

    def status(self, uid: str, partition: str = "train") -> str:
        return self.queue.kv_list()[partition][uid]["status"]

    def forget(self, partition: str = "train") -> None:
        """Clear a partition."""
        self.queue.kv_clear(keys=list(self.queue.kv_list()[partition]), partition_id=partition)

    def asked(self) -> set[tuple[float, float, int]]:
        """Temperature, top_p and top_k of all calls since this was last asked."""
        calls = [json.loads(line) for line in self.calls.read_text().splitlines()]
        self.calls.write_text("")
        return {(call["temperature"], call["top_p"], call["top_k"]) for call in calls}

    def settled(self, uids: Sequence[str], partition: str = "train", seconds: float = 90.0) -> list[str]:
        """The final statuses."""
        deadline = time.monotonic() + seconds
        while True:
            statuses = [self.status(uid, partition) for uid in uids]
            if all(status in ("finished", "failure") for status in statuses):
                return statuses
            assert time.monotonic() < deadline, (statuses, self.adapter.stats())
            time.sleep(0.05)

    def sample(self, size: int, partition: str = "train") -> tuple[list[str], list[Row], list[Row]]:
        """Keys, tags and fields of a batch, by verl's own reader; the queue is empty afterwards."""
        module = load("verl.trainer.ppo.v1.replay_buffer", extra="train", needed_for="these tests")
        buffer = module.ReplayBuffer("sync", None, None, "drop", {}, poll_interval=0.05)
        meta, _ = buffer.sample(global_steps=STEP, partition_id=partition, batch_size=size)
        order = sorted(range(len(meta.keys)), key=lambda i: meta.keys[i])
        keys, tags = [meta.keys[i] for i in order], [meta.tags[i] for i in order]
        if not keys:
            return [], [], []
        fields = self.queue.kv_batch_get(keys=keys, partition_id=partition)
        self.queue.kv_clear(keys=keys, partition_id=partition)
        return keys, tags, [{name: plain(fields[name], i) for name in columns_of(fields)} for i in range(len(keys))]

    def rollouts(self, agent: str, *told: str, partition: str = "train", **columns: Any) -> tuple[list[str], list[Row]]:
        """Statuses and records of one batch, from the trainer's call to what it trains on."""
        uids = self.submit(agent, *told, validate=partition == "val", **columns)
        statuses = self.settled(uids, partition)
        return statuses, self.records(uids, partition)

    def records(self, uids: Sequence[str], partition: str = "train") -> list[Row]:
        """What stands under the prompts' keys; the queue is cleared of them."""
        items = self.queue.kv_list()[partition]
        keys = sorted(key for key in items if key.split("_")[0] in uids and key not in uids)
        rows: list[Row] = []
        if keys:
            fields = self.queue.kv_batch_get(keys=keys, partition_id=partition)
            rows = [{"key": key, **{n: plain(fields[n], i) for n in columns_of(fields)}} for i, key in enumerate(keys)]
        self.queue.kv_clear(keys=[*keys, *uids], partition_id=partition)
        return rows


class Judge:
    """verl's RewardLoopWorker as the framework sees it."""

    def __init__(self, fails: int) -> None:
        self.fails = fails

    async def compute_score(self, data: Any) -> Row:
        if self.fails:
            self.fails -= 1
            raise ValueError("the reward model is busy")
        prompt = data.non_tensor_batch["raw_prompt"][-1]
        length = int(data.batch["attention_mask"][-1].sum())
        assert length == data.non_tensor_batch["prompt_len"][-1] + data.non_tensor_batch["response_len"][-1]
        truth = data.non_tensor_batch["reward_model"][-1]["ground_truth"]
        return {"reward_score": 0.5, "reward_extra_info": {"acc": float(truth == prompt[-1]["content"])}}


def plain(column: Any, index: int) -> Any:
    value = column[index]
    value = getattr(value, "data", value) if not hasattr(value, "tolist") else value
    return value.tolist() if hasattr(value, "tolist") else value


def columns_of(fields: Any) -> list[str]:
    return list(fields.keys())


@pytest.fixture(scope="module")
def made(cluster: Any, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[..., Bench]]:
    """Makes a bench; those that are left are shut down at the end."""
    benches: list[Bench] = []

    def make(**options: Any) -> Bench:
        benches.append(Bench(cluster, folder, tmp_path_factory.mktemp("logs"), options))
        return benches[-1]

    yield make
    for one in benches:
        one.adapter.shutdown()


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which runners note what happened to them."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def bench(made: Callable[..., Bench], marks: Path) -> Bench:
    """Replaces what infrastructure ends, and masks what the agent did not finish."""
    return made(
        runners={
            "talk": {"runner_kwargs": {"turns": 2}},
            "Talker": {"runner_kwargs": {"score": 0.125}},
            "post": {},
            "silent": {},
            "overflow": {},
            "pid": {},
            "task": {"runner_fqn": f"{HERE}.pid", "dispatch_mode": "ray_task"},
            "two_chains": {},
            "longest": {"runner_fqn": f"{HERE}.two_chains", "trajectory_selection": "longest"},
            "broken": {"runner_kwargs": {"first": 4}},
            "lost": {"runner_fqn": f"{HERE}.broken", "runner_kwargs": {"sessions": [1]}},
            "crash": {"runner_kwargs": {"marks": str(marks / "crash")}, "dispatch_mode": "ray_task"},
            "counting": {"runner_kwargs": {"marks": str(marks / "counting")}, "max_concurrent_sessions": 2},
        },
        framework={"mask_unfinished_episode": True},
        failures={"on_infra_failure": "replace", "per_rollout": 2},
    )


@pytest.fixture(scope="module")
def masking(made: Callable[..., Bench]) -> Bench:
    """Masks what infrastructure ends; verl's reward worker scores what nobody else did."""
    ray = load("ray", extra="train", needed_for="these tests")
    return made(
        runners={"lost": {"runner_fqn": f"{HERE}.broken", "runner_kwargs": {"sessions": [1]}}, "silent": {}},
        failures={"on_infra_failure": "mask"},
        reward_workers=[ray.remote(num_cpus=0)(Judge).remote(1)],
    )


def side(record: Row) -> Row:
    return record["extra_fields"]["uni_agent"]


def test_what_verls_reader_finds_of_a_batch_of_two_prompts(bench: Bench) -> None:
    one = bench
    uids = one.submit("talk", "say first", "say second")
    keys, tags, records = one.sample(2)
    assert keys == sorted(f"{uid}_{session}_0" for uid in uids for session in (0, 1))
    tokenizer = load("tokenizers", extra="train", needed_for="these tests").Tokenizer.from_file(
        str(one.folder / "tokenizer.json")
    )
    for key, tag, record in zip(keys, tags, records, strict=True):
        uid, session, _ = key.split("_")
        prompt, response, mask = record["prompts"], record["responses"], record["response_mask"]
        assert record["uid"] == uid and record["session_id"] == int(session)
        assert tag == {
            "status": "success",
            "prompt_len": len(prompt),
            "response_len": len(response),
            "seq_len": len(prompt) + len(response),
            "global_steps": STEP,
            "min_global_steps": 7,
            "max_global_steps": 8,
        }
        word = "first" if uid == uids[0] else "second"
        assert tokenizer.decode(prompt).endswith("assistant\n") and f"say {word}" in tokenizer.decode(prompt)
        sampled = [id_ for id_, trained in zip(response, mask, strict=True) if trained]
        assert tokenizer.decode(sampled, skip_special_tokens=False) == f"{word}<|im_end|>turn 1<|im_end|>"
        assert record["input_ids"] == prompt + response and record["loss_mask"] == mask
        assert record["position_ids"] == list(range(len(prompt) + len(response)))
        logprobs = record["rollout_log_probs"]
        assert [p for p, trained in zip(logprobs, mask, strict=True) if not trained] == [0.0] * mask.count(0)
        assert all(p < 0 for p, trained in zip(logprobs, mask, strict=True) if trained)
        assert record["num_turns"] == 4 and record["multi_modal_inputs"] == {}
        assert record["reward_model"]["ground_truth"] == f"say {word}" and record["data_source"] == "shell"
        assert record["extra_fields"]["reward_extra_info"] == {"acc": 1.0, "answer": word}
        assert record["extra_fields"]["min_global_steps"] == 7
        about = side(record)
        (_, start, end), (_, start2, end2) = about["turns"]
        assert all(mask[start:end]) and all(mask[start2:end2]) and sum(mask) == end - start + end2 - start2
        assert about["weight_spans"] == [["7", start, end], ["8", start2, end2]]
        assert [s[0] for s in about["segments"]] == ["text", "text"] and about["segments"][0][2:] == [start, end]
        first = about["turns"][0][0]
        assert about["turn_scores"] == ([[first, 0.25]] if first == 0 else [])
        rewards = record["rm_scores"]
        assert sum(rewards) == pytest.approx(float(session))
        assert rewards[end - 1] == pytest.approx(0.25) and rewards[-1] == pytest.approx(float(session) - 0.25)
        assert (about["trusted"], about["exit_reason"], about["exit_class"]) == (True, "finished", "finished")
        assert (about["chain"], about["chains"], about["attempts"], about["task_id"]) == (
            0,
            1,
            1,
            "0" if uid == uids[0] else "1",
        )
        assert about["metrics"]["turns"] == 2 and about["metrics"]["tokens_trained"] == sum(mask)
        json.dumps(about)
    assert one.asked() == {(0.9, 0.95, 30)}, "a client's wishes must not change the policy"
    logs = sorted(one.logs.glob(f"step_{STEP}/*/attempt_0/trajectories.json"))
    assert len(logs) == 4 and json.loads(logs[0].read_text())[0]["response_ids"]
    assert json.loads((logs[0].parent / "session.json").read_text())["reward_source"] == "runner"


def test_validation_has_its_own_partition_count_and_sampling(bench: Bench) -> None:
    bench.asked()
    uids = bench.submit("talk", "say a", "say b", validate=True)
    keys, _, records = bench.sample(2, "val")
    assert keys == sorted(f"{uid}_0_0" for uid in uids) and len(records) == 2
    assert bench.asked() == {(0.2, 0.7, 5)}
    statuses, records = bench.rollouts("talk", "say a", __rollout_n__=[3], __do_sample__=[False])
    assert statuses == ["finished"] and [r["session_id"] for r in records] == [0, 1, 2]
    assert bench.asked() == {(0.0, 1.0, -1)}, "greedy, as verl's own worker does it"


def test_several_runners_by_name_where_each_has_its_way_of_rewarding(bench: Bench) -> None:
    names = ["post", "silent", "overflow", "pid", "Talker", "task"]
    uids = bench.submit("", *["say x"] * len(names), agent_name=names)
    assert set(bench.settled(uids)) == {"finished"}
    found = {name: bench.records([uid]) for name, uid in zip(names, uids, strict=True)}
    assert all(len(records) == 2 for records in found.values())
    assert sum(found["Talker"][0]["rm_scores"]) == 0.125
    posted = found["post"][0]
    assert sum(posted["rm_scores"]) == 0.75 and posted["extra_fields"]["reward_extra_info"]["acc"] == 0.5
    assert sum(posted["response_mask"]) == 0 and side(posted)["trusted"], "finished: false is masked, and counts"
    silent = found["silent"][0]
    assert sum(silent["rm_scores"]) == 0 and sum(silent["response_mask"]) == 0 and not side(silent)["trusted"]
    full = found["overflow"][0]
    assert side(full)["exit_reason"] == "token_limit" and sum(full["rm_scores"]) == 0.5
    assert sum(full["response_mask"]) == 0 and side(full)["trusted"]
    assert side(found["pid"][0])["exit_reason"] == "answered" and sum(found["pid"][0]["response_mask"])
    processes = {record["extra_fields"]["reward_extra_info"]["pid"] for record in found["pid"]}
    assert len(processes) == 1
    assert not processes & {record["extra_fields"]["reward_extra_info"]["pid"] for record in found["task"]}
    with pytest.raises(ConfigError, match="'nobody'"):
        bench.submit("nobody", "say x")
    bench.forget()


def test_chains_share_their_sessions_reward_and_the_longest_may_be_chosen(bench: Bench) -> None:
    uids = bench.submit("", "say a", "say a", agent_name=["two_chains", "longest"], __rollout_n__=[1, 1])
    assert bench.settled(uids) == ["finished", "finished"]
    records = bench.records(uids[:1])
    assert [record["key"] for record in records] == [f"{uids[0]}_0_0", f"{uids[0]}_0_1"]
    assert [sum(record["rm_scores"]) for record in records] == [1.0, 1.0]
    assert [(side(r)["chain"], side(r)["chains"]) for r in records] == [(0, 2), (1, 2)]
    assert [len(side(r)["turns"]) for r in records] == [1, 3], "verl takes the reward of the last one: the main one"
    assert side(records[0])["metrics"] == {} and side(records[1])["metrics"]["turns"] == 4
    (longest,) = bench.records(uids[1:])
    assert longest["key"] == f"{uids[1]}_0_0" and len(side(longest)["turns"]) == 3 and side(longest)["chains"] == 1


def test_failed_attempts_are_tried_again_and_a_replacement_is_another_sample(bench: Bench) -> None:
    before = bench.adapter.stats()["failures"]
    statuses, records = bench.rollouts("broken", "say x", __rollout_n__=[1])
    assert statuses == ["finished"] and side(records[0])["attempts"] == 5
    assert sum(records[0]["rm_scores"]) == 1.0 + 2 * 2, "sample 4 of the prompt: the second replacement in a group of 2"
    after = bench.adapter.stats()["failures"]
    changed = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
    assert changed == {"infrastructure_failures": 4, "retried": 2, "replaced": 2}
    assert side(records[0])["metrics"]["failures_replaced"] == 2
    folder = f"step_{STEP}/{records[0]['uid']}_0/attempt_0"
    logged = json.loads((bench.logs / folder / "session.json").read_text())
    assert logged["exit_reason"] == "sandbox_error" and "the sandbox is gone" in logged["traceback"]


def test_a_group_goes_without_what_stays_broken(bench: Bench) -> None:
    statuses, records = bench.rollouts("lost", "say x")
    assert statuses == ["finished"] and [record["session_id"] for record in records] == [0]
    assert bench.adapter.stats()["failures"]["dropped"] >= 1


def test_a_batch_that_failed_as_a_whole_is_raised_at_the_next_one(bench: Bench) -> None:
    statuses, records = bench.rollouts("talk", "say x boom", "say y")
    assert statuses == ["failure", "finished"] and len(records) == 2
    bench.adapter.check()
    statuses, records = bench.rollouts("talk", "boom", "boom boom")
    assert statuses == ["failure", "failure"] and not records
    with pytest.raises(UniAgentError, match=r"all 4 rollouts of a batch failed.*illegal memory access"):
        bench.submit("talk", "say z")
    bench.forget()
    statuses, records = bench.rollouts("talk", "say z")
    assert statuses == ["finished"], "it is said once"
    assert any("illegal memory access" in error for error in bench.adapter.stats()["errors"])


def test_a_runner_that_takes_its_process_down_is_not_run_again_on_its_session(bench: Bench, marks: Path) -> None:
    statuses, records = bench.rollouts("crash", "say x", __rollout_n__=[1])
    assert statuses == ["finished"] and side(records[0])["attempts"] == 2
    sessions = (marks / "crash").read_text().split()
    assert len(sessions) == len(set(sessions)) == 2


def test_no_more_sessions_than_allowed_run_at_once(bench: Bench, marks: Path) -> None:
    statuses, records = bench.rollouts("counting", "say x", "say y", "say z")
    assert statuses == ["finished"] * 3 and len(records) == 6
    noted = (marks / "counting").read_text()
    assert max(noted[:i].count("+") - noted[:i].count("-") for i in range(13)) == 2


def test_verls_reward_worker_scores_what_nobody_else_did(masking: Bench) -> None:
    statuses, records = masking.rollouts("silent", "say x")
    assert statuses == ["finished"] and [sum(record["rm_scores"]) for record in records] == [0.5, 0.5]
    assert records[0]["extra_fields"]["reward_extra_info"] == {"acc": 1.0} and side(records[0])["trusted"]
    assert records[0]["metrics"]["compute_score"] > 0


def test_a_masked_row_stands_for_what_stays_broken_and_is_never_a_zero(masking: Bench) -> None:
    statuses, records = masking.rollouts("lost", "say x")
    assert statuses == ["finished"] and [record["session_id"] for record in records] == [0, 1]
    assert sum(records[1]["response_mask"]) == 0 and not side(records[1])["trusted"]
    assert side(records[1])["exit_reason"] == "sandbox_error" and side(records[1])["turns"]
    assert records[1]["rollout_log_probs"] and sum(records[1]["rm_scores"]) == 0
    statuses, records = masking.rollouts("silent", "say x boom", __rollout_n__=[1])
    assert statuses == ["finished"] and len(records[0]["responses"]) == 1 and records[0]["response_mask"] == [0]
    assert side(records[0])["exit_class"] == "infrastructure" and not side(records[0])["trusted"]
    with pytest.raises(UniAgentError, match="illegal memory access"):
        masking.adapter.check()
    statuses, records = masking.rollouts("lost", "say x", partition="val", __rollout_n__=[2])
    assert [record["session_id"] for record in records] == [0], "a masked row would be a 0 in validation"


PIPELINE = """
data: {{type: jsonl, path: tasks.jsonl}}
model: {{type: verl, path: {folder}, renderer: {{tool_parser: hermes}}}}
agent: {{type: interaction, system_prompt: You work in a shell.}}
tools: [execute_bash, finish]
deployment: {{type: host}}
reward: {{type: command, command: grep -q hello out.txt}}
interaction: {{max_turns: 4}}
run: {{concurrency: 4, samples_per_task: 2, retries: 0}}
"""


@pytest.fixture(scope="module")
def pipelined(made: Callable[..., Bench], folder: Path, marks: Path) -> Bench:
    """The pipeline's own agent, and runners that hang; nothing is tried again."""
    pipeline = marks / "train.yaml"
    pipeline.write_text(PIPELINE.format(folder=folder))
    own = {"runner_fqn": "uni_agent.training.framework.runner.run_task"}
    late = {"runner_fqn": f"{HERE}.hang", "session_timeout": 8.0}
    runners: dict[str, Any] = {
        "own": own,
        "own_task": {**own, "dispatch_mode": "ray_task"},
        "late": {**late, "runner_kwargs": {"marks": str(marks / "late")}},
        "late_task": {**late, "runner_kwargs": {"marks": str(marks / "late_task")}, "dispatch_mode": "ray_task"},
        "hang": {"runner_kwargs": {"marks": str(marks / "hang")}},
    }
    run = {"pipeline": str(pipeline), "run_dir": str(marks / "run")}
    return made(runners=runners, run=run, response_length=768)


@pytest.mark.parametrize("agent", ["own", "own_task"])
def test_the_default_runner_works_a_task_in_its_sandbox_through_the_gateway(
    pipelined: Bench, marks: Path, agent: str
) -> None:
    task = {"id": "hello", "prompt": "TOOL write hello into out.txt"}
    info = {"index": 0, "split": "train", "task": json.dumps(task)}
    statuses, records = pipelined.rollouts(agent, task["prompt"], extra_info=[info])
    assert statuses == ["finished"] and len(records) == 2, pipelined.adapter.stats()
    for record in records:
        assert sum(record["rm_scores"]) == 1.0 and record["extra_fields"]["reward_extra_info"]["success"] == 1.0
        about = side(record)
        assert (about["exit_reason"], about["task_id"], len(about["turns"])) == ("finished", "hello", 2)
        assert [s[0] for s in about["segments"]] == ["action", "action"]
        metrics = about["metrics"]
        assert (metrics["turns"], metrics["tool_calls"], metrics["tool_errors"]) == (2, 2, 0)
        assert metrics["tokens_trained"] == sum(record["response_mask"]) > 0
        assert metrics["seconds_model"] > 0 and record["metrics"]["generate_sequences"] > 0
    assert list((marks / "run" / "journal").glob("*.rollouts"))


@pytest.mark.parametrize("agent", ["late", "late_task"])
def test_a_runner_past_its_deadline_is_cancelled_and_cleans_up(pipelined: Bench, marks: Path, agent: str) -> None:
    statuses, records = pipelined.rollouts(agent, "say x", partition="val")
    assert statuses == ["failure"] and not records
    assert (marks / agent).read_text() == "cancelled 0\n"
    assert any("session_timeout" in error for error in pipelined.adapter.stats()["errors"])
    with pytest.raises(UniAgentError, match="session_timeout"):
        pipelined.adapter.check()


def test_what_a_shutdown_gives_up_is_cancelled_and_marked(pipelined: Bench, marks: Path) -> None:
    pipelined.asked()
    uids = pipelined.submit("hang", "say x")
    deadline = time.monotonic() + 30
    while len(pipelined.calls.read_text().splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)  # until the answers have come
    assert pipelined.status(uids[0]) == "running"
    pipelined.adapter.shutdown()
    assert pipelined.settled(uids, seconds=1) == ["failure"]
    assert sorted((marks / "hang").read_text().split("\n")) == ["", "cancelled 0", "cancelled 1"]
    pipelined.forget()


async def test_a_task_that_is_cancelled_leaves_no_error_that_nobody_retrieves(cluster: Any) -> None:
    noted: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: noted.append(context["message"]))
    runner = RunnerConfig(runner_fqn=f"{HERE}.sleep", dispatch_mode="ray_task")
    with pytest.raises(AgentError, match="session_timeout"):
        await dispatch(runner, lone_session(8))
    gc.collect()
    await asyncio.sleep(0.1)
    assert not noted


def test_a_queue_that_takes_no_records_still_learns_how_prompts_ended_even_from_a_dead_worker(
    made: Callable[..., Bench],
) -> None:
    one = made(runners={"talk": {}}, framework={"framework_class_fqn": f"{HERE}.RefusingWorker"})
    statuses, records = one.rollouts("talk", "say x")
    assert statuses == ["failure"] and not records
    with pytest.raises(UniAgentError, match="the storage unit is gone"):
        one.adapter.check()
    ray = load("ray", extra="train", needed_for="these tests")
    uids = one.submit("talk", "slow say x", "slow say y")
    ray.kill(one.adapter.worker)
    assert one.settled(uids, seconds=30) == ["failure", "failure"]
    with pytest.raises(UniAgentError, match="is gone"):
        one.submit("talk", "say z")
    one.forget()


def test_a_model_whose_calls_the_parser_cannot_read_is_refused_at_the_start(
    cluster: Any, folder: Path, tmp_path: Path
) -> None:
    runners = {"a": {"runner_fqn": f"{HERE}.talk"}}
    rollout = {"multi_turn": {"format": "qwen3_coder"}, "custom": {"agent_framework": {"agent_runners": runners}}}
    config = {"actor_rollout_ref": {"model": {"path": str(folder)}, "rollout": rollout}}
    with pytest.raises(ConfigError, match="qwen3_coder"):
        AgentFrameworkRolloutAdapter.create(config=config, llm_client=EchoClient(str(folder), str(tmp_path / "calls")))
