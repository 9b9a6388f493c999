"""OpenAICompatibleChatModel against a real HTTP server with the real client."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from tests.support.openai_server import call, serving
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError
from uni_agent.model.config import OpenAIModelConfig
from uni_agent.model.openai_compatible import OpenAICompatibleChatModel
from uni_agent.tokens.accounting import account
from uni_agent.types import Message

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "execute_bash",
            "description": "Run.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
GO = [Message("user", "go")]


def config(url: str, **more: Any) -> OpenAIModelConfig:
    return OpenAIModelConfig.model_validate({"type": "openai_compatible", "model": "m", "base_url": url, **more})


def error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x"}}, status=status)


async def test_native_calls_are_decoded_and_history_goes_back_with_matching_ids() -> None:
    replies = iter(
        [
            {
                "content": "look",
                "tool_calls": [call("execute_bash", {"command": "ls"}, "a"), call("execute_bash", "{", "b")],
            },
            {"content": "done"},
        ]
    )
    async with serving(lambda _: next(replies)) as server:
        session = await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)
        turn = await session.query()
        good, bad = turn.message.tool_calls
        assert (good.name, good.arguments, good.error) == ("execute_bash", {"command": "ls"}, None)
        assert bad.error is not None and "JSON" in bad.error
        assert turn.usage.prompt_tokens == 11
        await session.observe([Message("tool", "x", tool_call_id="a"), Message("tool", "y", tool_call_id="b")])
        assert (await session.query()).message.content == "done"
    history = server.requests[1]["messages"]
    assert [m["role"] for m in history] == ["user", "assistant", "tool", "tool"]
    assert [c["id"] for c in history[1]["tool_calls"]] == [m["tool_call_id"] for m in history[2:]]
    assert history[1]["tool_calls"][1]["function"]["arguments"] == "{"


async def test_reasoning_is_kept_apart() -> None:
    async with serving(lambda _: {"content": "hi", "reasoning_content": "plan"}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert (turn.message.content, turn.message.reasoning) == ("hi", "plan")


async def test_a_text_call_of_a_server_without_parser_is_read() -> None:
    text = 'A<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    async with serving(lambda _: {"content": text}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert [c.arguments for c in turn.message.tool_calls] == [{"command": "ls"}]


async def test_text_mode_sends_no_tools_and_shows_results_as_text() -> None:
    text = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    async with serving(lambda _: {"content": text}) as server:
        session = await OpenAICompatibleChatModel(config(server.url, tool_calls="text")).open("t#0", GO, TOOLS)
        turn = await session.query()
        await session.observe([Message("tool", "out", tool_call_id=turn.message.tool_calls[0].id)])
        await session.query()
    first, second = server.requests
    assert "tools" not in first and "execute_bash" in first["messages"][0]["content"]
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert "<tool_response>\nout\n</tool_response>" in second["messages"][-1]["content"]


async def test_only_the_sampling_that_was_set_is_sent_and_the_rest_goes_to_the_extra_body() -> None:
    async with serving(lambda _: {"content": "x"}) as server:
        settings = {"sampling": {"temperature": 0.5, "top_k": 20}, "extra_body": {"chat_template_kwargs": {"a": 1}}}
        await (await OpenAICompatibleChatModel(config(server.url, **settings), seed=7).open("t#0", GO, TOOLS)).query()
    sent = server.requests[0]
    assert (sent["temperature"], sent["top_k"], sent["seed"]) == (0.5, 20, 7)
    assert sent["chat_template_kwargs"] == {"a": 1}
    assert "top_p" not in sent and "repetition_penalty" not in sent


async def test_token_ids_make_one_chain_while_prompts_extend_it_and_a_new_one_when_they_do_not() -> None:
    def logprobs(n: int) -> dict[str, Any]:
        return {"content": [{"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}] * n}

    replies = iter(
        [
            {"content": "a", "prompt_token_ids": [1, 2], "token_ids": [3, 4], "logprobs": logprobs(2)},
            {"content": "b", "prompt_token_ids": [1, 2, 3, 4, 9, 9], "token_ids": [5], "logprobs": logprobs(1)},
            {"content": "c", "prompt_token_ids": [1, 2, 8], "token_ids": [6], "logprobs": logprobs(1)},
        ]
    )
    async with serving(lambda _: next(replies)) as server:
        session = await OpenAICompatibleChatModel(config(server.url, token_ids=True)).open("t#0", GO, TOOLS)
        for _ in range(3):
            await session.query()
            await session.observe([Message("user", "more")])
    first, second = session.caches
    assert first.prompt_ids == [1, 2]
    assert first.response_ids == [3, 4, 9, 9, 5]
    assert first.response_mask == [1, 1, 0, 0, 1]
    assert first.response_logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5]
    assert (second.prompt_ids, second.response_ids) == ([1, 2, 8], [6])


async def test_a_server_that_returns_no_ids_although_asked_is_an_error_and_commits_nothing() -> None:
    async with serving(lambda _: {"content": "a"}) as server:
        session = await OpenAICompatibleChatModel(config(server.url, token_ids=True)).open("t#0", GO, TOOLS)
        with pytest.raises(ModelError, match="token_ids"):
            await session.query()
    assert session.messages == GO


async def test_rate_limits_are_waited_out() -> None:
    replies = iter([error(429, "slow down"), error(503, "busy"), {"content": "ok"}])
    async with serving(lambda _: next(replies)) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert turn.message.content == "ok"
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error(400, "This model's maximum context length is 4096 tokens"), ContextLengthError),
        (error(400, "bad request"), ModelError),
        (error(500, "broken"), ModelError),
        (web.Response(text="<html>not json</html>", content_type="text/html"), ModelError),
        (web.json_response({"choices": []}), ModelError),
    ],
    ids=["context", "bad-request", "server-error", "html", "no-choice"],
)
async def test_faults_of_the_server_are_typed_and_leave_the_session_as_it_was(
    reply: web.Response, expected: type[Exception]
) -> None:
    def play(_: dict[str, Any]) -> web.Response:
        return web.Response(body=reply.body, status=reply.status, content_type=reply.content_type)  # pyright: ignore

    async with serving(play) as server:
        session = await OpenAICompatibleChatModel(config(server.url, retries=0)).open("t#0", GO, TOOLS)
        with pytest.raises(expected):
            await session.query()
    assert session.messages == GO


async def test_a_call_past_the_deadline_is_a_turn_too_long() -> None:
    async with serving(lambda _: {"content": "late"}, delay=30) as server:
        session = await OpenAICompatibleChatModel(config(server.url, timeout=0.3)).open("t#0", GO, TOOLS)
        with pytest.raises(TurnTooLongError):
            await session.query()


async def test_an_unreachable_server_fails_the_probe_with_the_address() -> None:
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9/v1.*cannot be reached"):
        await OpenAICompatibleChatModel(config("http://127.0.0.1:9/v1")).probe()


async def test_a_missing_key_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        await OpenAICompatibleChatModel(config("http://127.0.0.1:9/v1", api_key_env="NO_SUCH_KEY")).start()


async def test_the_key_is_sent_as_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "secret")
    async with serving(lambda _: {"content": "x"}) as server:
        await (await OpenAICompatibleChatModel(config(server.url, api_key_env="MY_KEY")).open("t#0", GO, TOOLS)).query()
    assert server.keys == ["Bearer secret"]


def answer(**fields: Any) -> web.Response:
    """A whole body, as odd as it is given."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    return web.json_response({"id": "x", "object": "chat.completion", "created": 1, "choices": [choice], **fields})


