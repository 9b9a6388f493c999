"""The rollout server as verl calls it, without Ray."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import AsyncGenerator
from typing import Any

import pytest

if importlib.util.find_spec("verl") is None:
    pytest.skip("verl is not installed", allow_module_level=True)

from tests.training.local_server import POLICY
from uni_agent.errors import ConfigError, ContextLengthError, ModelError
from uni_agent.training.cpu.server import RolloutServer, ServerConfig

PROMPT = [5, 6, 7, 8]
SAMPLING: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
CONFIG = ServerConfig(POLICY, prompt_length=64, response_length=48, seed=1)


@pytest.fixture
async def server() -> AsyncGenerator[RolloutServer]:
    made = RolloutServer(CONFIG)
    await made.start()
    yield made
    await made.close()


async def answer(server: RolloutServer, prompt: list[int] = PROMPT, name: str = "r", **more: Any) -> Any:
    return await server.generate(prompt, {**SAMPLING, "ignore_eos": True, **more}, name)


def arrays(scale: float = 0.0) -> dict[str, Any]:
    """The policy's weights as numpy arrays, moved by `scale`."""
    torch: Any = importlib.import_module("torch")
    safetensors: Any = importlib.import_module("safetensors.torch")
    torch.manual_seed(0)
    state = safetensors.load_file(POLICY / "model.safetensors")
    return {name: (tensor.float() + scale * torch.randn(tensor.shape)).numpy() for name, tensor in state.items()}


async def test_an_answer_has_what_verl_reads(server: RolloutServer) -> None:
    output = await answer(server, max_tokens=9)
    assert len(output.token_ids) == len(output.log_probs) == 9
    assert (output.stop_reason, output.num_preempted, output.routed_experts) == ("length", 0, None)
    assert output.extra_fields["global_steps"] is None
    assert (await answer(server, max_tokens=9, logprobs=False)).log_probs is None


@pytest.mark.parametrize(
    ("length", "sampling", "expected"),
    [
        (4, {"max_tokens": 7}, 7),
        (4, {"max_new_tokens": 7}, 7),
        (4, {}, 48),  # the response's length
        (80, {}, 32),  # what prompt and response have left
        (200, {}, 1),  # at least one
        (4, {"max_tokens": 0}, 1),
        (290, {"max_tokens": 100}, 10),  # the window
    ],
)
async def test_the_limit_follows_verls_rules(length: int, sampling: dict[str, Any], expected: int) -> None:
    server = RolloutServer(ServerConfig(POLICY, 64, 48, max_context=300))
    await server.start()
    output = await answer(server, [5] * length, **sampling)
    await server.close()
    assert (len(output.token_ids), output.stop_reason) == (expected, "length")


async def test_a_full_window_and_what_the_engine_has_not_are_refused(server: RolloutServer) -> None:
    with pytest.raises(ContextLengthError, match="context window"):
        await answer(server, [5] * 2048)
    with pytest.raises(ModelError, match="guided_json"):
        await answer(server, guided_json="{}", n=1)
    with pytest.raises(ModelError, match="reads text alone"):
        await server.generate(PROMPT, dict(SAMPLING), "r", image_data=["picture"])
    with pytest.raises(ConfigError):
        await RolloutServer(ServerConfig(POLICY / "nowhere", 64, 48)).start()


async def test_stop_ids_and_the_models_own_end_complete_a_turn(server: RolloutServer) -> None:
    free = await answer(server, max_tokens=40, seed=3)
    stop = free.token_ids[5]
    cut = await answer(server, max_tokens=40, seed=3, stop_token_ids=[stop])
    assert cut.token_ids == free.token_ids[: free.token_ids.index(stop) + 1]
    assert cut.stop_reason == "completed"
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(POLICY / "tokenizer.json"))
    text = "<|im_start|>user\nDelete the file bado.txt.<|im_end|>\n<|im_start|>assistant\n"
    ended = await answer(server, tokenizer.encode(text).ids, max_tokens=200, seed=1, ignore_eos=False)
    assert ended.stop_reason == "completed"
    assert ended.token_ids[-1] == tokenizer.token_to_id("<|im_end|>")


async def test_options_reach_the_sampler_and_the_callers_dict_stays_as_it_was(server: RolloutServer) -> None:
    greedy = await answer(server, max_tokens=8, temperature=0)
    narrowed: list[dict[str, Any]] = [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}]
    for narrow in narrowed:
        assert (await answer(server, max_tokens=8, seed=4, **narrow)).token_ids == greedy.token_ids
    penalised = await answer(server, max_tokens=20, temperature=0, repetition_penalty=1e6)
    assert len(set(penalised.token_ids)) == 20
    asked = {**SAMPLING, "max_tokens": 3, "seed": 1}
    before = dict(asked)
    await server.generate(PROMPT, asked, "r")
    assert asked == before


