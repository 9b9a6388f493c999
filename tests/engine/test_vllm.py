"""What is vLLM's own; what it shares with others is in test_backend_contract.py."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from tests.engine.fake_servers import Flavour, Play, npy, serving, status
from tests.engine.test_backend_contract import PARAMS, engine, playing
from uni_agent.engine.base import SamplingParams, WeightSpan
from uni_agent.errors import ConfigError, ModelError

VLLM: list[Flavour] = ["vllm-generate", "vllm-completions"]
ALL = SamplingParams(0.5, 0.9, 20, 0.1, 1.2, 7, 3, (9, 10))


@pytest.mark.parametrize("flavour", VLLM)
async def test_sampling_is_named_as_vllm_names_it(flavour: Flavour) -> None:
    async with playing(flavour) as (backend, server):
        await backend.generate("a", [5, 6], ALL)
        await backend.generate("a", [5, 6], SamplingParams())
    full, plain = (body.get("sampling_params", body) for body in server.requests)
    expected: dict[str, Any] = {
        "n": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "max_tokens": 7,
        "seed": 3,
        "stop_token_ids": [9, 10],
        "logprobs": 0,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
    }
    assert {key: full[key] for key in expected} == expected
    assert plain["top_k"] == -1 and "seed" not in plain
    assert plain["max_tokens"] == 62  # never vLLM's default of 16
    if flavour == "vllm-completions":
        assert full["return_token_ids"] and full["return_tokens_as_token_ids"]


async def test_a_server_without_scale_out_is_asked_through_completions_from_then_on() -> None:
    for refusal in (None, status(403)):
        async with playing("vllm-completions" if refusal is None else "vllm-generate", refusal or Play(), Play()) as (
            backend,
            server,
        ):
            for _ in range(2):
                assert (await backend.generate("a", [5], PARAMS)).token_ids == [1, 2, 9]
        assert server.paths[-2:] == ["/v1/completions"] * 2


async def test_an_endpoint_that_was_asked_for_is_not_replaced() -> None:
    async with playing("vllm-completions", endpoint="generate") as (backend, server):
        with pytest.raises(ModelError, match="--enable-scale-out"):
            await backend.generate("a", [5], PARAMS)
        assert server.paths == []
    async with playing("vllm-generate", endpoint="completions") as (backend, server):
        await backend.generate("a", [5], PARAMS)
        assert server.paths == ["/v1/completions"]


async def test_the_model_is_one_that_the_server_has() -> None:
    async with playing("vllm-generate", model="adapter") as (backend, server):
        assert backend.max_context == 64  # that of its base model
        await backend.generate("a", [5], PARAMS)
        assert server.requests[0]["model"] == "adapter"
        other = engine("vllm-generate", f"{server.url}/v1/", model="gpt")
        with pytest.raises(ConfigError, match=r"engine\.model.*serves tiny, adapter, not gpt"):
            await other.start()


async def test_weight_versions_become_spans() -> None:
    def swapped(body: dict[str, Any]) -> None:
        body["choices"][0]["weight_versions"] = [
            {"version": "7", "start": 0, "end": 1},
            {"version": 8, "start": 1, "end": 3},
        ]

    def wrong(body: dict[str, Any]) -> None:
        body["choices"][0]["weight_versions"] = [{"version": "7", "start": 0, "end": 4}]

    async with playing("vllm-generate", Play(edit=swapped), Play(edit=wrong), Play()) as (backend, _):
        output = await backend.generate("a", [5], PARAMS)
        assert output.weight_spans == (WeightSpan("7", 0, 1), WeightSpan("8", 1, 3))
        with pytest.raises(ModelError, match="weight_versions"):
            await backend.generate("a", [5], PARAMS)
        assert (await backend.generate("a", [5], PARAMS)).weight_spans == ()


async def test_routed_experts_are_decoded() -> None:
    experts = numpy.arange(3 * 2 * 2, dtype="uint8").reshape(3, 2, 2)

    def add(body: dict[str, Any]) -> None:
        body["choices"][0]["routed_experts"] = npy(experts)

    def broken(body: dict[str, Any]) -> None:
        body["choices"][0]["routed_experts"] = "AAAA"

    async with playing("vllm-generate", Play(edit=add), Play(edit=broken)) as (backend, _):
        assert numpy.array_equal((await backend.generate("a", [5], PARAMS)).routed_experts, experts)
        with pytest.raises(ModelError, match="routed_experts"):
            await backend.generate("a", [5], PARAMS)


async def test_older_servers_name_the_ids_only_beside_the_logprobs() -> None:
    def older(body: dict[str, Any]) -> None:
        del body["choices"][0]["token_ids"], body["choices"][0]["prompt_token_ids"], body["usage"]

    async with playing("vllm-completions", Play(edit=older)) as (backend, _):
        assert (await backend.generate("a", [5], PARAMS)).token_ids == [1, 2, 9]

    def texts(body: dict[str, Any]) -> None:
        older(body)
        body["choices"][0]["logprobs"]["tokens"] = ["a", "b", "<|im_end|>"]

    async with playing("vllm-completions", Play(edit=texts)) as (backend, _):
        with pytest.raises(ModelError, match="no token ids"):
            await backend.generate("a", [5], PARAMS)


@pytest.mark.parametrize("where", ["ids", "count"])
async def test_a_prompt_that_the_server_changed_is_an_error(where: str) -> None:
    def edit(body: dict[str, Any]) -> None:
        if where == "ids":
            body["choices"][0]["prompt_token_ids"] = [0, 5]  # a beginning-of-text token in front
        else:
            body["usage"]["prompt_tokens"] = 2

    async with playing("vllm-completions", Play(edit=edit)) as (backend, _):
        with pytest.raises(ModelError, match="prompt"):
            await backend.generate("a", [5], PARAMS)


@pytest.mark.parametrize("choices", [[], [{}, {}], None, "x"])
async def test_more_than_one_choice_or_none_is_an_error(choices: Any) -> None:
    def edit(body: dict[str, Any]) -> None:
        body["choices"] = choices

    async with playing("vllm-generate", Play(edit=edit)) as (backend, _):
        with pytest.raises(ModelError, match="choices, 1 was asked for"):
            await backend.generate("a", [5], PARAMS)


async def test_each_replica_has_its_own_endpoint() -> None:
    async with serving("vllm-generate") as new, serving("vllm-completions") as old:
        backend = engine("vllm-generate", new.url, old.url)
        await backend.start()
        for i in range(20):
            await backend.generate(f"r{i}", [5], PARAMS)
        await backend.close()
    assert set(new.paths) == {"/inference/v1/generate"} and set(old.paths) == {"/v1/completions"}


async def test_a_logprob_that_vllm_does_not_have_is_no_number() -> None:
    """TOK-08: it writes -9999.0 for one that is missing or minus infinity."""
    async with playing("vllm-generate", Play(logprobs=[-0.5, -9999.0, -0.5])) as (backend, _):
        with pytest.raises(ModelError, match="no logprob"):
            await backend.generate("a", [5], PARAMS)


async def test_a_model_that_is_not_served_any_more_is_no_missing_route() -> None:
    gone = status(404, "The model `adapter` does not exist.")
    async with playing("vllm-generate", gone, Play()) as (backend, server):
        with pytest.raises(ModelError, match="does not exist"):
            await backend.generate("a", [5], PARAMS)
        await backend.generate("a", [5], PARAMS)
    assert server.paths == ["/inference/v1/generate"] * 2


async def test_a_prompt_that_the_server_reads_differently_is_an_error_also_in_a_stream() -> None:
    """TOK-08."""

    def other(event: dict[str, Any]) -> None:
        event["prompt_token_ids"] = [5, 5]

    async with playing("vllm-generate", Play(edit_event=other)) as (backend, server):
        with pytest.raises(ModelError, match="not the one sent"):
            await backend.generate("a", [5], PARAMS, on_tokens=lambda _: False)
    assert server.requests[0]["return_token_ids"] is True