@pytest.mark.parametrize(
    "body",
    [
        {"choices": 5},
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": {"role": "assistant", "content": 5}}]},
        {"choices": [{"message": {"role": "assistant", "content": {"a": 1}}}]},
        {"choices": [{"message": {"role": "assistant", "content": "x", "reasoning_content": 5}}]},
    ],
)
async def test_a_body_of_the_wrong_shape_is_a_model_error_and_leaves_the_conversation_alone(
    body: dict[str, Any],
) -> None:
    async with serving(lambda _: answer(**body)) as server:
        session = await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)
        with pytest.raises(ModelError):
            await session.query()
    assert session.messages == GO


@pytest.mark.parametrize("usage", [None, "x", {"prompt_tokens": "a"}, {"prompt_tokens_details": 5}, {"x": 1}])
async def test_odd_usage_costs_no_turn(usage: Any) -> None:
    async with serving(lambda _: answer(usage=usage)) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert (turn.message.content, turn.usage.prompt_tokens) == ("hi", 0)


async def test_content_in_parts_is_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with serving(lambda _: {"content": parts}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert turn.message.content == "ab"


async def test_half_surrogate_pairs_do_not_poison_the_next_request() -> None:
    calls = [call("execute_bash", '{"command": "\\ud800"}', "a\ud800"), call("ex\ud800", '{"command": "\ud800', "b")]
    replies = iter([{"content": "x \ud800 y", "tool_calls": calls}, {"content": "done"}])
    async with serving(lambda _: next(replies)) as server:
        session = await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)
        turn = await session.query()
        await session.observe([Message("tool", "x", tool_call_id=c.id) for c in turn.message.tool_calls])
        assert (await session.query()).message.content == "done"
    assert turn.message.content == "x \ufffd y"
    assert all(c.error is not None for c in turn.message.tool_calls)


