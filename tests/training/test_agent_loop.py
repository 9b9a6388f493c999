"""verl's own AgentLoopWorker with our loop in it, in one process: no Ray, no trainer, real engine, real sandboxes."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import pipeline_text
from tests.training.local_server import POLICY, LocalClient
from uni_agent.config.dump import dump_yaml
from uni_agent.config.load import from_data
from uni_agent.config.load import plain_data as plain
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.model.tokens import AgentChatModel
from uni_agent.pipeline import PipelineConfig
from uni_agent.runtime.rollout import Attempt, RolloutParts
from uni_agent.tokens.config import RendererConfig
from uni_agent.training.command import verl_command
from uni_agent.training.config import FailureConfig
from uni_agent.training.resolve import composed
from uni_agent.types import ExitReason, RolloutKey, Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("verl_installed")]

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
GONE = {"type": "tests.training.flaky:FlakyHostConfig", "options": {"failing": 1.0}, "startup_attempts": 1}


@dataclass
class Rig:
    """A worker of verl's, over an engine in this process."""

    folder: Path
    backend: EmbeddedBackend
    worker: Any = None
    settings: Any = None
    client: Any = None
    tasks: list[Task] = field(default_factory=list[Task])

    def open(self, **changes: Any) -> None:
        """Make the worker for the small pipeline, with `changes` of it."""
        train = changes.pop("train", {})
        number = len(list(self.folder.iterdir()))
        run_dir = self.folder / f"run-{number}"
        (run_dir / "journal").mkdir(parents=True)
        config = from_data(PipelineConfig, {**pipeline_text(**train), **changes})
        (run_dir / "resolved.yaml").write_text(dump_yaml(plain(config)))
        command = verl_command(config, run_dir)
        command.write()
        self.settings = composed(command.folders.verl)
        self.tasks = config.data.build().load()
        self.client = LocalClient(self.backend, 7)
        self.worker = importlib.import_module("verl.experimental.agent_loop").AgentLoopWorker(
            self.settings, self.client
        )

    async def run(self, task: Task, session: int = 0, step: int = 0, *, v1: bool = True, **row: Any) -> Any:
        """What our loop returns for one sample, called as verl's worker calls it."""
        rows = importlib.import_module("uni_agent.data.verl_rows")
        loop_module = importlib.import_module("verl.experimental.agent_loop.agent_loop")
        hydra = importlib.import_module("hydra")
        self.settings.trainer.use_v1 = v1
        loop = hydra.utils.instantiate(
            config=loop_module._agent_loop_registry["uni_agent"],
            trainer_config=loop_module.DictConfigWrap(config=self.settings),
            server_manager=self.client,
            tokenizer=self.worker.tokenizer,
            processor=self.worker.processor,
            hf_model_type=self.worker.hf_model_type,
            dataset_cls=self.worker.dataset_cls,
            data_config=loop_module.DictConfigWrap(self.settings.data),
            tools=loop_module.ToolListWrap(self.worker.tools),
        )
        fields = rows.task_row(task, 0, split="train", data_source="small")
        fields["raw_prompt"] = fields.pop("prompt")
        given = {**fields, "uid": "u", "session_id": session, "global_steps": step, **row}
        return await loop.run(dict(SAMPLING), **given)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncGenerator[Rig]:
    backend = EmbeddedBackend(POLICY, max_batch=64)
    await backend.start()
    yield Rig(tmp_path, backend)
    await backend.close()


async def test_verls_worker_takes_what_our_loop_returns(rig: Rig) -> None:
    """The older trainers' path, from rows to padded tensors, through verl's own code."""
    numpy: Any = importlib.import_module("numpy")
    protocol: Any = importlib.import_module("verl.protocol")
    tensordict: Any = importlib.import_module("tensordict")
    rows = importlib.import_module("uni_agent.data.verl_rows")
    rig.open()
    rig.settings.trainer.use_v1 = False
    made = [rows.task_row(task, i, split="train", data_source="small") for i, task in enumerate(rig.tasks[:3])]

    def column(values: list[Any]) -> Any:
        array = numpy.empty(len(values), dtype=object)
        array[:] = values
        return array

    columns = {name: column([row[name] for row in made]) for name in ("data_source", "reward_model", "extra_info")}
    batch = protocol.DataProto(
        batch=tensordict.TensorDict({"dummy_tensor": torch.zeros(3, 1, dtype=torch.uint8)}, batch_size=3),
        non_tensor_batch={
            **columns,
            "raw_prompt": column([row["prompt"] for row in made]),
            "index": numpy.array([0, 1, 2]),
            "agent_name": column(["uni_agent"] * 3),
        },
        meta_info={"global_steps": 7, "validate": False},
    )
    out = await rig.worker.generate_sequences(batch)
    assert out.batch["prompts"].shape == (3, 256)
    assert out.batch["responses"].shape == (3, 512)
    assert (out.batch["response_mask"].sum(1) > 0).all()
    assert set(out.batch["rm_scores"].sum(1).tolist()) <= {0.0, 1.0}
    padded = out.batch["rollout_log_probs"][out.batch["response_mask"] == 1]
    assert (padded < 0).any()


async def test_every_field_that_the_trainer_reads_is_set(rig: Rig) -> None:
    """Each of these ended a run of verl's trainer when it was left out."""
    rig.open()
    (output,) = await rig.run(rig.tasks[0], step=5)
    record = output.as_dict()
    # `as_dict` leaves out what was not set by hand.
    assert record["num_turns"] >= 2
    assert record["rollout_log_probs"].shape == record["responses"].shape == record["response_mask"].shape
    assert record["rm_scores"].sum().item() == output.reward_score
    extra = record["extra_fields"]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (7, 7)
    assert "success" in extra["reward_extra_info"]
    assert set(record["metrics"]) >= {"generate_sequences", "tool_calls", "compute_score", "num_preempted"}
    assert json.dumps(extra["uni_agent"])


