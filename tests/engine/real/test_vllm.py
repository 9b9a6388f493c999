"""VllmBackend against a real vLLM server: what is recorded is what the engine read and sampled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence

import pytest

from tests.engine.conftest import POLICY, rescored
from tests.engine.real.server import WINDOW, Exchange, RunningServer, logged
from uni_agent.engine import SamplingBackend, SamplingParams, WeightSpan
from uni_agent.engine.config import VllmEngineConfig
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.engine.sampler import sample
from uni_agent.errors import ConfigError, ContextLengthError, ModelError

# The first of them waits for the start of the server.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

PROMPT = [1, 400, 201, 569, 478, 517, 583, 281, 84, 16, 383, 16, 2, 201, 1, 401, 201]
NEVER = (700,)  # not sampled here
LONG = WINDOW - len(PROMPT) - 1  # a rescoring pass samples one more
"""Tokens of an answer that takes the server seconds, so that it can be met in its middle."""
CLOSE = 2e-3
"""How far two float32 computations of a logprob may lie apart: another batch, another kernel."""


@pytest.fixture(params=["generate", "completions"])
def endpoint(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def engine(vllm: RunningServer, endpoint: str) -> AsyncGenerator[tuple[SamplingBackend, list[Exchange]]]:
    """A started backend, and what passes between it and the server."""
    async with logged(vllm.url) as (url, seen):
        backend = VllmEngineConfig.model_validate(
            {"type": "vllm", "url": url, "endpoint": endpoint, "retries": 0}
        ).build()
        await backend.start()
        try:
            yield backend, seen
        finally:
            await backend.close()


Engine = tuple[SamplingBackend, list[Exchange]]


def params(
    max_tokens: int | None = 40, seed: int = 1, temperature: float = 1.0, stop: tuple[int, ...] = ()
) -> SamplingParams:
    """Without `stop` the answer ends by length."""
    return SamplingParams(
        temperature,
        max_tokens=max_tokens,
        seed=seed,
        stop_token_ids=stop or NEVER,
        extra={} if stop else {"ignore_eos": True},
    )


def go_on(ids: Sequence[int]) -> bool:
    del ids
    return False


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for `condition`, which asks the server, off the event loop."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.02)


class Running:
    """A generation of LONG tokens that is under way: `ids` are those that were handed over, if it streams."""

    def __init__(self, vllm: RunningServer, backend: SamplingBackend, streamed: bool) -> None:
        self._vllm = vllm
        self._before = vllm.settled()
        self.ids: list[int] = []
        on_tokens = self._take if streamed else None
        self._streamed = streamed
        self.task = asyncio.ensure_future(backend.generate("a", PROMPT, params(LONG), on_tokens=on_tokens))

    def _take(self, ids: Sequence[int]) -> bool:
        self.ids.extend(ids)
        return False

    def sampled(self) -> int:
        """Tokens that the server has sampled for it, a moment ago."""
        return self._vllm.sampled() - self._before

    async def begun(self) -> None:
        """Return once some of its tokens are there, long before the last."""
        await until(lambda: len(self.ids) >= 10 if self._streamed else self.sampled() >= 10)


async def assert_rescored(
    vllm: RunningServer, prompt: list[int], ids: list[int], logprobs: list[float] | None, temperature: float = 1.0
) -> None:
    """The logprobs are those of a later pass: the engine's own at temperature 1, and transformers' at any."""
    assert logprobs is not None and len(logprobs) == len(ids) > 0
    if temperature == 1.0:
        again = await asyncio.to_thread(vllm.rescored, prompt, ids)
        assert logprobs == pytest.approx(again, abs=CLOSE)
    assert logprobs == pytest.approx(rescored(POLICY, prompt, ids, temperature), abs=CLOSE)


async def test_a_greedy_generation_is_that_of_the_embedded_engine(engine: Engine, vllm: RunningServer) -> None:
    backend, seen = engine
    output = await backend.generate("a", PROMPT, params(temperature=0.0))
    embedded = EmbeddedBackend(POLICY, device="cpu")
    await embedded.start()
    try:
        other = await embedded.generate("a", PROMPT, SamplingParams(0.0, max_tokens=40, stop_token_ids=NEVER))
    finally:
        await embedded.close()
    assert (output.token_ids, output.finish_reason) == (other.token_ids, "length")
    assert output.logprobs == pytest.approx(other.logprobs, abs=CLOSE)
    await assert_rescored(vllm, PROMPT, output.token_ids, output.logprobs)
    assert seen[0].prompt_ids == PROMPT
    assert (seen[0].token_ids, seen[0].logprobs) == (output.token_ids, output.logprobs)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
async def test_generations_at_once_each_keep_their_own_ids_and_logprobs(
    engine: Engine, vllm: RunningServer, temperature: float
) -> None:
    backend, seen = engine
    prompts = [[*PROMPT[:6], 517 + n, *PROMPT[7:]] for n in range(6)]
    outputs = await asyncio.gather(
        *(backend.generate(str(n), ids, params(30, n, temperature=temperature)) for n, ids in enumerate(prompts))
    )
    for prompt, output in zip(prompts, outputs, strict=True):
        await assert_rescored(vllm, prompt, output.token_ids, output.logprobs, temperature)
    log = {tuple(one.prompt_ids): (one.token_ids, one.logprobs) for one in seen}
    assert log == {tuple(p): (o.token_ids, o.logprobs) for p, o in zip(prompts, outputs, strict=True)}


@pytest.mark.parametrize("streamed", [False, True])
async def test_the_stop_token_is_the_last_of_the_output(engine: Engine, streamed: bool) -> None:
    backend, _ = engine
    pieces: list[int] = []

    def take(ids: Sequence[int]) -> bool:
        pieces.extend(ids)
        return False

    on_tokens = take if streamed else None
    output = await backend.generate("a", PROMPT, params(stop=(201,)), on_tokens=on_tokens)
    assert (output.token_ids[-1], output.finish_reason) == (201, "stop")
    assert output.token_ids.count(201) == 1 and len(output.logprobs or ()) == len(output.token_ids)
    if streamed:
        assert pieces == output.token_ids


async def test_a_stream_hands_over_what_the_whole_answer_holds(engine: Engine) -> None:
    backend, seen = engine
    pieces: list[list[int]] = []

    def take(ids: Sequence[int]) -> bool:
        pieces.append(list(ids))
        return False

    streamed = await backend.generate("a", PROMPT, params(temperature=0.0), on_tokens=take)
    whole = await backend.generate("a", PROMPT, params(temperature=0.0))
    assert [token for piece in pieces for token in piece] == streamed.token_ids == whole.token_ids
    assert len(pieces) > 1
    assert streamed.logprobs == pytest.approx(whole.logprobs, abs=CLOSE)
    assert (streamed.finish_reason, streamed.weight_spans) == (whole.finish_reason, whole.weight_spans)
    assert seen[0].prompt_ids == PROMPT and seen[0].logprobs == streamed.logprobs


async def test_a_caller_that_has_enough_ends_the_generation_on_the_server(engine: Engine, vllm: RunningServer) -> None:
    backend, _ = engine
    handed: list[int] = []

    def take(ids: Sequence[int]) -> bool:
        handed.extend(ids)
        return len(handed) >= 5

    before = await asyncio.to_thread(vllm.settled)
    output = await backend.generate("a", PROMPT, params(LONG), on_tokens=take)
    assert (output.token_ids, output.finish_reason) == (handed, "stop")
    await assert_rescored(vllm, PROMPT, output.token_ids, output.logprobs)
    assert await asyncio.to_thread(vllm.settled) - before < LONG


async def assert_cancel_ends_it(backend: SamplingBackend, vllm: RunningServer, streamed: bool) -> None:
    call = Running(vllm, backend, streamed)
    await call.begun()
    call.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call.task
    await asyncio.to_thread(vllm.settled)
    assert call.sampled() < LONG


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_cancelled_call_stops_on_the_server(engine: Engine, vllm: RunningServer, streamed: bool) -> None:
    await assert_cancel_ends_it(engine[0], vllm, streamed)


async def test_a_cancelled_call_stops_behind_a_proxy_that_does_not_hear_of_it(vllm: RunningServer) -> None:
    async with logged(vllm.url, deaf=True) as (url, _):
        backend = VllmEngineConfig(type="vllm", url=url, endpoint="generate").build()
        await backend.start()
        try:
            await assert_cancel_ends_it(backend, vllm, streamed=False)
        finally:
            await backend.close()


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_pause_aborts_with_the_tokens_so_far(engine: Engine, vllm: RunningServer, streamed: bool) -> None:
    call = Running(vllm, engine[0], streamed)
    await call.begun()
    await asyncio.to_thread(vllm.post, "/pause?mode=abort")
    try:
        output = await call.task
    finally:
        await asyncio.to_thread(vllm.post, "/resume")
    assert output.finish_reason == "abort" and len(output.token_ids) < LONG
    assert not streamed or call.ids == output.token_ids
    await assert_rescored(vllm, PROMPT, output.token_ids, output.logprobs)


async def test_a_generation_goes_on_after_new_weights(engine: Engine, vllm: RunningServer, endpoint: str) -> None:
    backend, seen = engine
    handed: list[int] = []
    begun = asyncio.Event()

    def take(ids: Sequence[int]) -> bool:
        handed.extend(ids)
        if len(handed) >= 10:
            begun.set()
        return False

    task = asyncio.ensure_future(sample(backend, "a", PROMPT, params(LONG), timeout=120, retries=2, on_tokens=take))
    try:
        await asyncio.wait_for(begun.wait(), 60)
        await asyncio.to_thread(vllm.post, "/pause?mode=abort")
        await asyncio.to_thread(vllm.post, "/update_weight_version", {"new_version": "next"})
        await asyncio.to_thread(vllm.post, "/resume")
        result = await task
    finally:
        await asyncio.to_thread(vllm.post, "/resume")
        await asyncio.to_thread(vllm.post, "/update_weight_version", {"new_version": "default"})
    output = result.output
    assert handed == output.token_ids and len(handed) == LONG
    assert result.dropped == {}
    await assert_rescored(vllm, PROMPT, output.token_ids, output.logprobs)
    cut = len(seen[0].token_ids)
    assert len(seen) == 2 and seen[1].prompt_ids == PROMPT + output.token_ids[:cut]
    if endpoint == "generate":
        assert output.weight_spans == (WeightSpan("default", 0, cut), WeightSpan("next", cut, LONG))


@pytest.mark.parametrize("streamed", [False, True])
async def test_versions_of_weights_that_change_in_mid_turn_are_marked(vllm: RunningServer, streamed: bool) -> None:
    backend = VllmEngineConfig(type="vllm", url=vllm.url, endpoint="generate").build()
    await backend.start()
    call = Running(vllm, backend, streamed)
    try:
        await call.begun()
        await asyncio.to_thread(vllm.post, "/pause?mode=keep")
        await asyncio.to_thread(vllm.post, "/update_weight_version", {"new_version": "next"})
        await asyncio.to_thread(vllm.post, "/resume")
        output = await call.task
    finally:
        await asyncio.to_thread(vllm.post, "/resume")
        await asyncio.to_thread(vllm.post, "/update_weight_version", {"new_version": "default"})
        await backend.close()
    assert len(output.weight_spans) == 2, output.weight_spans
    first, second = output.weight_spans
    assert (first.version, first.start, second.version, second.end) == ("default", 0, "next", LONG)
    assert 0 < first.end == second.start < LONG


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_that_the_server_finds_too_long_is_a_context_error(
    vllm: RunningServer, endpoint: str, streamed: bool
) -> None:
    on_tokens = go_on if streamed else None
    async with logged(vllm.url, window=8 * WINDOW) as (url, seen):  # a window that is not the server's
        backend = VllmEngineConfig.model_validate({"type": "vllm", "url": url, "endpoint": endpoint}).build()
        await backend.start()
        try:
            assert backend.max_context == 8 * WINDOW
            for length in (WINDOW + 1, WINDOW + 100):
                with pytest.raises(ContextLengthError):
                    await backend.generate("a", [5] * length, params(), on_tokens=on_tokens)
        finally:
            await backend.close()
    assert len(seen) == 2  # it was asked, once each


async def test_the_window_is_the_servers_and_is_filled_to_its_last_token(engine: Engine) -> None:
    backend, seen = engine
    assert backend.max_context == WINDOW
    output = await backend.generate("a", [5] * (WINDOW - 3), params(None))
    assert (len(output.token_ids), output.finish_reason) == (3, "length")
    with pytest.raises(ContextLengthError):
        await backend.generate("a", [5] * WINDOW, params())
    assert len(seen) == 1


async def test_what_the_server_refuses_is_an_error_that_is_not_repeated(engine: Engine) -> None:
    backend, seen = engine
    with pytest.raises(ModelError, match="out of vocabulary"):
        await backend.generate("a", [5, 99_999], params())
    assert len(seen) == 1


async def test_a_model_that_it_does_not_serve_is_an_error_at_the_start(vllm: RunningServer) -> None:
    backend = VllmEngineConfig(type="vllm", url=vllm.url, model="other").build()
    with pytest.raises(ConfigError, match=r"serves .*, not other"):
        await backend.start()


async def test_prompt_tokens_that_were_cached_are_counted(engine: Engine, endpoint: str) -> None:
    backend, _ = engine
    prompt = [{"generate": 310, "completions": 311}[endpoint], *PROMPT * 12]
    first, second = [await backend.generate("a", prompt, params(2)) for _ in range(2)]
    assert (first.cached_tokens, second.cached_tokens) == (0, 128)  # whole blocks
    assert first.token_ids == second.token_ids
