"""What every SamplingBackend holds of its stream, over each kind that plays a script; streams that break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.backends import PARAMS, Make, engine, ids_key, logprob_list, playing, told
from tests.engine.fake_servers import Flavour, Play, page, serving, status
from uni_agent.engine import SamplingParams, WeightSpan
from uni_agent.engine.sampler import sample
from uni_agent.errors import ContextLengthError, ModelError, TurnTooLongError


class Ear:
    """Takes ids; asks for the end after `enough` of them."""

    def __init__(self, enough: int = 1000) -> None:
        self.pieces: list[list[int]] = []
        self.enough = enough
        self.came = asyncio.Event()

    @property
    def ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece]

    def __call__(self, ids: Sequence[int]) -> bool:
        assert ids and asyncio.get_running_loop()
        self.pieces.append(list(ids))
        self.came.set()
        return len(self.ids) >= self.enough


async def test_what_is_handed_over_is_the_beginning_of_what_comes(make: Make) -> None:
    backend = await make(([1, 2, 3], "stop", 0), ([1, 2, 3], "stop", 0), ([4, 5], "length", 0))
    await backend.start()
    whole = await backend.generate("a", [5], PARAMS)
    ear = Ear()
    streamed = await backend.generate("a", [5], PARAMS, on_tokens=ear)
    assert ear.ids == streamed.token_ids[: len(ear.ids)]
    assert (streamed.token_ids, streamed.logprobs, streamed.finish_reason) == (
        whole.token_ids,
        whole.logprobs,
        "stop",
    )
    cut = await backend.generate("a", [5], SamplingParams(max_tokens=2, stop_token_ids=(9,)), on_tokens=Ear())
    assert (cut.token_ids, cut.finish_reason) == ([4, 5], "length")


async def test_an_abort_in_mid_stream_is_no_stop(make: Make) -> None:
    """LIFE-05."""
    backend = await make(([1, 2], "abort", 0))
    await backend.start()
    ear = Ear()
    output = await backend.generate("a", [5], PARAMS, on_tokens=ear)
    assert (output.token_ids, output.finish_reason) == ([1, 2], "abort")
    assert ear.ids == [1, 2][: len(ear.ids)]


async def test_a_full_window_is_a_context_error_also_for_a_listener(make: Make) -> None:
    backend = await make(([1], "stop", 0))
    await backend.start()
    ear = Ear()
    with pytest.raises(ContextLengthError):
        await backend.generate("a", [5] * 64, PARAMS, on_tokens=ear)
    assert ear.pieces == []


async def test_each_event_is_handed_over_when_it_comes(flavour: Flavour) -> None:
    async with playing(flavour, Play([1, 2, 3], piece=2, token_delay=0.1)) as (backend, _):
        ear = Ear()
        call = asyncio.ensure_future(backend.generate("a", [5], PARAMS, on_tokens=ear))
        await ear.came.wait()
        assert ear.pieces == [[1, 2]] and not call.done()
        output = await call
    assert ear.pieces == [[1, 2], [3, 9]] and output.token_ids == ear.ids
    assert output.logprobs == [-0.25, -0.5, -0.75, -1.0]


async def test_a_stop_on_request_ends_the_call_on_the_server(flavour: Flavour) -> None:
    async with playing(flavour, Play(list(range(10, 40)), token_delay=0.05, version="v1")) as (backend, server):
        output = await backend.generate("a", [5], PARAMS, on_tokens=Ear(enough=3))
        await backend.close()
        await told(server, closed=flavour != "vllm-generate")
    spans = () if flavour == "vllm-completions" else (WeightSpan("v1", 0, 3),)
    assert (output.token_ids, output.finish_reason, output.weight_spans) == ([10, 11, 12], "stop", spans)
    assert output.logprobs == [-0.25, -0.5, -0.75]


async def test_a_stop_on_request_that_the_server_does_not_hear_ends_all_the_same(flavour: Flavour) -> None:
    async with playing(flavour, Play(list(range(10, 40)), token_delay=0.05)) as (backend, server):
        server.deaf = True
        begun = time.monotonic()
        output = await backend.generate("a", [5], SamplingParams(max_tokens=64), on_tokens=Ear(enough=2))
        assert time.monotonic() - begun < 5
    assert (output.token_ids, output.finish_reason) == ([10, 11], "stop")


async def test_a_stop_on_request_at_the_last_token_changes_nothing(flavour: Flavour) -> None:
    async with playing(flavour, Play([1, 2])) as (backend, server):
        output = await backend.generate("a", [5], PARAMS, on_tokens=Ear(enough=3))
    assert (output.token_ids, output.finish_reason, server.aborted) == ([1, 2, 9], "stop", [])


async def test_a_cancel_in_mid_stream_is_aborted_on_the_server(flavour: Flavour) -> None:
    async with playing(flavour, Play(list(range(10, 40)), token_delay=0.1)) as (backend, server):
        ear = Ear()
        call = asyncio.ensure_future(backend.generate("a", [5], PARAMS, on_tokens=ear))
        await ear.came.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await backend.close()
        await told(server)
    assert ear.ids == [10]


async def test_the_deadline_holds_in_mid_stream(flavour: Flavour) -> None:
    async with playing(flavour, Play(list(range(10, 40)), token_delay=0.1), read_timeout=0.35) as (backend, server):
        ear = Ear()
        with pytest.raises(TurnTooLongError, match=r"0\.35 s"):
            await backend.generate("a", [5], PARAMS, on_tokens=ear)
        await backend.close()
        await told(server)
    assert ear.ids[0] == 10


async def test_a_listener_that_raises_ends_the_call_on_the_server_and_is_not_asked_again(flavour: Flavour) -> None:
    def broken(_: Sequence[int]) -> bool:
        raise ZeroDivisionError

    async with playing(flavour, Play(list(range(10, 40)), token_delay=0.05)) as (backend, server):
        with pytest.raises(ZeroDivisionError):
            await backend.generate("a", [5], PARAMS, on_tokens=broken)
        await backend.close()
        await told(server)
    assert len(server.requests) == 1


BROKEN: dict[str, dict[str, Any]] = {
    "reset": {"breaks": 2},
    "end without the last event": {"ends": 2},
    "error in the stream": {"fails": (2, 500, "engine died")},
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_stream_that_breaks_off_is_a_failure_and_not_asked_for_again(flavour: Flavour, how: str) -> None:
    """STREAM-01."""
    async with playing(flavour, Play([1, 2, 3], **BROKEN[how]), Play([4])) as (backend, server):
        ear = Ear()
        with pytest.raises(ModelError, match="broke off after 2 tokens"):
            await backend.generate("a", [5], PARAMS, on_tokens=ear)
    assert ear.ids == [1, 2] and len(server.requests) == 1


@pytest.mark.parametrize("field", ["breaks", "ends", "fails"])
async def test_a_stream_that_breaks_off_before_the_first_token_goes_to_another_replica(
    flavour: Flavour, field: str
) -> None:
    """STREAM-01."""
    options: dict[str, Any] = {field: (0, 503, "going down") if field == "fails" else 0}
    async with serving(flavour, Play(**options)) as bad, serving(flavour, Play([4])) as good:
        backend = engine(flavour, bad.url, good.url)
        await backend.start()
        for i in range(8):
            ear = Ear()
            output = await backend.generate(f"r{i}", [5], PARAMS, on_tokens=ear)
            assert output.token_ids == ear.ids == [4, 9]
        await backend.close()
    assert len(bad.requests) == 1 and len(good.requests) == 8


async def test_a_busy_server_is_asked_again_for_a_stream(flavour: Flavour) -> None:
    async with playing(flavour, status(503), status(429), Play()) as (backend, server):
        ear = Ear()
        await backend.generate("a", [5], PARAMS, on_tokens=ear)
    assert ear.ids == [1, 2, 9] and len(server.requests) == 3


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (400, "The decoder prompt (length 600) is longer than the maximum model length of 512.", ContextLengthError),
        (400, "top_p must be in (0, 1]", ModelError),
    ],
)
async def test_an_error_that_comes_as_an_event_means_what_its_status_would(
    flavour: Flavour, code: int, text: str, error: type[Exception]
) -> None:
    async with playing(flavour, Play(fails=(0, code, text))) as (backend, server):
        with pytest.raises(error, match=f"HTTP {code}"):
            await backend.generate("a", [5], PARAMS, on_tokens=Ear())
    assert len(server.requests) == 1


@pytest.mark.parametrize("play", [page(), Play(edit_event=lambda event: event.clear())], ids=["page", "no chunk"])
async def test_an_answer_that_is_no_stream_is_a_model_error(flavour: Flavour, play: Play) -> None:
    async with playing(flavour, play) as (backend, server):
        with pytest.raises(ModelError):
            await backend.generate("a", [5], PARAMS, on_tokens=Ear())
    assert len(server.requests) == 1


@pytest.mark.parametrize("case", ["id", "logprob", "count", "no logprobs", "no finish"])
async def test_a_stream_passes_the_checks_of_a_whole_answer(flavour: Flavour, case: str) -> None:
    """TOK-08."""

    def edit(event: dict[str, Any]) -> None:
        sglang = flavour == "sglang"
        if not sglang and not event["choices"]:
            return
        if case == "id":
            ids_key(flavour)(event)[-1] = 77
        elif case == "logprob":
            logprob_list(flavour, event).pop()
        elif case == "count":
            if sglang:
                event["meta_info"]["completion_tokens"] += 1
            else:
                ids_key(flavour)(event).append(3)
        elif case == "no logprobs":
            if sglang:
                event["meta_info"]["output_token_logprobs"] = None
            else:
                event["choices"][0]["logprobs"] = None
        else:
            (event["meta_info"] if sglang else event["choices"][0])["finish_reason"] = None

    async with playing(flavour, Play(edit_event=edit)) as (backend, server):
        with pytest.raises(ModelError):
            await backend.generate("a", [5], PARAMS, on_tokens=Ear())
    assert len(server.requests) == 1


async def test_a_stream_longer_than_asked_for_is_an_error(flavour: Flavour) -> None:
    def edit(body: dict[str, Any]) -> None:
        for _ in range(8):
            ids_key(flavour)(body).append(3)
            rows = logprob_list(flavour, body)
            rows.append(rows[0] if flavour != "sglang" else [-1.0, 3, None])
            if flavour == "vllm-generate":
                rows[-1] = {"token_id": 3, "logprob": -1.0}
            elif flavour == "vllm-completions":
                body["choices"][0]["logprobs"]["tokens"].append("token_id:3")

    play = Play([3, 3], "length", edit=edit)
    async with playing(flavour, play) as (backend, _):
        ear = Ear()
        with pytest.raises(ModelError):
            await backend.generate("a", [5], SamplingParams(max_tokens=4), on_tokens=ear)
    assert len(ear.ids) <= 4


@pytest.mark.parametrize("flavour", ["vllm-generate", "sglang"])
async def test_a_version_that_changes_in_mid_turn_is_seen_in_the_spans(flavour: Flavour) -> None:
    """LIFE-05."""

    def edit(body: dict[str, Any]) -> None:
        place = body["meta_info"] if flavour == "sglang" else body["choices"][0]
        place["weight_versions"] = [{"version": "a", "start": 0, "end": 1}, {"version": "b", "start": 1, "end": 3}]

    spans = (WeightSpan("a", 0, 1), WeightSpan("b", 1, 3))
    async with playing(flavour, Play(edit=edit, version="b")) as (backend, _):
        assert (await backend.generate("a", [5], PARAMS)).weight_spans == spans
    async with playing(flavour, Play(edit=edit, version="b")) as (backend, _):
        assert (await backend.generate("a", [5], PARAMS, on_tokens=Ear())).weight_spans == spans


async def test_aborts_and_streams_together_give_one_answer_with_its_versions(flavour: Flavour) -> None:
    """LIFE-05."""
    plays = [Play([1, 2], "abort", version="v1"), Play([3], version="v2")]
    async with playing(flavour, *plays) as (backend, server):
        ear = Ear()
        done = await sample(backend, "a", [5], PARAMS, timeout=5, retries=1, backoff=0, on_tokens=ear)
    assert ear.ids == done.output.token_ids == [1, 2, 3, 9]
    assert done.output.logprobs == [-0.25, -0.5, -0.25, -0.5]
    field = {"vllm-generate": "token_ids", "vllm-completions": "prompt", "sglang": "input_ids"}[flavour]
    assert server.requests[1][field] == [5, 1, 2]
    if flavour != "vllm-completions":
        assert done.output.weight_spans == (WeightSpan("v1", 0, 2), WeightSpan("v2", 2, 4))
