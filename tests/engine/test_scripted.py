from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from uni_agent.engine.base import SamplingBackend, SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.scripted import Script, ScriptedBackend, ScriptedTurn
from uni_agent.errors import ConfigError, ContextLengthError, ModelError

PARAMS = SamplingParams(stop_token_ids=(99,))


async def started(script: Script = (), **options: Any) -> ScriptedBackend:
    backend = ScriptedBackend(script, **options)
    await backend.start()
    return backend


def code_points(text: str) -> list[int]:
    return [ord(character) for character in text]


async def test_every_request_plays_the_script_from_its_start() -> None:
    backend = await started([[1, 2], [3]])
    assert isinstance(backend, SamplingBackend)
    assert await backend.generate("a", [7], PARAMS) == TokenOutput([1, 2, 99], [-0.5] * 3, "stop")
    assert (await backend.generate("b", [7], PARAMS)).token_ids == [1, 2, 99]
    assert (await backend.generate("a", [7, 1, 2, 99, 8], PARAMS)).token_ids == [3, 99]
    with pytest.raises(ModelError, match="ends after 2 turns"):
        await backend.generate("a", [7], PARAMS)
    await backend.release("a")
    assert (await backend.generate("a", [7], PARAMS)).token_ids == [1, 2, 99]
    assert [call.request_id for call in backend.calls] == ["a", "b", "a", "a", "a"]
    assert backend.released == ["a"]


async def test_an_id_may_have_a_script_of_its_own_and_scripts_may_repeat() -> None:
    backend = await started([[1]], scripts={"b": [[2], [3]]}, repeat=True)
    assert [(await backend.generate("b", [7], PARAMS)).token_ids[0] for _ in range(3)] == [2, 3, 2]
    assert [(await backend.generate("a", [7], PARAMS)).token_ids[0] for _ in range(2)] == [1, 1]


async def test_text_goes_through_the_encoder() -> None:
    backend = await started(["hi"], encode=code_points)
    assert (await backend.generate("a", [7], PARAMS)).token_ids == [104, 105, 99]
    with pytest.raises(ConfigError, match="encode"):
        ScriptedBackend(["hi"])


async def test_a_turn_decides_its_end_its_logprobs_and_its_weights() -> None:
    backend = await started(
        [
            ScriptedTurn([1, 99]),  # its own stop id is not doubled
            ScriptedTurn([1], stop_id=None),
            ScriptedTurn([1], stop_id=5),
            ScriptedTurn([1, 2], "length"),
            ScriptedTurn([1, 2], "abort", logprobs=[-1.0, -2.0], weight_version="v3"),
            ScriptedTurn([1], logprobs=[]),
        ]
    )
    outputs = [await backend.generate("a", [7], PARAMS) for _ in range(6)]
    assert [o.token_ids for o in outputs] == [[1, 99], [1], [1, 5], [1, 2], [1, 2], [1, 99]]
    assert [o.finish_reason for o in outputs] == ["stop", "stop", "stop", "length", "abort", "stop"]
    assert outputs[4].logprobs == [-1.0, -2.0]
    assert outputs[4].weight_spans == (WeightSpan("v3", 0, 2),)
    assert outputs[5].logprobs is None


async def test_caps_and_the_window_cut_like_an_engine() -> None:
    backend = await started([[1, 2, 3, 4]], repeat=True, max_context=6)
    cut = await backend.generate("a", [7], SamplingParams(max_tokens=2, stop_token_ids=(99,)))
    assert (cut.token_ids, cut.finish_reason, len(cut.logprobs or ())) == ([1, 2], "length", 2)
    cut = await backend.generate("a", [7, 7, 7], PARAMS)
    assert (cut.token_ids, cut.finish_reason) == ([1, 2, 3], "length")
    with pytest.raises(ContextLengthError):
        await backend.generate("a", [7] * 6, PARAMS)


async def test_faults_raise_abort_or_hang() -> None:
    slow = ScriptedTurn([2], delay=0.1)
    faults = [ScriptedTurn(fault="raise"), ScriptedTurn([1], fault="abort"), ScriptedTurn(fault="hang"), slow]
    backend = await started(faults)
    with pytest.raises(ModelError, match="scripted fault"):
        await backend.generate("a", [7], PARAMS)
    assert (await backend.generate("a", [7], PARAMS)).finish_reason == "abort"
    for _ in range(3):  # the hanging one is used up, the slow one waits for a caller with patience
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.generate("a", [7], PARAMS), 0.02)
    assert (await backend.generate("a", [7], PARAMS)).token_ids[0] == 2


