from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.conftest import POLICY, Backend, rescored, vocabulary
from uni_agent.engine.base import SamplingBackend, SamplingParams, TokenOutput
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.errors import ConfigError, ContextLengthError, ModelError

NEVER = (10**6,)  # no id of any vocabulary here: these requests end by length


def prompt_of(path: Path, length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(1, vocabulary(path)) for _ in range(length)]


def params(max_tokens: int = 12, seed: int | None = None, **rest: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, stop_token_ids=NEVER, **rest)  # pyright: ignore[reportArgumentType]


def assert_logprobs(path: Path, prompt: list[int], output: TokenOutput, temperature: float = 1.0) -> None:
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    again = rescored(path, prompt, output.token_ids, temperature)
    assert output.logprobs == pytest.approx(again, abs=1e-4)


async def test_is_a_sampling_backend_and_start_and_close_are_idempotent(random_model: Path) -> None:
    engine = EmbeddedBackend(random_model)
    assert isinstance(engine, SamplingBackend)
    await engine.close()
    await asyncio.gather(engine.start(), engine.start())
    assert engine.max_context == 64
    await engine.close()
    await engine.close()
    with pytest.raises(ModelError, match="not started"):
        await engine.generate("a", [1], params())
    await engine.start()
    assert (await engine.generate("a", [1], params(2))).finish_reason in ("stop", "length")
    await engine.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
async def test_sampled_logprobs_equal_a_full_forward_pass(
    model_folder: Path, backend: Backend, temperature: float
) -> None:
    prompt = prompt_of(model_folder, 9)
    async with backend(model_folder) as engine:
        output = await engine.generate("a", prompt, params(30, seed=3, temperature=temperature))
    assert len(output.token_ids) > 1
    assert_logprobs(model_folder, prompt, output, temperature)


