"""One generation above an engine: deadline, retries, aborts that go on or begin anew, and what was lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from uni_agent.engine.base import OnTokens, SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.sampler import Sampling, sample
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError

PARAMS = SamplingParams(max_tokens=10, seed=7, stop_token_ids=(99,))
PAR = ScriptedTurn([1, 2], fault="abort", logprobs=[-1.0, -2.0], weight_version="v1")
REST = ScriptedTurn([3], logprobs=[-3.0, -4.0], weight_version="v2")


class Caller:
    """Samples from a scripted engine and keeps what it was handed and what was lost."""

    def __init__(self, *turns: ScriptedTurn, max_context: int | None = None, stop_after: int = 1000) -> None:
        self.backend = ScriptedBackend(turns, max_context=max_context)
        self.handed: list[int] = []
        self.lost: dict[str, int] = {}
        self.stop_after = stop_after

    def hear(self, ids: Sequence[int]) -> bool:
        self.handed.extend(ids)
        return len(self.handed) >= self.stop_after

    def drop(self, reason: str, count: int) -> None:
        self.lost[reason] = self.lost.get(reason, 0) + count

    async def sample(self, params: SamplingParams = PARAMS, *, listen: bool = False, **options: Any) -> Sampling:
        await self.backend.start()
        chosen: dict[str, Any] = {"timeout": 5.0, "retries": 1, "backoff": 0.01, **options}
        on_tokens: OnTokens | None = self.hear if listen else None
        return await sample(self.backend, "a", [7, 8], params, on_tokens=on_tokens, on_drop=self.drop, **chosen)


@pytest.mark.parametrize("listen", [False, True])
async def test_an_abort_goes_on_from_the_partial_ids_and_each_token_keeps_its_version(listen: bool) -> None:
    """LIFE-05."""
    caller = Caller(PAR, REST)
    done = await caller.sample(listen=listen)
    spans = (WeightSpan("v1", 0, 2), WeightSpan("v2", 2, 4))
    assert done == Sampling(TokenOutput([1, 2, 3, 99], [-1.0, -2.0, -3.0, -4.0], "stop", spans, extra={"parts": 2}), {})
    assert caller.handed == ([1, 2, 3, 99] if listen else [])
    first, second = caller.backend.calls
    assert (first.prompt_ids, second.prompt_ids) == ([7, 8], [7, 8, 1, 2])
    assert (first.sampling.max_tokens, second.sampling.max_tokens) == (10, 8)
    assert second.sampling.seed is not None and second.sampling.seed != first.sampling.seed
    assert caller.lost == {}


async def test_an_abort_may_begin_anew_and_its_tokens_are_counted() -> None:
    """LIFE-05."""
    caller = Caller(PAR, REST)
    done = await caller.sample(on_abort="restart")
    assert (done.output.token_ids, done.output.weight_spans) == ([3, 99], (WeightSpan("v2", 0, 2),))
    assert done.dropped == caller.lost == {"aborted": 2}
    assert caller.backend.calls[1] == caller.backend.calls[0]


async def test_what_is_out_cannot_begin_anew() -> None:
    caller = Caller(PAR, REST)
    with pytest.raises(ModelError, match="cannot begin anew"):
        await caller.sample(listen=True, on_abort="restart")
    assert caller.handed == [1, 2] and caller.lost == {"aborted": 2}
    assert len(caller.backend.calls) == 1


async def test_an_abort_without_logprobs_begins_anew_and_fails_once_its_tokens_are_out() -> None:
    bare = replace(PAR, logprobs=[])
    quiet = Caller(bare, REST)
    assert (await quiet.sample()).output.token_ids == [3, 99]
    assert quiet.lost == {"aborted": 2}
    loud = Caller(bare, REST)
    with pytest.raises(ModelError, match="cannot begin anew"):
        await loud.sample(listen=True)
    assert loud.lost == {"aborted": 2}


async def test_a_generation_survives_more_aborts_than_retries_while_it_gets_on() -> None:
    caller = Caller(*[ScriptedTurn([n], fault="abort", weight_version=f"v{n}") for n in range(5)], ScriptedTurn([5]))
    done = await caller.sample(listen=True)
    assert done.output.token_ids == caller.handed == [0, 1, 2, 3, 4, 5, 99]
    assert [span.version for span in done.output.weight_spans] == ["v0", "v1", "v2", "v3", "v4"]


@pytest.mark.parametrize("mode", ["continue", "restart"])
async def test_aborts_without_progress_end_in_an_error(mode: str) -> None:
    turn = ScriptedTurn([] if mode == "continue" else [1], fault="abort")
    caller = Caller(*[turn] * 3)
    with pytest.raises(ModelError, match="aborted the call 2 times"):
        await caller.sample(on_abort=mode)
    assert len(caller.backend.calls) == 2
    assert caller.lost == ({} if mode == "continue" else {"aborted": 2})


async def test_an_abort_after_the_last_token_is_the_end() -> None:
    stopped = await Caller(ScriptedTurn([1, 99], fault="abort")).sample()
    assert (stopped.output.token_ids, stopped.output.finish_reason) == ([1, 99], "stop")
    capped = await Caller(ScriptedTurn([1, 2], fault="abort")).sample(replace(PARAMS, max_tokens=2))
    assert (capped.output.token_ids, capped.output.finish_reason) == ([1, 2], "length")
    full = await Caller(ScriptedTurn([1, 2], fault="abort"), max_context=4).sample()
    assert (full.output.token_ids, full.output.finish_reason) == ([1, 2], "length")


async def test_a_failed_call_is_repeated_only_while_nothing_is_out() -> None:
    before = Caller(ScriptedTurn([1, 2], fail_after=0), REST)
    assert (await before.sample(listen=True)).output.token_ids == before.handed == [3, 99]
    assert before.backend.calls[0] == before.backend.calls[1]
    after = Caller(ScriptedTurn([1, 2], fail_after=2), REST)
    with pytest.raises(ModelError, match="after 2 tokens"):
        await after.sample(listen=True)
    assert after.handed == [1, 2] and after.lost == {"failed": 2} and len(after.backend.calls) == 1
    deaf = Caller(ScriptedTurn([1, 2], fail_after=2), REST)
    assert (await deaf.sample()).output.token_ids == [3, 99]


async def test_a_continuation_that_fails_at_once_is_repeated_and_one_in_mid_stream_loses_both_parts() -> None:
    caller = Caller(PAR, ScriptedTurn(fault="raise"), REST)
    assert (await caller.sample(listen=True)).output.token_ids == caller.handed == [1, 2, 3, 99]
    broken = Caller(PAR, ScriptedTurn([3, 4], fail_after=1))
    with pytest.raises(ModelError):
        await broken.sample(listen=True)
    assert broken.handed == [1, 2, 3] and broken.lost == {"failed": 3}


async def test_faults_end_after_the_retries_with_the_engines_words() -> None:
    caller = Caller(*[ScriptedTurn(fault="raise")] * 3)
    with pytest.raises(ModelError, match="scripted fault in turn 1"):
        await caller.sample()
    assert len(caller.backend.calls) == 2


async def test_the_deadline_covers_everything_and_counts_what_was_seen() -> None:
    caller = Caller(PAR, ScriptedTurn([3, 4], token_delay=0.1))
    with pytest.raises(TurnTooLongError, match=r"0\.15 s"):
        await caller.sample(listen=True, timeout=0.15)
    assert caller.handed == [1, 2, 3] and caller.lost == {"timeout": 3}


async def test_a_cancelled_generation_counts_what_was_seen() -> None:
    caller = Caller(ScriptedTurn([1, 2], token_delay=0.05))
    task = asyncio.create_task(caller.sample(listen=True))
    while not caller.handed:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert caller.lost == {"cancelled": 1}


async def test_a_stop_on_request_ends_it_also_in_a_continuation() -> None:
    caller = Caller(PAR, ScriptedTurn([3, 4, 5], weight_version="v2"), stop_after=3)
    done = await caller.sample(listen=True)
    assert (done.output.token_ids, done.output.finish_reason) == ([1, 2, 3], "stop")
    assert done.output.weight_spans == (WeightSpan("v1", 0, 2), WeightSpan("v2", 2, 3))
    exact = Caller(PAR, stop_after=2)  # the abort comes with the token that the listener stops at
    assert (await exact.sample(listen=True)).output.finish_reason == "stop"


async def test_errors_that_no_retry_mends_are_raised_at_once() -> None:
    caller = Caller(ScriptedTurn([1]), max_context=2)
    with pytest.raises(ContextLengthError):
        await caller.sample()
    assert len(caller.backend.calls) == 1

    class Misconfigured(Played):
        async def generate(self, *args: Any, **options: Any) -> TokenOutput:
            await super().generate(*args, **options)
            raise ConfigError("wrong")

    engine = Misconfigured()
    with pytest.raises(ConfigError):
        await sample(engine, "a", [7], PARAMS, timeout=5, retries=3)
    assert engine.calls == 1


class Played:
    """An engine that returns what it is given, whatever that is; `pieces` are handed over before."""

    max_context = None

    def __init__(self, *outputs: TokenOutput | Exception, pieces: Sequence[Sequence[int]] = ()) -> None:
        self.outputs = list(outputs) or [TokenOutput([1], [-1.0], "stop")]
        self.pieces = list(pieces)
        self.calls = 0

    async def start(self) -> None: ...

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling: SamplingParams, *, on_tokens: OnTokens | None = None
    ) -> TokenOutput:
        del request_id, prompt_ids, sampling
        self.calls += 1
        if on_tokens is not None and self.pieces:
            on_tokens(self.pieces.pop(0))
        output = self.outputs.pop(0)
        if isinstance(output, Exception):
            raise output
        return output

    async def release(self, request_id: str) -> None: ...

    async def close(self) -> None: ...


async def test_ids_that_an_aborted_part_held_back_are_handed_over_before_those_of_the_next() -> None:
    abort = TokenOutput([1, 2, 3], [-1.0] * 3, "abort")
    engine = Played(abort, TokenOutput([4, 99], [-1.0] * 2, "stop"), pieces=[[1], [4]])
    handed: list[int] = []
    await sample(engine, "a", [7], PARAMS, timeout=5, retries=0, backoff=0, on_tokens=lambda i: bool(handed.extend(i)))
    assert handed == [1, 2, 3, 4]


async def test_an_output_that_is_not_what_was_streamed_is_refused() -> None:
    engine = Played(TokenOutput([5, 2], [-1.0] * 2, "stop"), pieces=[[1]])
    lost: dict[str, int] = {}
    with pytest.raises(ModelError, match="does not begin with"):
        await sample(
            engine, "a", [7], PARAMS, timeout=5, retries=3, on_tokens=lambda _: False, on_drop=lost.__setitem__
        )
    assert lost == {"failed": 2}


async def test_routed_experts_are_joined_by_token_and_never_made_up() -> None:
    def part(ids: list[int], experts: Any, finish: Any = "abort") -> TokenOutput:
        return TokenOutput(ids, [-1.0] * len(ids), finish, routed_experts=experts)

    async def run(*parts: TokenOutput) -> Any:
        return (await sample(Played(*parts), "a", [7], PARAMS, timeout=5, retries=1, backoff=0)).output

    joined = await run(part([1, 2], [[[1]], [[2]]]), part([3], [[[3]]], "stop"))
    assert joined.routed_experts == [[[1]], [[2]], [[3]]]
    assert (await run(part([1], [[[1]]]), part([3], None, "stop"))).routed_experts is None
    anew = await run(part([1, 2], [[[1]]] * 5), part([3], [[[3]]], "stop"))
    assert anew.token_ids == [3]
    # Rows for all that went through the model: the prompt of one token, then 1, 2 and, in the second part, 3 and 4.
    first, second = [[["p"]], [["1"]]], [[["new"]], [["new"]], [["2"]], [["3"]]]
    whole = await run(part([1, 2], first), part([3, 4], second, "stop"))
    assert whole.routed_experts == [[["p"]], [["1"]], [["2"]], [["3"]]]


async def test_foreign_exceptions_become_model_errors() -> None:
    with pytest.raises(ModelError, match="the engine failed: RuntimeError: boom"):
        await sample(Played(RuntimeError("boom")), "a", [7], PARAMS, timeout=5, retries=0)


async def test_a_window_that_fills_up_on_the_way_is_a_cut() -> None:
    abort = TokenOutput([1], [-1.0], "abort")
    done = await sample(Played(abort, ContextLengthError("full")), "a", [7], PARAMS, timeout=5, retries=0, backoff=0)
    assert (done.output.token_ids, done.output.finish_reason, done.dropped) == ([1], "length", {})
