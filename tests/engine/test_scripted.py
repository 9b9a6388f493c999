from __future__ import annotations

import asyncio
import time
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
    backend = await started([ScriptedTurn(fault="raise"), ScriptedTurn([1], fault="abort"), ScriptedTurn(fault="hang")])
    with pytest.raises(ModelError, match="scripted fault"):
        await backend.generate("a", [7], PARAMS)
    assert (await backend.generate("a", [7], PARAMS)).finish_reason == "abort"
    for _ in range(2):  # a cancelled call does not advance the script
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(backend.generate("a", [7], PARAMS), 0.02)


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