async def test_it_must_be_started_and_refuses_after_close() -> None:
    backend = ScriptedBackend([[1]])
    with pytest.raises(ModelError, match="not started"):
        await backend.generate("a", [7], PARAMS)
    await backend.start()
    await backend.close()
    await backend.close()
    with pytest.raises(ModelError, match="not started"):
        await backend.generate("a", [7], PARAMS)


async def test_thousands_of_requests_wait_at_the_same_time() -> None:
    backend = await started([ScriptedTurn([1], delay=0.2)], record=False)
    begun = time.monotonic()
    await asyncio.gather(*(backend.generate(f"r{i}", [7], PARAMS) for i in range(5000)))
    assert time.monotonic() - begun < 20
    assert backend.calls == []


async def test_a_listener_gets_the_ids_in_pieces_with_their_waits() -> None:
    backend = await started([ScriptedTurn([1, 2, 3, 4], piece=2, token_delay=0.05)], repeat=True)
    pieces: list[list[int]] = []
    begun = time.monotonic()
    output = await backend.generate("a", [7], PARAMS, on_tokens=lambda ids: pieces.append(list(ids)) is not None)
    assert pieces == [[1, 2], [3, 4], [99]]
    assert (output.token_ids, output.finish_reason) == ([1, 2, 3, 4, 99], "stop")
    assert time.monotonic() - begun >= 0.15
    begun = time.monotonic()
    assert await backend.generate("a", [7], PARAMS) == output
    assert time.monotonic() - begun >= 0.15


async def test_a_listener_may_stop_it() -> None:
    backend = await started([ScriptedTurn([1, 2, 3, 4], logprobs=[-1.0, -2.0, -3.0, -4.0], weight_version="v1")])
    seen: list[int] = []

    def two(ids: Sequence[int]) -> bool:
        seen.extend(ids)
        return len(seen) == 2

    output = await backend.generate("a", [7], PARAMS, on_tokens=two)
    assert output == TokenOutput([1, 2], [-1.0, -2.0], "stop", weight_spans=(WeightSpan("v1", 0, 2),))
    assert seen == [1, 2]


@pytest.mark.parametrize(("after", "streamed"), [(0, []), (2, [1, 2]), (9, [1, 2, 3, 99])])
async def test_a_stream_may_break_off(after: int, streamed: list[int]) -> None:
    backend = await started([ScriptedTurn([1, 2, 3], fail_after=after), [5]])
    seen: list[int] = []
    with pytest.raises(ModelError, match=f"after {len(streamed)} tokens"):
        await backend.generate("a", [7], PARAMS, on_tokens=lambda ids: bool(seen.extend(ids)))
    assert seen == streamed
    assert (await backend.generate("a", [7], PARAMS)).token_ids == [5, 99]


async def test_a_shared_script_is_played_in_order_of_arrival_and_a_cancelled_call_gives_its_turn_back() -> None:
    backend = await started([ScriptedTurn([1], delay=0.2), [2], [3]], shared=True)
    first = asyncio.ensure_future(backend.generate("a", [7], PARAMS))
    await asyncio.sleep(0)
    assert (await backend.generate("b", [7], PARAMS)).token_ids == [2, 99]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await backend.release("a")
    assert (await backend.generate("c", [7], PARAMS)).token_ids == [1, 99]
    assert (await backend.generate("a", [7], PARAMS)).token_ids == [3, 99]
    with pytest.raises(ModelError, match="ends after 3 turns"):
        await backend.generate("b", [7], PARAMS)
    with pytest.raises(ConfigError, match="either"):
        ScriptedBackend([[1]], scripts={"a": [[1]]}, shared=True)


async def test_two_calls_of_one_id_at_once_play_two_turns() -> None:
    backend = await started([ScriptedTurn([1], delay=0.05), [2]])
    outputs = await asyncio.gather(*(backend.generate("a", [7], PARAMS) for _ in range(2)))
    assert [output.token_ids for output in outputs] == [[1, 99], [2, 99]]
