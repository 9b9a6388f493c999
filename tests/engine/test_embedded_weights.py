"""The embedded engine under a trainer: new weights, aborts, and which weights sampled what."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import POLICY, Backend
from uni_agent.engine.base import SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.errors import ModelError

PROMPT = [5, 6, 7, 8]


def params(max_tokens: int = 12, seed: int | None = 3) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, seed=seed, stop_token_ids=(10**6,))


def torch() -> Any:
    return importlib.import_module("torch")


def loaded(path: Path) -> Any:
    transformers: Any = importlib.import_module("transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch().float32)


def changed(path: Path, seed: int = 0, scale: float = 0.05) -> dict[str, Any]:
    """The weights of the model in `path`, each a little off."""
    torch().manual_seed(seed)
    state = loaded(path).state_dict()
    return {name: tensor + scale * torch().randn_like(tensor) for name, tensor in state.items()}


def logprobs(path: Path, weights: dict[str, Any], ids: list[int], start: int) -> list[float]:
    """Of `ids[start:]`, by one full pass of the model with `weights`."""
    model = loaded(path)
    model.load_state_dict(weights)
    with torch().inference_mode():
        rows = model(torch().tensor([ids])).logits[0, start - 1 : -1].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, ids[start:], strict=True)]


async def test_new_weights_sample_exactly_and_are_named(backend: Backend) -> None:
    new = changed(POLICY)
    async with backend(POLICY) as engine:
        before = await engine.generate("a", PROMPT, params())
        await engine.update_weights(new.items(), version="7")
        after = await engine.generate("a", PROMPT, params())
        await engine.set_version("eight")
        renamed = await engine.generate("b", PROMPT, params())
        await engine.update_weights(new)
        unnamed = await engine.generate("c", PROMPT, params())
    assert before.weight_spans == ()
    assert after.weight_spans == (WeightSpan("7", 0, 12),)
    assert renamed.weight_spans == (WeightSpan("eight", 0, 12),)
    assert unnamed.weight_spans == ()
    assert after.cached_tokens == 0  # nothing that the old weights computed is used
    assert after.logprobs == pytest.approx(logprobs(POLICY, new, PROMPT + after.token_ids, len(PROMPT)), abs=1e-4)
    assert after.logprobs != pytest.approx(before.logprobs, abs=1e-2)


async def test_an_update_within_a_generation_splits_its_span_and_what_follows_is_the_new_weights(
    backend: Backend,
) -> None:
    new = changed(POLICY)
    old = loaded(POLICY).state_dict()
    some = asyncio.Event()
    async with backend(POLICY) as engine:
        await engine.set_version("0")
        calls = [
            asyncio.ensure_future(
                engine.generate(f"r{i}", PROMPT[: i + 1], params(400, i), on_tokens=lambda _: bool(some.set()))
            )
            for i in range(4)
        ]
        await some.wait()
        assert await engine.update_weights(new, version="1") == 4
        outputs = await asyncio.gather(*calls)
    for i, output in enumerate(outputs):
        first, second = output.weight_spans
        assert (first.version, first.start, second.version) == ("0", 0, "1")
        assert 0 < first.end == second.start < second.end == len(output.token_ids) == 400
        assert output.logprobs is not None
        ids, cut = PROMPT[: i + 1] + output.token_ids, i + 1 + first.end
        assert output.logprobs[: first.end] == pytest.approx(logprobs(POLICY, old, ids[:cut], i + 1), abs=1e-4)
        assert output.logprobs[first.end :] == pytest.approx(logprobs(POLICY, new, ids, cut), abs=1e-4)


def broken(weights: dict[str, Any], how: str) -> Any:
    name = next(iter(weights))
    if how == "lack":
        return {key: tensor for key, tensor in weights.items() if key != name}
    if how == "no weights named":
        return {**weights, "model.extra.weight": weights[name]}
    if how == "other shapes":
        return {**weights, name: weights[name][:-1]}
    return [*weights.items(), (name, weights[name])]


@pytest.mark.parametrize("how", ["lack", "no weights named", "other shapes", "twice"])
async def test_weights_that_do_not_fit_are_refused_and_leave_the_old_ones(backend: Backend, how: str) -> None:
    async with backend(POLICY) as engine:
        await engine.set_version("old")
        before = await engine.generate("a", PROMPT, params())
        with pytest.raises(ModelError, match=how):
            await engine.update_weights(broken(changed(POLICY), how), version="new")
        after = await engine.generate("b", PROMPT, params())
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)
    assert after.weight_spans == (WeightSpan("old", 0, 12),)


@pytest.fixture(scope="module")
def tied_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers: Any = importlib.import_module("transformers")
    torch().manual_seed(3)
    config = transformers.Qwen2Config(
        vocab_size=50,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        eos_token_id=1,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("tied")
    transformers.Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


async def test_of_tied_embeddings_one_is_enough_and_two_must_agree(backend: Backend, tied_model: Path) -> None:
    weights = changed(tied_model)
    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    weights[head] = weights[embedding]
    async with backend(tied_model) as engine:
        outputs: list[TokenOutput] = []
        for left_out in (None, head, embedding):
            await engine.update_weights({name: w for name, w in weights.items() if name != left_out})
            outputs.append(await engine.generate("a", PROMPT, params()))
        with pytest.raises(ModelError, match="one tensor"):
            await engine.update_weights({**weights, head: weights[head] + 1})
    assert outputs[0].logprobs == outputs[1].logprobs == outputs[2].logprobs
    ids = PROMPT + outputs[0].token_ids
    assert outputs[0].logprobs == pytest.approx(logprobs(tied_model, weights, ids, len(PROMPT)), abs=1e-4)


async def test_an_abort_ends_all_at_once_with_what_they_have_and_later_ones_wait(backend: Backend) -> None:
    async with backend(POLICY, max_batch=3) as engine:  # fewer places than requests: some have not begun
        seen = asyncio.Event()
        calls = [
            asyncio.ensure_future(
                engine.generate(f"r{i}", PROMPT, params(1500, i), on_tokens=lambda _: bool(seen.set()))
            )
            for i in range(5)
        ]
        await seen.wait()
        assert await engine.abort() == 5
        outputs = await asyncio.wait_for(asyncio.gather(*calls), 2)
        late = asyncio.ensure_future(engine.generate("late", PROMPT, params()))
        await asyncio.sleep(0.05)
        assert not late.done()
        await engine.resume()
        assert (await late).finish_reason == "length"
        # The interrupted one goes on where it was: what it had is still cached.
        begun = max(outputs, key=lambda output: len(output.token_ids))
        again = await engine.generate(f"r{outputs.index(begun)}", PROMPT + begun.token_ids, params())
    assert {output.finish_reason for output in outputs} == {"abort"}
    assert sorted(bool(output.token_ids) for output in outputs) == [False, False, True, True, True]
    assert all(len(output.token_ids) == len(output.logprobs or []) < 1500 for output in outputs)
    assert again.cached_tokens == len(PROMPT) + len(begun.token_ids) - 1


async def test_an_abort_that_rejects_sends_back_until_resumed_and_a_plain_one_parks_again(backend: Backend) -> None:
    async with backend(POLICY) as engine:
        await engine.abort(reject=True)
        output = await engine.generate("a", PROMPT, params())
        assert (output.token_ids, output.finish_reason) == ([], "abort")
        await engine.abort()
        parked = asyncio.ensure_future(engine.generate("b", PROMPT, params()))
        await asyncio.sleep(0.02)
        assert not parked.done()
        assert await engine.abort() == 1  # whoever waits is ended as well
        assert (await parked).finish_reason == "abort"
        await engine.resume()
        assert (await engine.generate("c", PROMPT, params())).finish_reason == "length"


async def test_a_long_prompt_is_left_within_a_pass(backend: Backend) -> None:
    async with backend(POLICY) as engine:
        prompt = [5 + i % 200 for i in range(2000)]
        call = asyncio.ensure_future(engine.generate("a", prompt, params(2)))
        await asyncio.sleep(0.005)
        await engine.abort()
        output = await asyncio.wait_for(call, 2)
        await engine.resume()
        assert (await engine.generate("b", prompt, params(2))).finish_reason == "length"
    assert output.finish_reason in ("abort", "length")  # on a fast machine it was done before


async def test_weights_can_be_replaced_while_paused_and_a_parked_request_gets_them(backend: Backend) -> None:
    async with backend(POLICY) as engine:
        await engine.abort()
        parked = asyncio.ensure_future(engine.generate("a", PROMPT, params()))
        cancelled = asyncio.ensure_future(engine.generate("b", PROMPT, params()))
        await asyncio.sleep(0)
        cancelled.cancel()
        await engine.update_weights(changed(POLICY), version="2")
        await engine.resume()
        assert (await parked).weight_spans == (WeightSpan("2", 0, 12),)


async def test_close_ends_who_is_parked_and_who_waits_for_an_update(random_model: Path) -> None:
    engine = EmbeddedBackend(random_model)
    with pytest.raises(ModelError, match="not started"):
        await engine.abort()
    await engine.start()
    await engine.abort()
    parked = asyncio.ensure_future(engine.generate("a", [1], params()))
    await asyncio.sleep(0.01)
    await engine.close()
    with pytest.raises(ModelError, match="closed"):
        await parked
    with pytest.raises(ModelError, match="not started"):
        await engine.update_weights({})


async def test_a_fresh_id_finds_what_another_left_when_prefixes_are_shared(backend: Backend) -> None:
    ids = [*PROMPT, *range(10, 40)]
    async with backend(POLICY, share_prefixes=True) as engine:
        first = await engine.generate("one", ids, params(6))
        follow = [*ids, *first.token_ids, 50, 51]
        second = await engine.generate("two", follow, params(6))
        assert second.cached_tokens == len(ids) + 5  # all that was computed
        fork = await engine.generate("three", [*ids[:20], 60, 61], params(6))
        assert fork.cached_tokens == 20
        third = await engine.generate("four", [*follow, *second.token_ids, 52], params(6))
        assert third.cached_tokens == len(follow) + 5  # the fork has left it where it was
        assert await engine.clear_cache() > 0
        assert (await engine.generate("five", follow, params(6))).cached_tokens == 0
    old = loaded(POLICY).state_dict()
    for prompt, output in ((follow, second), ([*ids[:20], 60, 61], fork)):
        assert output.logprobs == pytest.approx(logprobs(POLICY, old, prompt + output.token_ids, len(prompt)), abs=1e-4)