async def test_truncated_sampling_reports_the_logprob_of_the_whole_distribution(
    random_model: Path, backend: Backend
) -> None:
    prompt = prompt_of(random_model, 5)
    async with backend(random_model) as engine:
        for limit in ({"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.4}, {"top_k": 5, "top_p": 0.8, "min_p": 0.01}):
            output = await engine.generate("a", prompt, params(20, seed=1, **limit))
            assert_logprobs(random_model, prompt, output)
        first_of_top_1 = await engine.generate("b", prompt, params(8, seed=2, top_k=1))
        greedy = await engine.generate("c", prompt, params(8, seed=9, temperature=0.0))
    assert first_of_top_1.token_ids == greedy.token_ids
    assert_logprobs(random_model, prompt, greedy)


async def test_a_repetition_penalty_looks_at_the_prompt_and_the_answer(random_model: Path, backend: Backend) -> None:
    prompt = prompt_of(random_model, 6)
    async with backend(random_model) as engine:
        output = await engine.generate("a", prompt, params(20, temperature=0.0, repetition_penalty=1e6))
    assert len({*prompt, *output.token_ids}) == len(set(prompt)) + 20


async def test_a_temperature_next_to_nothing_is_greedy(random_model: Path, backend: Backend) -> None:
    async with backend(random_model) as engine:
        cold = await engine.generate("a", [1, 2], params(10, temperature=1e-9))
        greedy = await engine.generate("b", [1, 2], params(10, temperature=0.0))
    assert cold.token_ids == greedy.token_ids


async def test_tokens_come_as_often_as_the_model_says(random_model: Path, backend: Backend) -> None:
    prompt = prompt_of(random_model, 4)
    async with backend(random_model, max_batch=200) as engine:
        outputs = await asyncio.gather(*(engine.generate(f"r{i}", prompt, params(1)) for i in range(600)))
    counts = Counter(output.token_ids[0] for output in outputs)
    logprob = {o.token_ids[0]: (o.logprobs or [0.0])[0] for o in outputs}
    for token, count in counts.most_common(3):
        expected = 600 * math.exp(logprob[token])
        assert abs(count - expected) < 5 * max(expected, 1) ** 0.5


async def test_a_seeded_sample_does_not_depend_on_the_batch(model_folder: Path, backend: Backend) -> None:
    prompt = prompt_of(model_folder, 11)
    async with backend(model_folder) as engine:
        alone = await engine.generate("alone", prompt, params(25, seed=42))
        others = [engine.generate(f"o{i}", prompt_of(model_folder, 3 + i, i), params(5 + 2 * i)) for i in range(15)]
        crowded, *_ = await asyncio.gather(engine.generate("crowded", prompt, params(25, seed=42)), *others)
    async with backend(model_folder, seed=77) as other_engine:
        elsewhere = await other_engine.generate("x", prompt, params(25, seed=42))
    assert alone.token_ids == crowded.token_ids == elsewhere.token_ids
    assert crowded.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


async def test_sixteen_concurrent_requests_of_unequal_length_all_rescore(model_folder: Path, backend: Backend) -> None:
    prompts = [prompt_of(model_folder, 2 + 2 * i, i) for i in range(16)]
    async with backend(model_folder, max_batch=7) as engine:  # fewer places than requests: some wait
        outputs = await asyncio.gather(
            *(engine.generate(f"r{i}", prompt, params(3 + i)) for i, prompt in enumerate(prompts))
        )
    for i, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        assert len(output.token_ids) <= 3 + i
        assert_logprobs(model_folder, prompt, output)


async def test_samples_without_a_seed_follow_the_root_seed_the_id_and_the_turn(
    random_model: Path, backend: Backend
) -> None:
    prompt = prompt_of(random_model, 6)

    async def run(root: int) -> list[list[int]]:
        async with backend(random_model, seed=root) as engine:
            first = await engine.generate("a", prompt, params(12))
            second = await engine.generate("a", prompt, params(12))
            other, same_id_at_once = await asyncio.gather(
                engine.generate("b", prompt, params(12)), engine.generate("b", prompt, params(12))
            )
        return [o.token_ids for o in (first, second, other, same_id_at_once)]

    once = await run(1)
    assert once == await run(1)
    assert once != await run(2)
    assert len({tuple(ids) for ids in once}) == 4


async def test_turns_with_the_cache_equal_turns_without(model_folder: Path, backend: Backend) -> None:
    async def conversation(**options: int) -> tuple[list[TokenOutput], list[list[int]]]:
        outputs: list[TokenOutput] = []
        prompts: list[list[int]] = []
        async with backend(model_folder, **options) as engine:
            ids = prompt_of(model_folder, 8)
            for turn in range(3):
                prompts.append(list(ids))
                output = await engine.generate("talk", ids, params(6, seed=turn))
                outputs.append(output)
                ids = ids + output.token_ids + prompt_of(model_folder, 4, turn)
        return outputs, prompts

    cached, prompts = await conversation()
    plain, _ = await conversation(cache_sessions=0)
    assert [o.token_ids for o in cached] == [o.token_ids for o in plain]
    assert [o.cached_tokens for o in plain] == [0, 0, 0]
    # All of the chain but the last sampled token, which no step has computed, and the new tokens.
    assert [o.cached_tokens for o in cached] == [
        0, *(len(p) + len(o.token_ids) - 1 for p, o in zip(prompts[:2], cached[:2], strict=True))
    ]  # fmt: skip
    for prompt, output in zip(prompts, cached, strict=True):
        assert_logprobs(model_folder, prompt, output)


async def test_a_prompt_that_leaves_the_chain_reuses_only_what_it_shares(random_model: Path, backend: Backend) -> None:
    prompt = prompt_of(random_model, 20)
    changed = [*prompt[:12], (prompt[12] + 1) % 100, *prompt[13:]]
    async with backend(random_model) as engine:
        await engine.generate("a", prompt, params(4))
        output = await engine.generate("a", changed, params(8, seed=1))
        repeated = await engine.generate("a", changed, params(8, seed=1))
    assert output.cached_tokens == 12
    assert repeated.cached_tokens == 19  # the last token's logits are always computed
    assert output.token_ids == repeated.token_ids
    assert_logprobs(random_model, changed, output)


async def test_release_and_the_cap_on_sessions_forget(random_model: Path, backend: Backend) -> None:
    prompt = prompt_of(random_model, 10)
    async with backend(random_model, cache_sessions=2) as engine:
        for name in ("a", "b", "c"):
            await engine.generate(name, prompt, params(2))
        assert (await engine.generate("a", prompt, params(2))).cached_tokens == 0  # the oldest went
        assert (await engine.generate("c", prompt, params(2))).cached_tokens == 9
        await engine.release("c")
        await engine.release("unknown")
        assert (await engine.generate("c", prompt, params(2))).cached_tokens == 0
    async with backend(random_model, cache_bytes=100) as engine:
        await engine.generate("a", prompt, params(2))
        assert (await engine.generate("a", prompt, params(2))).cached_tokens == 0


async def test_a_stop_id_ends_the_turn_and_is_part_of_it(random_model: Path, backend: Backend) -> None:
    prompt = prompt_of(random_model, 6)
    async with backend(random_model) as engine:
        free = await engine.generate("a", prompt, params(20, seed=8))
        stop = free.token_ids[7]
        first = free.token_ids.index(stop)
        sampling = SamplingParams(max_tokens=20, seed=8, stop_token_ids=(stop,))
        output = await engine.generate("b", prompt, sampling)
    assert output.token_ids == free.token_ids[: first + 1]
    assert output.finish_reason == "stop"


async def test_the_models_own_end_token_stops_a_request_without_stop_ids(backend: Backend) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(POLICY / "tokenizer.json"))
    text = "<|im_start|>user\nDelete the file bado.txt.<|im_end|>\n<|im_start|>assistant\n"
    async with backend(POLICY) as engine:
        output = await engine.generate("a", tokenizer.encode(text).ids, SamplingParams(max_tokens=200, seed=1))
    assert output.finish_reason == "stop"
    assert output.token_ids[-1] == tokenizer.token_to_id("<|im_end|>")


async def test_the_window_cuts_the_turn_and_a_full_prompt_is_refused(random_model: Path, backend: Backend) -> None:
    async with backend(random_model) as engine:
        sampling = SamplingParams(seed=3, stop_token_ids=(101,))
        output = await engine.generate("a", prompt_of(random_model, 60), sampling)
        assert (len(output.token_ids), output.finish_reason) == (4, "length")
        assert_logprobs(random_model, prompt_of(random_model, 60), output)
        for length in (64, 65, 500):
            with pytest.raises(ContextLengthError, match="window of 64"):
                await engine.generate("a", prompt_of(random_model, length), sampling)
    async with backend(random_model, max_context=10) as engine:
        assert len((await engine.generate("a", [1, 2, 3], sampling)).token_ids) == 7


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], SamplingParams(max_tokens=1)),
        ([101], SamplingParams(max_tokens=1)),
        ([-1], SamplingParams(max_tokens=1)),
        ([1], SamplingParams(max_tokens=0)),
        ([1], SamplingParams(max_tokens=1, temperature=-1.0)),
        ([1], SamplingParams(max_tokens=1, temperature=float("nan"))),
        ([1], SamplingParams(max_tokens=1, extra={"grammar": "…"})),
    ],
)
async def test_what_cannot_be_sampled_is_refused_and_hurts_nobody(
    random_model: Path, backend: Backend, prompt: list[int], sampling: SamplingParams
) -> None:
    async with backend(random_model) as engine:
        good = asyncio.ensure_future(engine.generate("good", [1, 2, 3], params(20, seed=1)))
        with pytest.raises(ModelError):
            await engine.generate("bad", prompt, sampling)
        assert len((await good).token_ids) == 20