@pytest.mark.parametrize("arguments", ['{"command": NaN}', '{"command": ' + "[" * 5000 + "]" * 5000 + "}", "[1]"])
async def test_arguments_that_are_no_plain_json_object_are_a_call_with_an_error(arguments: str) -> None:
    async with serving(lambda _: {"tool_calls": [call("execute_bash", arguments)]}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert turn.message.tool_calls[0].error is not None


async def test_null_and_wrongly_typed_parts_of_calls_are_answered_not_raised() -> None:
    odd: list[Any] = [
        {"id": None, "type": "function", "function": {"name": "execute_bash", "arguments": None}},
        {"id": 5, "type": "function", "function": {"name": 5, "arguments": {"command": "ls"}}},
        {"id": "a", "type": "function", "function": None},
        None,
    ]
    async with serving(lambda _: {"tool_calls": odd}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert [c.error for c in turn.message.tool_calls] == [None] + ["the call names no tool"] * 3
    async with serving(lambda _: {"tool_calls": 5}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert [c.error for c in turn.message.tool_calls] == ["the call names no tool"]


async def test_call_ids_that_come_twice_are_told_apart() -> None:
    calls = [call("execute_bash", {"command": c}, "same") for c in "abc"]
    async with serving(lambda _: {"tool_calls": calls}) as server:
        turn = await (await OpenAICompatibleChatModel(config(server.url)).open("t#0", GO, TOOLS)).query()
    assert len({c.id for c in turn.message.tool_calls}) == 3
    assert [c.arguments["command"] for c in turn.message.tool_calls] == ["a", "b", "c"]


async def test_an_aborted_answer_is_asked_for_again_and_its_tokens_are_counted() -> None:
    tokens: dict[str, Any] = {"prompt_token_ids": [1, 2], "token_ids": [3, 4]}
    replies = iter([{"content": "par", "finish_reason": "abort", **tokens}, {"content": "whole", **tokens}])
    async with serving(lambda _: next(replies)) as server:
        session = await OpenAICompatibleChatModel(config(server.url, token_ids=True)).open("t#0", GO, TOOLS)
        assert (await session.query()).message.content == "whole"
    assert account(session.caches, masked=False).to_dict() == {
        "sampled": 4,
        "trained": 2,
        "masked": 0,
        "dropped": {"aborted": 2},
    }
    async with serving(lambda _: {"content": "par", "finish_reason": "abort"}) as server:
        session = await OpenAICompatibleChatModel(config(server.url, retries=1)).open("t#0", GO, TOOLS)
        with pytest.raises(ModelError, match="aborted the call 2 times"):
            await session.query()
    assert session.messages == GO


async def test_fewer_ids_than_the_server_sampled_are_an_error_and_not_a_short_trajectory() -> None:
    """TOK-08."""
    reply = {"content": "a", "prompt_token_ids": [1], "token_ids": [3], "completion_tokens": 4}
    async with serving(lambda _: dict(reply)) as server:
        session = await OpenAICompatibleChatModel(config(server.url, token_ids=True)).open("t#0", GO, TOOLS)
        with pytest.raises(ModelError, match="counts 4 sampled tokens but returned 1"):
            await session.query()
    assert list(session.caches) == [] and session.messages == GO
