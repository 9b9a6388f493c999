"""What every SamplingBackend holds, over each kind that plays a script; faults of the wire for those that have one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import TypeAdapter

import uni_agent
from tests.engine.fake_clients import Answer, FakeTinkerClient, FakeTinkerSdk, FakeVerlClient
from tests.engine.fake_servers import FakeServer, Flavour, Play, hang_up, page, serving, status
from uni_agent.engine import EngineConfig, SamplingBackend, SamplingParams, WeightSpan
from uni_agent.engine.sampler import sample
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.engine.tinker import TinkerBackend
from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError
from uni_agent.model.tokens import AgentChatModel
from uni_agent.tokens.config import RendererConfig
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.toolset import Toolset
from uni_agent.types import Message

ENGINE: TypeAdapter[Any] = TypeAdapter(EngineConfig)
REMOTE: list[Flavour] = ["vllm-generate", "vllm-completions", "sglang"]
PARAMS = SamplingParams(stop_token_ids=(9,))


def engine(flavour: Flavour, *urls: str, **options: Any) -> SamplingBackend:
    where: dict[str, Any] = {"url": urls[0]} if len(urls) == 1 else {"urls": list(urls)}
    raw = {"type": flavour.partition("-")[0], "backoff": 0.01, **where, **options}
    return ENGINE.validate_python(raw).build()


@asynccontextmanager
async def playing(flavour: Flavour, *plays: Play, **options: Any) -> AsyncGenerator[tuple[SamplingBackend, FakeServer]]:
    async with serving(flavour, *plays) as server:
        backend = engine(flavour, server.url, **options)
        await backend.start()
        try:
            yield backend, server
        finally:
            await backend.close()


Make = Callable[..., Awaitable[SamplingBackend]]


@pytest.fixture(params=["scripted", "verl", "tinker", *REMOTE])
async def make(request: pytest.FixtureRequest) -> AsyncGenerator[Make]:
    """Makes a backend with a window of 64 that plays (ids, finish reason, seconds); it is not started."""
    async with AsyncExitStack() as stack:

        async def build(*plays: tuple[list[int], str, float]) -> SamplingBackend:
            if request.param == "scripted":
                turns = [ScriptedTurn(ids, cast("Any", finish), delay=delay) for ids, finish, delay in plays]
                backend: SamplingBackend = ScriptedBackend(turns, max_context=64)
            elif request.param == "verl":
                backend = VerlBackend(FakeVerlClient(*(Answer(*play) for play in plays)), max_context=64)
            elif request.param == "tinker":
                client = FakeTinkerClient(*(Answer(*play) for play in plays))
                backend = TinkerBackend(client=client, sdk=FakeTinkerSdk, model_path="tinker://w", max_context=64)
            else:
                server = await stack.enter_async_context(
                    serving(request.param, *(Play(ids, finish, delay=delay) for ids, finish, delay in plays))
                )
                backend = engine(request.param, server.url)
            stack.push_async_callback(backend.close)
            return backend

        yield build


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


@pytest.fixture(params=REMOTE)
def flavour(request: pytest.FixtureRequest) -> Flavour:
    return request.param


def ids_key(flavour: Flavour) -> Callable[[dict[str, Any]], list[int]]:
    """Where the ids stand in an answer."""
    return lambda body: body["output_ids"] if flavour == "sglang" else body["choices"][0]["token_ids"]


def logprob_list(flavour: Flavour, body: dict[str, Any]) -> list[Any]:
    if flavour == "sglang":
        return body["meta_info"]["output_token_logprobs"]
    logprobs = body["choices"][0]["logprobs"]
    return logprobs["content"] if flavour == "vllm-generate" else logprobs["token_logprobs"]


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


async def told(server: FakeServer, *, closed: bool = True) -> None:
    """The server has seen the connection close (`closed`), and been told by name where it has a route for that."""
    async with asyncio.timeout(5):
        while (closed and not server.disconnected) or (server.flavour != "vllm-completions" and not server.aborted):
            await asyncio.sleep(0.01)
    sent = server.requests[0]
    named = {"sglang": [sent.get("rid")], "vllm-generate": [f"generate-tokens-{sent.get('request_id')}"]}
    assert server.aborted == named.get(server.flavour, [])


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


# ------------------------------------------------------------------------------------------------- streams


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