async def test_a_cancelled_request_leaves_and_the_others_stay_as_they_were(
    model_folder: Path, backend: Backend
) -> None:
    prompts = [prompt_of(model_folder, 5 + i, i) for i in range(6)]
    async with backend(model_folder) as engine:
        calm = [await engine.generate(f"c{i}", p, params(50, seed=i)) for i, p in enumerate(prompts)]
        tasks = [asyncio.ensure_future(engine.generate(f"r{i}", p, params(50, seed=i))) for i, p in enumerate(prompts)]
        await asyncio.sleep(0.004)
        for victim in (0, 3, 5):
            tasks[victim].cancel()
            await asyncio.sleep(0.002)
        for i in (1, 2, 4):
            assert (await tasks[i]).token_ids == calm[i].token_ids
        for victim in (0, 3, 5):
            with pytest.raises(asyncio.CancelledError):
                await tasks[victim]
        # The cancelled conversation goes on as if the call had never been made.
        again = await engine.generate("r0", prompts[0], params(50, seed=0))
    assert again.token_ids == calm[0].token_ids
    assert_logprobs(model_folder, prompts[0], again)


async def test_a_cancelled_call_does_not_advance_the_seed_of_the_next(random_model: Path, backend: Backend) -> None:
    prompt = prompt_of(random_model, 5)
    async with backend(random_model) as engine:
        calm = await engine.generate("a", prompt, params(10))
    async with backend(random_model) as engine:
        call = asyncio.ensure_future(engine.generate("a", prompt, params(50)))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await engine.generate("a", prompt, params(10))).token_ids == calm.token_ids