async def test_a_sample_without_a_sandbox_is_no_sample_and_no_zero(rig: Rig) -> None:
    rig.open(deployment=GONE, train={"failures": FailureConfig(on_infra_failure="drop").model_dump()})
    assert await rig.run(rig.tasks[0]) == []
    rig.open(deployment=GONE, train={"failures": FailureConfig(on_infra_failure="mask").model_dump()})
    (row,) = await rig.run(rig.tasks[0])
    assert sum(row.response_mask) == 0
    side = row.extra_fields["uni_agent"]
    assert (side["trusted"], side["exit_reason"]) == (False, "sandbox_error")


async def test_the_older_trainers_get_a_row_that_trains_nothing(rig: Rig) -> None:
    rig.open(deployment=GONE, train={"failures": FailureConfig(on_infra_failure="drop").model_dump()})
    row = await rig.run(rig.tasks[0], v1=False)
    assert (sum(row.response_mask), row.extra_fields["uni_agent"]["trusted"]) == (0, False)


async def test_a_row_of_somebody_else_is_an_error_that_says_so(rig: Rig) -> None:
    rig.open()
    with pytest.raises(ValueError, match="no row of Uni-Agent"):
        await rig.run(rig.tasks[0], extra_info={"index": 3})


async def test_responses_stay_within_the_trainers_length(rig: Rig) -> None:
    rig.open(train={"max_response_tokens": 24})
    outputs = await asyncio.gather(*(rig.run(task) for task in rig.tasks[:6]))
    assert all(len(output.response_ids) <= 24 for (output,) in outputs)
    endings = {output.extra_fields["uni_agent"]["exit_reason"] for (output,) in outputs}
    assert str(ExitReason.TOKEN_LIMIT) in endings


async def test_a_task_brings_its_own_settings(rig: Rig) -> None:
    rig.open()
    task = rig.tasks[0].model_copy(update={"overrides": {**rig.tasks[0].overrides, "interaction": {"max_turns": 1}}})
    (output,) = await rig.run(task)
    assert output.extra_fields["uni_agent"]["metrics"]["turns"] == 1


def recomputed(model: Any, rows: list[tuple[list[int], list[int]]]) -> list[list[float]]:
    """The logprobs of the responses by one padded forward pass, as the actor computes them."""
    longest = max(len(prompt) + len(response) for prompt, response in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.long)
    for i, (prompt, response) in enumerate(rows):
        whole = prompt + response
        ids[i, : len(whole)] = torch.tensor(whole)
        mask[i, : len(whole)] = 1
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask).logits.float()
    logprobs = torch.log_softmax(logits, -1)
    found: list[list[float]] = []
    for i, (prompt, response) in enumerate(rows):
        at = torch.arange(len(prompt) - 1, len(prompt) + len(response) - 1)
        scores: Any = logprobs[i, at, torch.tensor(response)]
        found.append(scores.tolist())
    return found


async def test_inference_and_training_sample_the_same_tokens(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty conversations at temperature 1, several turns each: the same ids, masks and logprobs, which re-score."""
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")
    single = EmbeddedBackend(POLICY, max_batch=1, threads=1, dtype="float32", device="cpu")
    await single.start()
    rig.backend, batched = single, rig.backend
    rig.open(run={"samples_per_task": 2, "concurrency": 8, "seed": 11, "retries": 0})
    renderer = RendererConfig().build(POLICY)
    config = from_data(PipelineConfig, {**pipeline_text(), "run": {"samples_per_task": 2, "seed": 11, "retries": 0}})
    sampling = SamplingParams(temperature=1.0, max_tokens=96)
    model = AgentChatModel(single, renderer, sampling=sampling, max_response=512, max_context=768, seed=11)
    parts = RolloutParts(model, asyncio.Semaphore(4))
    several = 0
    trained: list[Any] = []
    for task in rig.tasks[:50]:
        attempt = Attempt(RolloutKey(task.id, 0), 0, task, config.for_task(task), parts, Silent())
        _, (cache,) = await attempt.run()
        (output,) = await rig.run(task)
        assert output.prompt_ids == cache.prompt_ids
        assert output.response_ids == cache.response_ids
        assert output.response_mask == cache.response_mask
        assert output.response_logprobs == cache.response_logprobs
        several += len(output.extra_fields["uni_agent"]["turns"]) > 1
    assert several >= 40

    rig.client = LocalClient(batched, 7)
    trained = [output for (output,) in await asyncio.gather(*(rig.run(task, 1) for task in rig.tasks[:50]))]
    transformers: Any = importlib.import_module("transformers")
    actor = transformers.AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).eval()
    again = recomputed(actor, [(output.prompt_ids, output.response_ids) for output in trained])
    gap = max(
        abs(sampled - scored)
        for output, scores in zip(trained, again, strict=True)
        for sampled, scored, mask in zip(output.response_logprobs, scores, output.response_mask, strict=True)
        if mask
    )
    assert gap < 1e-3
    await single.close()


class Silent:
    """A rollout's log that keeps nothing."""

    def state(self, state: Any) -> None: ...

    def turn(self, turn: Any) -> None: ...

    def event(self, kind: str, **data: object) -> None: ...
