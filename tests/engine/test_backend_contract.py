"""What every SamplingBackend holds, over each kind that plays a script; faults of the wire for those that have one."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path
from typing import Any, cast

import pytest

import uni_agent
from tests.engine.backends import PARAMS, Make, engine, ids_key, logprob_list, playing, told
from tests.engine.fake_servers import Flavour, Play, hang_up, page, serving, status
from uni_agent.engine import SamplingBackend, SamplingParams
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError
from uni_agent.model.tokens import AgentChatModel
from uni_agent.tokens.config import RendererConfig
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.toolset import Toolset
from uni_agent.types import Message


async def test_each_token_has_its_logprob_and_the_stop_token_stands_once_at_the_end(make: Make) -> None:
    backend = await make(([1, 2], "stop", 0))
    assert isinstance(backend, SamplingBackend)
    await backend.start()
    await backend.start()
    assert backend.max_context == 64
    output = await backend.generate("a", [5, 6], PARAMS)
    assert (output.token_ids, output.finish_reason) == ([1, 2, 9], "stop")
    assert output.logprobs is not None and len(output.logprobs) == 3


async def test_a_cap_and_the_window_end_by_length(make: Make) -> None:
    backend = await make(([1, 2, 3, 4], "stop", 0), ([1, 2, 3, 4], "stop", 0))
    await backend.start()
    capped = await backend.generate("a", [5], SamplingParams(max_tokens=2, stop_token_ids=(9,)))
    assert (capped.token_ids, capped.finish_reason, len(capped.logprobs or ())) == ([1, 2], "length", 2)
    windowed = await backend.generate("a", [5] * 61, PARAMS)
    assert (windowed.token_ids, windowed.finish_reason) == ([1, 2, 3], "length")


async def test_an_abort_is_never_a_stop(make: Make) -> None:
    """LIFE-05."""
    backend = await make(([1, 2], "abort", 0), ([3], "stop", 0))
    await backend.start()
    output = await backend.generate("a", [5], PARAMS)
    assert (output.token_ids, output.finish_reason) == ([1, 2], "abort")
    assert (await backend.generate("a", [5], PARAMS)).finish_reason == "stop"


async def test_a_full_window_is_a_context_error(make: Make) -> None:
    backend = await make(([1], "stop", 0))
    await backend.start()
    with pytest.raises(ContextLengthError):
        await backend.generate("a", [5] * 64, PARAMS)


async def test_the_prompt_may_change_after_the_call(make: Make) -> None:
    backend = await make(([1], "stop", 0.05))
    await backend.start()
    prompt = [5, 6]
    call = asyncio.ensure_future(backend.generate("a", prompt, PARAMS))
    await asyncio.sleep(0.01)
    prompt.append(7)
    assert (await call).token_ids == [1, 9]


async def test_calls_run_concurrently(make: Make) -> None:
    backend = await make(([1], "stop", 0.2))
    await backend.start()
    begun = time.monotonic()
    outputs = await asyncio.gather(*(backend.generate(f"r{i}", [5], PARAMS) for i in range(50)))
    assert {tuple(output.token_ids) for output in outputs} == {(1, 9)}
    assert time.monotonic() - begun < 5


async def test_a_cancelled_call_ends_at_once_and_others_go_on(make: Make) -> None:
    backend = await make(([1], "stop", 30), ([2], "stop", 0))
    await backend.start()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(backend.generate("a", [5], PARAMS), 0.1)
    await backend.release("a")


async def test_it_must_be_started_and_close_is_final_and_idempotent(make: Make) -> None:
    backend = await make(([1], "stop", 0))
    with pytest.raises(ModelError, match="not started"):
        await backend.generate("a", [5], PARAMS)
    await backend.start()
    await backend.release("never seen")
    await backend.close()
    await backend.close()
    with pytest.raises(ModelError, match="not started"):
        await backend.generate("a", [5], PARAMS)


# ------------------------------------------------------------------------------------------------- the wire


async def test_ids_and_logprobs_come_as_the_server_wrote_them(flavour: Flavour) -> None:
    async with playing(flavour, Play([3, 4], logprobs=[-1.5, -0.125, 0.0], cached=2)) as (backend, server):
        output = await backend.generate("a", [5, 6, 7], PARAMS)
    assert (output.token_ids, output.logprobs) == ([3, 4, 9], [-1.5, -0.125, 0.0])
    assert output.cached_tokens == 2
    assert output.extra["replica"] == server.url


@pytest.mark.parametrize("case", ["ids cut", "logprobs cut", "logprob null", "no logprobs", "id no number", "count"])
async def test_a_gap_between_what_was_sampled_and_what_came_is_an_error(flavour: Flavour, case: str) -> None:
    """TOK-08."""

    def edit(body: dict[str, Any]) -> None:
        ids, logprobs = ids_key(flavour)(body), logprob_list(flavour, body)
        if case == "ids cut":
            del ids[0]
        elif case == "logprobs cut":
            del logprobs[0]
        elif case == "logprob null":
            logprobs[0] = [None, 1, None] if flavour == "sglang" else None
            if flavour == "vllm-generate":
                logprobs[0] = {"token_id": 1, "logprob": None}
        elif case == "no logprobs":
            if flavour == "sglang":
                del body["meta_info"]["output_token_logprobs"]
            else:
                body["choices"][0]["logprobs"] = None
        elif case == "id no number":
            ids[0] = cast("Any", "1")
        elif flavour == "sglang":
            body["meta_info"]["completion_tokens"] = 7
        else:
            body["usage"]["completion_tokens"] = 7

    async with playing(flavour, Play(edit=edit)) as (backend, server):
        with pytest.raises(ModelError):
            await backend.generate("a", [5], PARAMS)
    assert len(server.requests) == 1  # what came back is not asked for again


async def test_a_stop_token_that_was_cut_from_the_ids_is_taken_from_beside_its_logprob(flavour: Flavour) -> None:
    def edit(body: dict[str, Any]) -> None:
        ids_key(flavour)(body).pop()

    async with playing(flavour, Play(edit=edit)) as (backend, _):
        assert (await backend.generate("a", [5], PARAMS)).token_ids == [1, 2, 9]


async def test_a_stop_token_that_is_nowhere_in_the_answer_is_an_error(flavour: Flavour) -> None:
    def edit(body: dict[str, Any]) -> None:
        ids_key(flavour)(body).pop()
        logprob_list(flavour, body).pop()
        if flavour == "vllm-completions":
            body["choices"][0]["logprobs"]["tokens"].pop()
        (body["meta_info"] if flavour == "sglang" else body["usage"])["completion_tokens"] -= 1

    async with playing(flavour, Play(edit=edit)) as (backend, _):
        with pytest.raises(ModelError, match="left it out"):
            await backend.generate("a", [5], PARAMS)


async def test_tokens_after_a_stop_token_are_an_error(flavour: Flavour) -> None:
    async with playing(flavour, Play([1, 9, 2])) as (backend, _):
        with pytest.raises(ModelError, match="past a stop token"):
            await backend.generate("a", [5], PARAMS)


async def test_an_ending_that_is_none_of_the_three_is_an_error(flavour: Flavour) -> None:
    async with playing(flavour, Play(finish="repetition")) as (backend, _):
        with pytest.raises(ModelError, match="repetition"):
            await backend.generate("a", [5], PARAMS)


async def test_a_busy_or_broken_server_is_asked_again(flavour: Flavour) -> None:
    plays = [status(503), hang_up(), status(429, **{"Retry-After": "0"}), Play()]
    async with playing(flavour, *plays) as (backend, server):
        assert (await backend.generate("a", [5], PARAMS)).token_ids == [1, 2, 9]
    assert len(server.requests) == 4


async def test_a_server_that_stays_broken_is_a_model_error_with_its_words(flavour: Flavour) -> None:
    async with playing(flavour, status(500, "CUDA out of memory"), retries=1) as (backend, server):
        with pytest.raises(ModelError, match=r"2 tries.*HTTP 500: CUDA out of memory"):
            await backend.generate("a", [5], PARAMS)
    assert len(server.requests) == 2


async def test_a_refused_request_is_a_model_error_with_the_servers_words_and_no_retry(flavour: Flavour) -> None:
    async with playing(flavour, status(422, "top_p must be in (0, 1]")) as (backend, server):
        with pytest.raises(ModelError, match="HTTP 422: top_p must be"):
            await backend.generate("a", [5], PARAMS)
    assert len(server.requests) == 1


async def test_a_server_whose_window_is_smaller_than_it_said_is_a_context_error(flavour: Flavour) -> None:
    text = "This model's maximum context length is 32 tokens (max_model_len)"
    async with playing(flavour, status(400, text)) as (backend, _):
        with pytest.raises(ContextLengthError, match="32 tokens"):
            await backend.generate("a", [5], PARAMS)


@pytest.mark.parametrize("play", [page(), hang_up(b'{"choices": [{"token_ids": [1,')], ids=["page", "cut"])
async def test_a_page_or_half_an_answer_is_a_model_error_and_not_asked_for_again(flavour: Flavour, play: Play) -> None:
    async with playing(flavour, play) as (backend, server):
        with pytest.raises(ModelError):
            await backend.generate("a", [5], PARAMS)
    assert len(server.requests) == 1


async def test_a_slow_server_meets_the_deadline_and_hears_that_nobody_waits(flavour: Flavour) -> None:
    async with playing(flavour, Play(delay=30), read_timeout=0.2) as (backend, server):
        with pytest.raises(TurnTooLongError, match=r"0\.2 s"):
            await backend.generate("a", [5], PARAMS)
        await backend.close()
        await told(server)


async def test_a_cancelled_call_is_aborted_on_the_server(flavour: Flavour) -> None:
    async with playing(flavour, Play(delay=30)) as (backend, server):
        call = asyncio.ensure_future(backend.generate("a", [5], PARAMS))
        while not server.requests:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await backend.close()
        await told(server)


async def test_a_request_id_of_any_text_travels_in_the_header(flavour: Flavour) -> None:
    async with playing(flavour, session_header="X-Route") as (backend, server):
        await backend.generate("task/1#0\r\nX: é", [5], PARAMS)
        await backend.generate("task/1#0\r\nX: é", [5], PARAMS)
    first, second = (headers["X-Route"] for headers in server.headers)
    assert first == second == "task/1#0%0D%0AX:%20%C3%A9"


async def test_a_conversation_stays_on_one_replica_and_conversations_spread(flavour: Flavour) -> None:
    async with serving(flavour) as one, serving(flavour) as two:
        backend = engine(flavour, one.url, two.url)
        await backend.start()
        for turn in range(3):
            for i in range(20):
                await backend.generate(f"r{i}", [5] * (turn + 1), PARAMS)
        await backend.close()
    counts = [len(one.requests), len(two.requests)]
    assert sum(counts) == 60 and min(counts) >= 3 and all(count % 3 == 0 for count in counts)


async def test_a_dead_replica_is_replaced_and_then_avoided(flavour: Flavour) -> None:
    async with serving(flavour, status(503)) as bad, serving(flavour) as good:
        backend = engine(flavour, bad.url, good.url)
        await backend.start()
        for i in range(20):
            assert (await backend.generate(f"r{i}", [5], PARAMS)).token_ids == [1, 2, 9]
        await backend.close()
    assert len(bad.requests) == 1 and len(good.requests) == 20


async def test_start_goes_on_with_the_replicas_that_can_be_reached(flavour: Flavour) -> None:
    async with serving(flavour) as good:
        backend = engine(flavour, "http://127.0.0.1:9", good.url)
        await backend.start()
        assert (await backend.generate("a", [5], PARAMS)).token_ids == [1, 2, 9]
        await backend.close()


async def test_start_names_the_setting_when_no_server_can_be_reached(flavour: Flavour) -> None:
    backend = engine(flavour, "http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"engine\.url.*127\.0\.0\.1:9"):
        await backend.start()
    await backend.close()


async def test_a_key_is_sent_and_a_wrong_one_named(flavour: Flavour, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(flavour, key="s3cret") as server:
        backend = engine(flavour, server.url, api_key_env="ENGINE_KEY")
        monkeypatch.delenv("ENGINE_KEY", raising=False)
        with pytest.raises(ConfigError, match="ENGINE_KEY"):
            await backend.start()
        monkeypatch.setenv("ENGINE_KEY", "wrong")
        with pytest.raises(ConfigError, match=r"engine\.api_key_env"):
            await backend.start()
        monkeypatch.setenv("ENGINE_KEY", "s3cret")
        await backend.start()
        assert (await backend.generate("a", [5], PARAMS)).token_ids == [1, 2, 9]
        await backend.close()


async def test_a_sampling_extra_goes_through_but_replaces_nothing(flavour: Flavour) -> None:
    async with playing(flavour, extra_body={"priority": 3}) as (backend, server):
        await backend.generate("a", [5], SamplingParams(extra={"presence_penalty": 0.5}, max_tokens=4))
        with pytest.raises(ModelError, match="may not replace n"):
            await backend.generate("a", [5], SamplingParams(extra={"n": 2}))
    (body,) = server.requests
    assert body["priority"] == 3
    assert body.get("sampling_params", body)["presence_penalty"] == 0.5


def test_one_engine_works_in_one_event_loop_after_another(flavour: Flavour) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    backend = engine(flavour, f"http://127.0.0.1:{port}")

    async def episode(close: bool) -> list[int]:
        async with serving(flavour, port=port):
            await backend.start()
            output = await backend.generate("a", [5], PARAMS)
            if close:
                await backend.close()
            return output.token_ids

    assert [asyncio.run(episode(close)) for close in (True, False, True)] == [[1, 2, 9]] * 3


async def test_an_episode_records_what_the_server_sampled(flavour: Flavour) -> None:
    folder = Path(uni_agent.__file__).parent / "assets/quickstart_policy"
    renderer = RendererConfig().build(folder)
    text = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    plays = [Play(renderer.tokenizer.encode(text)), Play([4], "abort"), Play(renderer.tokenizer.encode("done"))]
    async with serving(flavour, *plays) as server:
        server.window = 2048
        chat = AgentChatModel(engine(flavour, server.url), renderer)
        await chat.start()
        session = await chat.open("t#0", [Message("user", "go")], Toolset([ExecuteBash()]).schemas())
        first = await session.query()
        (called,) = first.message.tool_calls
        await session.observe([Message("tool", "a.txt", tool_call_id=called.id, name=called.name)])
        last = await session.query()
        await session.close()
        await chat.close()
    (chain,) = session.caches
    stop = renderer.stop_token_ids[0]
    assert last.message.content == "done" and last.finish_reason == "stop"
    sampled = [chain.response_ids[span.start : span.end] for span in chain.sampled_spans()]
    assert sampled == [[*plays_ids, stop] for plays_ids in (renderer.tokenizer.encode(text), plays[-1].ids)]
    assert chain.response_logprobs is not None and len(chain.response_logprobs) == len(chain.response_ids)
    field = {"vllm-generate": "token_ids", "vllm-completions": "prompt", "sglang": "input_ids"}[flavour]
    assert server.requests[2][field] == server.requests[1][field] == chain.ids[: len(chain.ids) - len(sampled[1])]