async def test_the_event_loop_keeps_turning_while_the_model_runs(backend: Backend) -> None:
    prompt = prompt_of(POLICY, 1200)
    async with backend(POLICY) as engine:
        work = asyncio.gather(*(engine.generate(f"r{i}", prompt, params(20)) for i in range(4)))
        turns = 0
        while not work.done():
            await asyncio.sleep(0.001)
            turns += 1
        await work
    assert turns > 20


async def test_close_fails_what_is_running_and_ends_the_thread(random_model: Path) -> None:
    engine = EmbeddedBackend(random_model, max_batch=2)
    await engine.start()
    calls = [asyncio.ensure_future(engine.generate(f"r{i}", [1, 2], params(60))) for i in range(40)]
    await asyncio.sleep(0.01)
    await engine.close()
    outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert any(isinstance(outcome, ModelError) for outcome in outcomes)
    assert all(isinstance(outcome, ModelError | TokenOutput) for outcome in outcomes)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("uni-agent-embedded")]


async def test_a_model_with_sliding_windows_is_refused(random_model: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((random_model / name).read_bytes())
    text = (tmp_path / "config.json").read_text().replace('"llama"', '"mistral"').replace("Llama", "Mistral")
    (tmp_path / "config.json").write_text(text.replace("{", '{"sliding_window": 8,', 1))
    engine = EmbeddedBackend(tmp_path)
    with pytest.raises(ConfigError):
        await engine.start()


async def test_each_token_is_handed_over_in_its_step_and_listening_changes_nothing(
    backend: Backend, model_folder: Path
) -> None:
    chosen = params(12, 3)
    async with backend(model_folder) as engine:
        whole = await engine.generate("a", [5, 6, 7], chosen)
        pieces: list[list[int]] = []
        streamed = await engine.generate("b", [5, 6, 7], chosen, on_tokens=lambda ids: bool(pieces.append(list(ids))))
    assert pieces == [[token] for token in whole.token_ids]
    assert replace(streamed, cached_tokens=0) == replace(whole, cached_tokens=0)


async def test_a_stop_on_request_ends_the_decode_and_keeps_what_was_computed(
    backend: Backend, random_model: Path
) -> None:
    seen: list[int] = []
    chosen = params(40, 3)

    def three(ids: Sequence[int]) -> bool:
        seen.extend(ids)
        return len(seen) >= 3

    async with backend(random_model) as engine:
        cut = await engine.generate("a", [5, 6, 7], chosen, on_tokens=three)
        assert cut.token_ids == seen and len(seen) == 3
        assert cut.finish_reason == "stop" and cut.logprobs is not None and len(cut.logprobs) == 3
        whole = await engine.generate("b", [5, 6, 7], chosen)
        assert whole.token_ids[:3] == seen and len(whole.token_ids) > 4
        again = await engine.generate("a", [5, 6, 7, *seen], chosen)
        assert again.cached_tokens >= 5


async def test_a_stop_on_request_at_the_last_token_changes_nothing(backend: Backend, random_model: Path) -> None:
    async with backend(random_model) as engine:
        output = await engine.generate("a", [5], SamplingParams(max_tokens=1, seed=3), on_tokens=lambda _: True)
        assert (len(output.token_ids), output.finish_reason) == (1, "length")


async def test_a_cancelled_stream_hands_over_nothing_more(backend: Backend, random_model: Path) -> None:
    async with backend(random_model) as engine:
        seen: list[int] = []
        came = asyncio.Event()

        def hear(ids: Sequence[int]) -> bool:
            seen.extend(ids)
            came.set()
            return False

        call = asyncio.ensure_future(engine.generate("a", [5], params(60, 3), on_tokens=hear))
        await came.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        heard = len(seen)
        assert 0 < heard < 60
        await engine.generate("b", [5], SamplingParams(max_tokens=5))
        assert len(seen) == heard


async def test_a_listener_that_raises_ends_its_own_call(backend: Backend, random_model: Path) -> None:
    def broken(_: Sequence[int]) -> bool:
        raise ZeroDivisionError

    async with backend(random_model) as engine:
        with pytest.raises(ZeroDivisionError):
            await engine.generate("a", [5], SamplingParams(max_tokens=20), on_tokens=broken)
        assert (await engine.generate("b", [5], SamplingParams(max_tokens=5, seed=1))).token_ids