async def test_a_seed_repeats_a_turn(server: RolloutServer) -> None:
    whole = await answer(server, name="a", max_tokens=12, seed=5)
    assert (await answer(server, name="b", max_tokens=12, seed=5)).token_ids == whole.token_ids
    assert (await answer(server, name="c", max_tokens=12, seed=6)).token_ids != whole.token_ids


async def test_new_weights_are_sampled_with_and_named_by_their_step(server: RolloutServer) -> None:
    before = await answer(server, temperature=0, max_tokens=8)
    await server.update_weights(arrays(0.1), 3)
    after = await answer(server, temperature=0, max_tokens=8)
    assert after.log_probs != before.log_probs
    assert after.extra_fields["global_steps"] == 3
    assert after.extra_fields["weight_spans"] == [[3, 0, 8]]
    assert await server.status() == {"updates": 1, "global_steps": 3}
    with pytest.raises(ModelError, match="lack"):
        await server.update_weights({}, 4)
    assert (await answer(server, max_tokens=2)).extra_fields["global_steps"] == 3
    await server.update_weights(arrays())  # as those of the step that was told last
    assert (await answer(server, max_tokens=2)).extra_fields["global_steps"] == 3
    await server.set_global_steps(9)
    again = await answer(server, temperature=0, max_tokens=8)
    assert again.extra_fields["global_steps"] == 9
    assert again.log_probs == pytest.approx(before.log_probs, abs=1e-5)


async def test_an_update_under_way_is_told_span_by_span(server: RolloutServer) -> None:
    await server.set_global_steps(1)
    call = asyncio.ensure_future(answer(server, max_tokens=1500))
    await asyncio.sleep(0.1)
    await server.update_weights(arrays(0.05), 2)
    fields = (await call).extra_fields
    (_, _, cut), (_, start, end) = fields["weight_spans"]
    assert fields["weight_spans"] == [[1, 0, cut], [2, start, end]]
    assert 0 < cut == start < end == 1500
    assert [fields[key] for key in ("min_global_steps", "max_global_steps", "global_steps")] == [1, 2, 2]


async def test_aborted_answers_have_what_was_sampled_and_the_step_of_it(server: RolloutServer) -> None:
    await server.set_global_steps(4)
    call = asyncio.ensure_future(answer(server, max_tokens=1900))
    await asyncio.sleep(0.1)
    assert await server.abort_all_requests() == {"aborted_count": 1, "request_ids": []}
    output = await asyncio.wait_for(call, 2)
    assert output.stop_reason == "aborted"
    assert 0 < len(output.token_ids) == len(output.log_probs) < 1900
    late = asyncio.ensure_future(answer(server, PROMPT + output.token_ids, max_tokens=4))
    await server.update_weights(arrays(0.1), 5)
    await asyncio.sleep(0.05)
    assert not late.done()
    await server.resume_generation()
    assert output.extra_fields["global_steps"] == 4
    assert (await late).extra_fields["global_steps"] == 5


async def test_a_rejecting_server_sends_back_at_once_and_a_resumed_one_serves(server: RolloutServer) -> None:
    await server.abort_all_requests(reject_request=True)
    output = await asyncio.wait_for(answer(server), 2)
    assert (output.token_ids, output.stop_reason) == ([], "aborted")
    await server.resume_generation()
    assert (await answer(server, max_tokens=3)).stop_reason == "length"


async def test_no_control_hangs_or_ends_what_runs(server: RolloutServer) -> None:
    call = asyncio.ensure_future(answer(server, max_tokens=600))
    await asyncio.sleep(0.02)
    async with asyncio.timeout(5):
        await server.sleep()
        await server.wake_up(tags=["weights", "kv_cache"])
        await server.clear_kv_cache()
        await server.release_kv_cache()
        await server.resume_kv_cache()
        await server.start_profile(role="rollout")
        await server.stop_profile()
        await server.resume_generation()
    assert len((await call).token_ids) == 600


async def test_a_conversation_is_found_again_under_a_fresh_id_until_the_cache_is_cleared(server: RolloutServer) -> None:
    first = await answer(server, name="one", max_tokens=6)
    follow = [*PROMPT, *first.token_ids, 9, 9]
    assert (await answer(server, follow, "two", max_tokens=2)).extra_fields["num_cached_tokens"] == 9
    await server.clear_kv_cache()
    assert (await answer(server, follow, "three", max_tokens=2)).extra_fields["num_cached_tokens"] == 0
