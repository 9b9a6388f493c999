"""What is SGLang's own; what it shares with others is in test_backend_contract.py."""

from __future__ import annotations

import base64
from typing import Any

import numpy
import pytest
from aiohttp import web

from tests.engine.fake_servers import Play
from tests.engine.test_backend_contract import PARAMS, engine, playing
from uni_agent.engine.base import SamplingParams, WeightSpan
from uni_agent.errors import ContextLengthError, ModelError


async def test_sampling_is_named_as_sglang_names_it() -> None:
    async with playing("sglang") as (backend, server):
        await backend.generate("a", [5, 6], SamplingParams(0.5, 0.9, 20, 0.1, 1.2, 7, 3, (9, 10)))
        await backend.generate("a", [5, 6], SamplingParams())
    full, plain = server.requests
    assert full["sampling_params"] == {
        "n": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "max_new_tokens": 7,
        "sampling_seed": 3,
        "stop_token_ids": [9, 10],
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    assert (full["input_ids"], full["return_logprob"], full["stream"]) == ([5, 6], True, False)
    assert full["rid"] != plain["rid"]
    assert plain["sampling_params"]["max_new_tokens"] == 62  # never SGLang's default of 128
    assert plain["sampling_params"]["top_k"] == -1 and "sampling_seed" not in plain["sampling_params"]


async def test_the_weight_version_covers_the_output() -> None:
    async with playing("sglang", Play(version="step-4")) as (backend, _):
        assert (await backend.generate("a", [5], PARAMS)).weight_spans == (WeightSpan("step-4", 0, 3),)


async def test_routed_experts_are_asked_for_and_decoded() -> None:
    experts = numpy.arange(3 * 2 * 2, dtype="<i4").reshape(3, 2, 2)

    def add(body: dict[str, Any]) -> None:
        body["meta_info"]["routed_experts"] = base64.b64encode(experts.tobytes()).decode()

    async with playing("sglang", Play(edit=add), routed_experts=[2, 2]) as (backend, server):
        assert numpy.array_equal((await backend.generate("a", [5], PARAMS)).routed_experts, experts)
        assert server.requests[0]["return_routed_experts"] is True
    async with playing("sglang", Play(edit=add), routed_experts=[5, 2]) as (backend, _):
        with pytest.raises(ModelError, match="5 x 2"):
            await backend.generate("a", [5], PARAMS)


async def test_an_abort_before_the_first_token_is_an_empty_abort() -> None:
    """LIFE-05."""

    def edit(body: dict[str, Any]) -> None:
        body.pop("output_ids")
        body["meta_info"] = {"id": "x", "finish_reason": {"type": "abort", "message": "Abort in waiting queue"}}

    async with playing("sglang", Play(edit=edit)) as (backend, _):
        output = await backend.generate("a", [5], PARAMS)
    assert (output.token_ids, output.logprobs, output.finish_reason) == ([], None, "abort")
    assert output.extra["message"] == "Abort in waiting queue"


async def test_an_abort_for_length_is_a_context_error() -> None:
    def edit(body: dict[str, Any]) -> None:
        text = "The input (80 tokens) is longer than the model's context length (64 tokens)."
        body["meta_info"]["finish_reason"] = {"type": "abort", "message": text, "status_code": 400}

    async with playing("sglang", Play(edit=edit)) as (backend, _):
        with pytest.raises(ContextLengthError, match="80 tokens"):
            await backend.generate("a", [5], PARAMS)


async def test_a_truncated_prompt_is_an_error() -> None:
    def edit(body: dict[str, Any]) -> None:
        body["meta_info"]["prompt_tokens"] = 1  # --allow-auto-truncate

    async with playing("sglang", Play(edit=edit)) as (backend, _):
        with pytest.raises(ModelError, match="read 1 prompt tokens, 3 were sent"):
            await backend.generate("a", [5, 6, 7], PARAMS)


async def test_ids_that_disagree_with_those_beside_the_logprobs_are_an_error() -> None:
    def edit(body: dict[str, Any]) -> None:
        body["output_ids"][0] = 7

    async with playing("sglang", Play(edit=edit)) as (backend, _):
        with pytest.raises(ModelError, match="logprobs stand beside"):
            await backend.generate("a", [5], PARAMS)


@pytest.mark.parametrize(
    ("routes", "window"),
    [
        ({"/server_info": {"context_length": 48}}, 48),
        (
            {"/get_server_info": {"context_length": None}, "/v1/models": {"data": [{"id": "m", "max_model_len": 40}]}},
            40,
        ),
        ({"/get_model_info": {"model_path": "m"}}, None),
    ],
)
async def test_the_window_is_read_from_whichever_route_names_it(routes: dict[str, Any], window: int | None) -> None:
    app = web.Application()
    for path, body in routes.items():

        async def answer(_: web.Request, body: Any = body) -> web.Response:
            return web.json_response(body)

        app.router.add_get(path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    backend = engine("sglang", f"http://127.0.0.1:{runner.addresses[0][1]}")
    try:
        await backend.start()
        assert backend.max_context == window
        if window is None:
            with pytest.raises(ModelError, match="max_tokens is needed"):
                await backend.generate("a", [5], PARAMS)
    finally:
        await backend.close()
        await runner.cleanup()


@pytest.mark.parametrize("incremental", [False, True])
async def test_events_with_all_ids_or_only_the_new_ones_give_the_same(incremental: bool) -> None:
    """`--incremental-streaming-output` decides on the server."""
    async with playing("sglang", Play([1, 2, 3], piece=2, version="v1", cached=1)) as (backend, server):
        server.incremental = incremental
        pieces: list[list[int]] = []
        output = await backend.generate("a", [5], PARAMS, on_tokens=lambda ids: bool(pieces.append(list(ids))))
    assert pieces == [[1, 2], [3, 9]]
    assert output.token_ids == [1, 2, 3, 9] and output.logprobs == [-0.25, -0.5, -0.75, -1.0]
    assert (output.weight_spans, output.cached_tokens) == ((WeightSpan("v1", 0, 4),), 1)


async def test_logprobs_may_come_whole_while_ids_come_in_pieces() -> None:
    """As servers with `--stream-output` did."""

    def whole(event: dict[str, Any]) -> None:
        event["output_ids"] = event["output_ids"][-1:]

    async with playing("sglang", Play([1, 2, 3], edit_event=whole)) as (backend, _):
        assert (await backend.generate("a", [5], PARAMS, on_tokens=lambda _: False)).token_ids == [1, 2, 3, 9]


async def test_versions_that_only_the_events_tell_are_kept_for_each_token() -> None:
    """LIFE-05."""

    def switched(event: dict[str, Any]) -> None:
        if event["meta_info"]["completion_tokens"] > 1:
            event["meta_info"]["weight_version"] = "v2"

    async with playing("sglang", Play([1, 2], version="v1", edit_event=switched)) as (backend, _):
        output = await backend.generate("a", [5], PARAMS, on_tokens=lambda _: False)
    assert output.weight_spans == (WeightSpan("v1", 0, 1), WeightSpan("v2", 1, 3))


@pytest.mark.parametrize(("status", "error"), [(400, ModelError), (503, ModelError)])
async def test_an_abort_that_is_an_error_in_truth_is_one(status: int, error: type[Exception]) -> None:
    def refused(body: dict[str, Any]) -> None:
        body["meta_info"]["finish_reason"] |= {"status_code": status, "message": "bad grammar"}

    async with playing("sglang", Play([], "abort", edit=refused), retries=0) as (backend, _):
        with pytest.raises(error, match=f"HTTP {status}: bad grammar"):
            await backend.generate("a", [5], PARAMS, on_tokens=lambda _: False)
