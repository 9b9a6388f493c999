"""What is verl's own; what its backend shares with others is in test_backend_contract.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.fake_clients import Answer, FakeVerlClient
from uni_agent.engine.base import SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.sampler import sample
from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ContextLengthError, ModelError

PARAMS = SamplingParams(max_tokens=8, stop_token_ids=(9,))


async def output(edit: Callable[[Any], None] | None = None, **answer: Any) -> TokenOutput:
    backend = VerlBackend(FakeVerlClient(Answer(edit=edit, **answer)))
    await backend.start()
    return await backend.generate("a", [5], PARAMS)


async def test_sampling_is_named_as_its_servers_name_it() -> None:
    client = FakeVerlClient(Answer())
    for name in ("vllm", "sglang"):
        backend = VerlBackend(client, engine=name)
        await backend.start()
        chosen = SamplingParams(0.5, 0.9, 20, 0.1, 1.2, 7, 3, (9, 10), {"presence_penalty": 0.5})
        await backend.generate("task#0", [5, 6], chosen)
    common = {
        "request_id": "task#0",
        "prompt_ids": [5, 6],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "max_tokens": 7,
        "stop_token_ids": [9, 10],
        "logprobs": True,
        "presence_penalty": 0.5,
    }
    assert client.calls == [{**common, "seed": 3}, {**common, "sampling_seed": 3}]
    with pytest.raises(ModelError, match="may not replace top_p"):
        await backend.generate("a", [5], SamplingParams(max_tokens=2, extra={"top_p": 1}))


async def test_its_steps_are_the_weight_versions() -> None:
    assert (await output()).weight_spans == (WeightSpan("3", 0, 3),)

    def mixed(answer: Any) -> None:
        answer.extra_fields["max_global_steps"] = 4
        answer.num_preempted = 2

    spanning = await output(mixed)
    assert spanning.weight_spans == ()  # it does not say which token is whose
    told = {key: spanning.extra[key] for key in ("min_global_steps", "max_global_steps", "num_preempted")}
    assert told == {"min_global_steps": 3, "max_global_steps": 4, "num_preempted": 2}
    assert (await output(lambda answer: answer.extra_fields.clear())).weight_spans == ()
    assert (await output(lambda answer: answer.extra_fields.update(num_cached_tokens=4))).cached_tokens == 4


@pytest.mark.parametrize(
    ("reason", "ids", "finish"),
    [
        ("completed", [1, 9], "stop"),
        ("completed", [1, 2], "stop"),  # an end of the model's own
        ("completed", [1] * 8, "length"),
        ("completed", [1] * 7 + [9], "stop"),
        ("length", [1, 2], "length"),
        (None, [1, 9], "stop"),
        ("aborted", [1], "abort"),
        ("abort", [1], "abort"),
    ],
)
async def test_completed_may_be_a_stop_or_a_cut(reason: str | None, ids: list[int], finish: str) -> None:
    def edit(answer: Any) -> None:
        answer.token_ids, answer.log_probs, answer.stop_reason = ids, [-0.5] * len(ids), reason

    assert (await output(edit)).finish_reason == finish


def no_logprobs(answer: Any) -> None:
    answer.log_probs = None


def a_logprob_short(answer: Any) -> None:
    answer.log_probs = answer.log_probs[:-1]


def no_ids(answer: Any) -> None:
    answer.token_ids = None


def unknown_end(answer: Any) -> None:
    answer.stop_reason = "exploded"


@pytest.mark.parametrize("edit", [no_logprobs, a_logprob_short, no_ids, unknown_end])
async def test_an_answer_that_does_not_fit_together_is_an_error(edit: Callable[[Any], None]) -> None:
    """TOK-08."""
    with pytest.raises(ModelError):
        await output(edit)


async def test_an_abort_before_the_first_token_is_sampled_again() -> None:
    """LIFE-05."""

    def empty(answer: Any) -> None:
        answer.token_ids, answer.log_probs, answer.stop_reason = [], None, "aborted"

    client = FakeVerlClient(Answer(edit=empty), Answer([4]))
    backend = VerlBackend(client)
    await backend.start()
    done = await sample(backend, "a", [5], PARAMS, timeout=5, retries=1, backoff=0)
    assert (done.output.token_ids, done.dropped) == ([4, 9], {})


async def test_what_the_server_raises_is_told_and_a_full_window_is_known() -> None:
    text = "Prompt length (70) leaves no room to generate within the model's maximum context length (64)"
    with pytest.raises(ContextLengthError):
        await output(error=ValueError(text))
    with pytest.raises(ModelError, match="RuntimeError: actor died"):
        await output(error=RuntimeError("actor died"))
    backend = VerlBackend(FakeVerlClient(Answer()))
    await backend.start()
    with pytest.raises(ModelError, match="max_tokens is needed"):
        await backend.generate("a", [5], SamplingParams())


async def test_a_cancelled_call_is_cancelled_at_the_client() -> None:
    client = FakeVerlClient(Answer(delay=30))
    backend = VerlBackend(client)
    await backend.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(backend.generate("a", [5], PARAMS), 0.05)
    assert client.cancelled == 1


async def test_a_server_that_tells_its_own_spans_is_believed() -> None:
    def spans(answer: Any) -> None:
        answer.extra_fields.update(weight_spans=[[3, 0, 2], [4, 2, 3]], max_global_steps=4)

    assert (await output(spans)).weight_spans == (WeightSpan("3", 0, 2), WeightSpan("4", 2, 3))


class LLMServerClient(FakeVerlClient):
    """Named as verl's own class, whose plain call shows aborts."""


class HidesAborts(LLMServerClient):
    """As verl's FullyAsyncLLMServerClient: asks again until there is a whole answer, and joins the parts."""

    async def generate(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("its own loop is not used")


async def test_an_abort_is_seen_here_and_each_part_keeps_its_weights() -> None:
    def aborted(answer: Any) -> None:
        answer.token_ids, answer.log_probs, answer.stop_reason = [1, 2], [-0.1, -0.2], "aborted"

    def later(answer: Any) -> None:
        answer.token_ids, answer.log_probs = [3, 9], [-0.3, -0.4]
        answer.extra_fields = {"global_steps": 4, "min_global_steps": 4, "max_global_steps": 4}

    client = HidesAborts(Answer(edit=aborted), Answer(edit=later))
    backend = VerlBackend(client, own_aborts=True)
    await backend.start()
    sampled = (await sample(backend, "a", [5], PARAMS, timeout=5, retries=2, backoff=0)).output
    assert sampled.token_ids == [1, 2, 3, 9]
    assert sampled.weight_spans == (WeightSpan("3", 0, 2), WeightSpan("4", 2, 4))
    assert client.calls[1]["prompt_ids"] == [5, 1, 2]
    assert client.calls[1]["max_tokens"] == 6
