"""Translation between protocols: faults that other gateways had, by the id of their case, end to end over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gateway.cases.support import (
    CALLING,
    EACH,
    STREAMED,
    TEMPLATES,
    engine,
    finished,
    history,
    prompt,
)
from tests.gateway.replay.agent import Agent, calls
from tests.gateway.support import BASH_MESSAGES, Answer, call, serving
from tests.tokens.conftest import MakeRenderer
from tests.tokens.small import BASH
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Message, ToolCall

BROKEN: list[Any] = [
    '{"command": "l', "", "null", "[]", '"ls"', "5", "nonsense", '{"command": NaN}', "{" * 5000, '{"a":' * 5000,
    '{"command": "\ud800"}', r'{"command": "\ud800"}', '{"n": 1e999}',
    '{"n": ' + "9" * 5000 + "}", "\x00", "<tool_call>",
    {"__unparsedToolInput": {"raw": '{"command": "l', "len": 14}}, {"INVALID_JSON": '{"command": "l'}, None,
]  # fmt: skip


@TEMPLATES
@EACH
async def test_proto_01_broken_arguments_of_any_kind_poison_nothing(
    make: MakeRenderer, template: str, protocol: str
) -> None:
    renderer = make(template)
    backend = ScriptedBackend(["ok"], encode=renderer.tokenizer.encode, repeat=True)
    async with serving(renderer, backend=backend) as gateway:
        for given in BROKEN:
            arguments = given if protocol == "messages" or isinstance(given, str) else json.dumps(given)
            agent = Agent(gateway, await gateway.open(), protocol, history=history(protocol, arguments))
            answer = await agent.send()
            if answer.status != 200:  # what nothing can hold is said to be so, at its place
                assert answer.status == 400 and answer.json["error"]["message"], answer.body
                assert isinstance(arguments, str) and ("9" * 5000 in arguments or "{" * 5000 in arguments), arguments
                continue
            agent.history += agent.native(answer)
            await agent.user("and again").ask()
            assert len((await gateway.finalize(agent.session))["trajectories"]) == 1


@pytest.mark.parametrize("template", CALLING)
@EACH
@STREAMED
@pytest.mark.parametrize("wrapped", ["as given", "claude", "pydantic"])
async def test_proto_01_the_turn_with_the_broken_call_stays_as_sampled(
    make: MakeRenderer, template: str, protocol: str, stream: bool, wrapped: str
) -> None:
    renderer = make(template)
    text = '<tool_call>\n{"name": "bash", "arguments": {"command": "l}\n</tool_call>'
    async with serving(renderer, backend=engine(renderer, [text, "a", "b", "c"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        [asked] = calls(await agent.ask())
        raw = asked[2] if protocol != "messages" or stream else json.loads(asked[2])["__unparsedToolInput"]["raw"]
        forms: dict[str, Any] = {
            "claude": {"__unparsedToolInput": {"raw": raw, "len": len(raw)}},
            "pydantic": {"INVALID_JSON": raw},
        }
        if wrapped in forms:
            value = forms[wrapped]
            if protocol == "messages":
                agent.history[-1]["content"][-1]["input"] = value
            elif protocol == "responses":
                agent.history[-1]["arguments"] = json.dumps(value)
            else:
                agent.history[-1]["tool_calls"][0]["function"]["arguments"] = json.dumps(value)
        await agent.result(asked[3], "arguments are no JSON").ask()
        for _ in range(2):
            await agent.user("go on").ask()
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert len(trajectory["trained"]) == 4


@pytest.mark.parametrize("arguments", ['{"command": "ls"}', ' {"command":"ls"} '])
@EACH
async def test_proto_02_arguments_are_a_mapping_to_the_template(
    make: MakeRenderer, arguments: str, protocol: str
) -> None:
    wanted = {
        "qwen2_5": '"arguments": {"command": "ls"}',
        "qwen3": '"arguments": {"command": "ls"}',
        "qwen3_coder": "<parameter=command>\nls",
        "qwen3_6": "<parameter=command>\nls",
    }
    for template, text in wanted.items():
        renderer = make(template)
        async with serving(renderer, backend=engine(renderer, ["ok"])) as gateway:
            given: Any = json.loads(arguments) if protocol == "messages" else arguments
            agent = Agent(gateway, await gateway.open(), protocol, history=history(protocol, given))
            await agent.ask()
            assert text in prompt(gateway, renderer), template


@pytest.mark.parametrize("empty", ["", "null", "{}", " ", None])
async def test_proto_02_empty_arguments_are_an_empty_object(make: MakeRenderer, empty: str | None) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["ok"])) as gateway:
        agent = Agent(gateway, await gateway.open(), history=history("chat", empty))
        await agent.ask()
        assert '{"name": "bash", "arguments": {}}' in prompt(gateway, renderer)


@STREAMED
async def test_proto_04_the_billing_line_is_in_no_prompt_and_changes_none(make: MakeRenderer, stream: bool) -> None:
    renderer = make("qwen3")
    line = "x-anthropic-billing-header: cc_version=9.9.9.abc; cc_entrypoint=cli; cch={};"
    mine = "The file says:\nx-anthropic-billing-header: cc_version=1; keep me"
    async with serving(renderer, backend=engine(renderer, ["a", "b", "c"])) as gateway:
        agent = Agent(gateway, await gateway.open(), "messages", stream)
        for number in range(3):
            billing = {"type": "text", "text": line.format(11111 * number)}
            coder = {"type": "text", "text": "You are a coder."}
            blocks = [billing, coder] if number != 1 else [billing, {**coder, "cache_control": {"type": "ephemeral"}}]
            await agent.user(mine if not number else "go on").ask(system=blocks)
        done = await finished(gateway, agent)
        words = prompt(gateway, renderer)
    assert len(done["trajectories"]) == 1 and done["accounting"]["drift"]["clean"] == 2
    assert "cc_entrypoint" not in words and "keep me" in words and "You are a coder." in words


@EACH
async def test_proto_05_helper_requests_leave_the_main_conversation_whole(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    async with serving(
        renderer, backend=engine(renderer, [call("look"), "A title", call("on"), "found", "done"])
    ) as gateway:
        session = await gateway.open(metadata={"row": 7})
        main = Agent(gateway, session, protocol, system="You are the main agent.").user("fix bug")
        title = Agent(gateway, session, protocol, system="Write a short title for this conversation.").user("fix bug")
        helper = Agent(gateway, session, protocol, system="You are a search sub-agent.").user("search")
        [asked] = calls(await main.ask())
        cap = "max_output_tokens" if protocol == "responses" else "max_tokens"
        await title.ask(tools=None, **{cap: 32})
        [asked] = calls(await main.result(asked[3], "ok").ask())
        await helper.ask()
        await main.result(asked[3], "ok").ask()
        path = f"/sessions/{session.session_id}/reward_info"
        assert (await gateway.request("POST", path, {"reward": 0.5}, session.reward_key)).status == 200
        done = await finished(gateway, main)
    by_length = {len(t["trained"]): t for t in done["trajectories"]}
    assert sorted(len(t["trained"]) for t in done["trajectories"]) == [1, 1, 3]
    assert by_length[3]["scenario"] == "main" and by_length[3]["reward"] == 0.5
    others = [t for t in done["trajectories"] if len(t["trained"]) == 1]
    assert "title" in [t["scenario"] for t in others] and done["metadata"] == {"row": 7}
    assert all(t["reward"] is None for t in others if t["scenario"] != "main")


@TEMPLATES
@pytest.mark.parametrize("role", ["system", "developer"])
@EACH
async def test_proto_06_tok_10_a_late_system_message_stays_where_it_is(
    make: MakeRenderer, template: str, role: str, protocol: str
) -> None:
    renderer = make(template)
    async with serving(renderer, backend=engine(renderer, ["ok", "two", "three"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, system="S1").user("go")
        await agent.ask()
        agent.history.append({"role": role, "content": "reminder S2"})
        await agent.user("q").ask()
        agent.history.append({"role": role, "content": "reminder S3"})  # and as the last message
        await agent.ask()
        done = await finished(gateway, agent)
        words = prompt(gateway, renderer)
    assert len(done["trajectories"]) == 1, "earlier tokens are untouched"
    order = ["S1", "go<", "ok", "reminder S2", "q<", "two", "reminder S3"]
    places = [words.index(text) for text in order]
    assert places == sorted(places) and all(words.count(text) == 1 for text in ("reminder S2", "reminder S3"))


@TEMPLATES
@EACH
async def test_tok_10_a_lone_system_message_is_a_prompt(make: MakeRenderer, template: str, protocol: str) -> None:
    renderer = make(template)
    async with serving(renderer, backend=engine(renderer, ["ok"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol)
        agent.history = [{"role": "system", "content": "Only this."}]
        await agent.ask()
        assert "Only this." in prompt(gateway, renderer)


CHOICES: list[tuple[str, Any, dict[str, Any], int]] = [
    ("messages", {"type": "auto"}, {}, 200),
    ("messages", {"type": "none"}, {}, 200),
    ("messages", {"type": "any"}, {}, 400),
    ("messages", {"type": "tool", "name": "bash"}, {}, 400),
    ("messages", {"type": "auto", "disable_parallel_tool_use": True}, {}, 200),
    ("messages", {"type": "sometimes"}, {}, 400),
    ("messages", 7, {}, 400),
    ("chat", "auto", {}, 200),
    ("chat", "none", {}, 200),
    ("chat", "required", {}, 400),
    ("chat", {"type": "function", "function": {"name": "bash"}}, {}, 400),
    ("chat", "auto", {"parallel_tool_calls": False}, 200),
    ("responses", "auto", {"parallel_tool_calls": False}, 200),
    ("responses", "required", {}, 400),
    ("responses", {"type": "function", "name": "bash"}, {}, 400),
    ("responses", "none", {}, 200),
]


@pytest.mark.parametrize(("protocol", "choice", "more", "status"), CHOICES)
@STREAMED
async def test_proto_08_a_choice_of_tools_is_kept_or_refused_by_name(
    make: MakeRenderer, protocol: str, choice: Any, more: dict[str, Any], status: int, stream: bool
) -> None:
    renderer = make("qwen3")
    both = call("ls") + "\n" + call("pwd")
    async with serving(renderer, backend=engine(renderer, [both])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        answer = await agent.send(tool_choice=choice, **more)
        assert answer.status == status, answer.body
        if status == 400:
            assert "tool_choice" in answer.json["error"]["message"]
            assert not gateway.backend.given, "refused before anything was sampled"
            return
        single = bool(more) or (isinstance(choice, dict) and "disable_parallel_tool_use" in choice)
        off = "none" in (choice if isinstance(choice, str) else choice["type"])
        assert len(calls(agent.pieces(answer))) == (0 if off else 1 if single else 2)
        await finished(gateway, agent)


def reasons(protocol: str, stream: bool, answer: Answer) -> tuple[Any, ...]:
    """(reason, …) as the protocol says how a turn ended."""
    if protocol == "responses":
        response: dict[str, Any] = answer.events[-1][1]["response"] if stream else answer.json
        details: dict[str, Any] = response["incomplete_details"] or {"reason": None}
        return response["status"], details["reason"]
    if protocol == "chat":
        if not stream:
            return (answer.json["choices"][0]["finish_reason"],)
        chunks = [data for _, data in answer.events if data != "[DONE]" and data["choices"]]
        return tuple(r for data in chunks if (r := data["choices"][0]["finish_reason"]))
    if not stream:
        return (answer.json["stop_reason"],)
    return tuple(data["delta"]["stop_reason"] for name, data in answer.events if name == "message_delta")


ENDS: dict[str, tuple[ScriptedTurn, dict[str, tuple[Any, ...]]]] = {
    "call": (
        ScriptedTurn(call("ls")),
        {"chat": ("tool_calls",), "responses": ("completed", None), "messages": ("tool_use",)},
    ),
    "text": (ScriptedTurn("hi"), {"chat": ("stop",), "responses": ("completed", None), "messages": ("end_turn",)}),
    "length": (
        ScriptedTurn("hi", finish_reason="length"),
        {"chat": ("length",), "responses": ("incomplete", "max_output_tokens"), "messages": ("max_tokens",)},
    ),
    "nothing": (ScriptedTurn(""), {"chat": ("stop",), "responses": ("completed", None), "messages": ("end_turn",)}),
}


@pytest.mark.parametrize("end", ENDS)
@EACH
@STREAMED
async def test_proto_09_the_reason_fits_the_content(make: MakeRenderer, end: str, protocol: str, stream: bool) -> None:
    turn, wanted = ENDS[end]
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [turn])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
        answer = await agent.send()
        assert reasons(protocol, stream, answer) == wanted[protocol]
        kinds = [piece[0] for piece in agent.pieces(answer)]
        assert kinds == {"call": ["call"], "text": ["text"], "length": ["text"], "nothing": []}[end]
        if protocol == "chat" and end == "call" and not stream:
            assert answer.json["choices"][0]["message"]["content"] is None
        await finished(gateway, agent)


@pytest.mark.parametrize("query", ["", "?beta=true", "?beta=true&x=%20"])
async def test_proto_10_tokens_are_counted_by_the_template_and_are_no_turn(make: MakeRenderer, query: str) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["ok"])) as gateway:
        session = await gateway.open()
        headers = {"x-api-key": session.api_key, "anthropic-beta": "a-2031-01-01,b", "anthropic-version": "2099-01-01"}
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": []}
        answer = await gateway.request("POST", f"/v1/messages/count_tokens{query}", body, headers=headers)
        assert answer.json == {"input_tokens": len(renderer.initial([Message("user", "hi")], []))}
        body["tools"] = [BASH_MESSAGES]
        more = await gateway.request("POST", f"/v1/messages/count_tokens{query}", body, headers=headers)
        asked = await gateway.request("POST", f"/v1/messages{query}", {**body, "max_tokens": 9}, headers=headers)
        assert asked.json["usage"]["input_tokens"] == more.json["input_tokens"] > answer.json["input_tokens"]
        done = await gateway.finalize(session)
    assert done["accounting"]["turns"] == 1 and done["accounting"]["drift"] == {"new": 1}


@EACH
async def test_proto_11_usage_is_the_same_streamed_and_whole(make: MakeRenderer, protocol: str) -> None:
    renderer = make("qwen3")
    async with serving(renderer, ["<think>\nhm\n</think>\n\nsome words", "on"]) as gateway:
        used: list[Any] = []
        for stream in (False, True):
            agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
            extra = {"stream_options": {"include_usage": True}} if protocol == "chat" and stream else {}
            answer = await agent.send(**extra)
            events = dict(answer.events)
            if protocol == "chat":
                whole = [d for _, d in answer.events if d != "[DONE]" and d.get("usage")] if stream else [answer.json]
                used.append(whole[-1]["usage"])
            elif protocol == "responses":
                used.append((events["response.completed"]["response"] if stream else answer.json)["usage"])
            elif stream:
                start = events["message_start"]["message"]["usage"]["input_tokens"]
                used.append((start, events["message_delta"]["usage"]["output_tokens"]))
            else:
                used.append((answer.json["usage"]["input_tokens"], answer.json["usage"]["output_tokens"]))
        assert used[0] == used[1]
        [asked, _] = gateway.backend.calls
        first = used[0][0] if protocol == "messages" else used[0].get("prompt_tokens", used[0].get("input_tokens"))
        assert first == len(asked.prompt_ids) > 0


ITEMS: list[Any] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
    {"type": "reasoning", "id": "r1", "summary": []},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "doing"}]},
    {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "bash", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "A"},
    {"type": "function_call_output", "call_id": "c2", "output": "B"},
]


def itself(messages: list[Message], renderer: ChatTemplateRenderer) -> str:
    return renderer.decode(renderer.initial(messages, [BASH]))


@pytest.mark.parametrize("order", [range(7), (0, 1, 2, 3, 4, 6, 5), (0, 2, 3, 4, 5, 6), (0, 1, 2, 3, 5, 4, 6)])
async def test_proto_12_the_items_of_one_turn_are_one_message(make: MakeRenderer, order: Any) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, ["ok"])) as gateway:
        agent = Agent(gateway, await gateway.open(), "responses", history=[ITEMS[i] for i in order])
        await agent.ask()
        words = prompt(gateway, renderer)
    turn = Message("assistant", "doing", tool_calls=(ToolCall("c1", "bash", {}), ToolCall("c2", "bash", {})))
    results = [Message("tool", "A", tool_call_id="c1"), Message("tool", "B", tool_call_id="c2")]
    expected = [Message("user", "go"), turn, *results]
    if list(order)[-3:] == [5, 4, 6]:  # a result between the calls: other clients run them one by one
        assert words.count("doing") == 1 and words.index("A\n</tool_response>") < words.index("B\n</tool_response>")
        return
    assert words == itself(expected, renderer)


@STREAMED
async def test_proto_12_a_sampled_turn_is_found_in_its_items(make: MakeRenderer, stream: bool) -> None:
    renderer = make("qwen3")
    text = "<think>\nhm\n</think>\n\ndoing\n" + call("ls") + "\n" + call("pwd")
    async with serving(renderer, backend=engine(renderer, [text, "done"])) as gateway:
        agent = Agent(gateway, await gateway.open(), "responses", stream).user("go")
        for asked in reversed(calls(await agent.ask())):
            agent.result(asked[3], "out")
        agent.history = [{k: v for k, v in item.items() if k not in ("id", "status")} for item in agent.history]
        await agent.ask()
        done = await finished(gateway, agent)
    assert len(done["trajectories"]) == 1 and len(agent.history) == 8


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
VENDOR: dict[str, list[Any]] = {
    "responses": [
        {"type": "function", "name": "shell", "parameters": {"type": "object"}},
        {"type": "custom", "name": "apply_patch", "format": GRAMMAR},
        {"type": "web_search"}, {"type": "local_shell"}, {"type": "namespace", "name": "mcp", "tools": []},
        {"type": "computer_use_preview", "display_width": 1}, {"type": "from_the_future", "x": [1]},
    ],
    "messages": [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}, BASH_MESSAGES,
        {"type": "custom", "name": "apply_patch", "input_schema": {"type": "object"}},
        {"type": "from_the_future", "name": "x"},
    ],
    "chat": [
        {"type": "function", "function": {"name": "shell"}}, {"type": "web_search_preview"},
        {"type": "custom", "custom": {"name": "apply_patch"}}, {"type": "from_the_future"},
    ],
}  # fmt: skip


@EACH
@STREAMED
async def test_proto_13_vendor_tools_are_left_out_and_custom_ones_come_back(
    make: MakeRenderer, protocol: str, stream: bool
) -> None:
    renderer = make("qwen3")
    patch = '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n"}}\n</tool_call>'
    if protocol == "chat":
        patch = patch.replace("apply_patch", "shell")
    async with serving(renderer, backend=engine(renderer, [patch, "ok"])) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol, stream, fields={"tools": VENDOR[protocol]}).user("go")
        answer = await agent.send()
        assert answer.status == 200, answer.body
        assert answer.headers.get("x-uni-agent-ignored")
        if protocol == "responses":
            [asked] = calls(agent.pieces(answer))
            assert asked[4] == "custom" and asked[2] == "*** Begin\n"
        agent.history += agent.native(answer)
        await agent.user("go on").ask()
        first, second = (prompt(gateway, renderer, i) for i in (0, 1))
        assert second.startswith(first) and "apply_patch" in first and "from_the_future" not in first
        done = await finished(gateway, agent)
    assert len(done["trajectories"]) == 1


@pytest.mark.parametrize("extra", [{}, {"id": None, "status": None, "phase": None, "logprobs": None}])
async def test_proto_15_short_items_are_legal(make: MakeRenderer, extra: dict[str, Any]) -> None:
    renderer = make("qwen3")
    items: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "hi"}], **extra},
        {"type": "message", "role": "assistant", "content": [], **extra},
        {"role": "user", "content": "q"},
    ]
    async with serving(renderer, backend=engine(renderer, ["ok"])) as gateway:
        await Agent(gateway, await gateway.open(), "responses", history=items).ask()
        assert prompt(gateway, renderer) == itself(
            [Message("user", "go"), Message("assistant", "hi"), Message("user", "q")], renderer
        )


@EACH
@STREAMED
async def test_proto_16_thinking_is_signed_and_comes_back(make: MakeRenderer, protocol: str, stream: bool) -> None:
    renderer = make("qwen3")
    async with serving(
        renderer, backend=engine(renderer, ["<think>\nplan\n</think>\n\nhi", "two", "three"])
    ) as gateway:
        include = {"include": ["reasoning.encrypted_content"]} if protocol == "responses" else {}
        agent = Agent(gateway, await gateway.open(), protocol, stream, fields=include).user("go")
        pieces = await agent.ask()
        thinking = next(piece for piece in pieces if piece[0] == "thinking")
        assert thinking[2] or protocol == "chat", "clients drop what is not signed"
        await agent.user("more").ask()
        changed = json.loads(json.dumps(agent.history).replace("plan", "another plan"))
        agent.history = changed
        await agent.user("and").ask()
        done = await finished(gateway, agent)
    assert [len(t["trained"]) for t in done["trajectories"]] == [2, 1], "changed thinking is another turn"


CONTENTS: list[Any] = [
    None,
    "",
    [],
    [{"type": "text", "text": ""}],
    [{"type": "text", "text": "", "cache_control": {}}],
]


@TEMPLATES
@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
async def test_proto_18_contents_that_say_nothing_are_one(make: MakeRenderer, template: str, role: str) -> None:
    renderer = make(template)
    backend = ScriptedBackend(["ok"], encode=renderer.tokenizer.encode, repeat=True)
    async with serving(renderer, backend=backend) as gateway:
        prompts: set[tuple[int, ...]] = set()
        for content in CONTENTS:
            messages = history("chat", "{}")
            place = {"user": 0, "assistant": 1, "tool": 2, "system": 0}[role]
            if role == "system":
                messages.insert(0, {"role": "system", "content": content})
            else:
                messages[place]["content"] = content
            agent = Agent(gateway, await gateway.open(), history=messages)
            answer = await agent.send()
            assert answer.status == 200, answer.body
            prompts.add(tuple(gateway.backend.calls[-1].prompt_ids))
        assert len(prompts) == 1
        assert "None" not in renderer.decode(prompts.pop())


async def test_proto_18_a_turn_is_found_in_every_spelling(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("ls"), "ab", *"12345"])) as gateway:
        agent = Agent(gateway, await gateway.open()).user("go")
        [asked] = calls(await agent.ask())
        await agent.result(asked[3], "ok").ask()
        for content, last in zip(
            CONTENTS, ["ab", [{"type": "text", "text": "a", "x": 1}, {"type": "text", "text": "b"}]] * 3, strict=False
        ):
            agent.history[1]["content"], agent.history[3]["content"] = content, last
            await agent.user("more").ask()
        done = await finished(gateway, agent)
    assert [len(t["trained"]) for t in done["trajectories"]] == [7]


@EACH
@STREAMED
async def test_proto_19_a_full_window_is_said_in_the_clients_words(
    make: MakeRenderer, protocol: str, stream: bool
) -> None:
    renderer = make("qwen3")
    length = len(renderer.initial([Message("user", "go")], [BASH]))
    cap = "max_output_tokens" if protocol == "responses" else "max_tokens"
    for room, status in ((10, 200), (1, 200), (0, 400), (-40, 400)):
        backend = engine(renderer, ["word " * 60])
        async with serving(renderer, backend=backend, config={"max_context": length + room}) as gateway:
            agent = Agent(gateway, await gateway.open(), protocol, stream).user("go")
            answer = await agent.send(**{cap: 50})
            assert answer.status == status, answer.body
            info = await gateway.info(agent.session)
            if status == 200:
                assert gateway.backend.calls[0].sampling.max_tokens == room
                ends = {"chat": b'"finish_reason":"length"', "responses": b"max_output_tokens"}
                assert ends.get(protocol, b'"stop_reason":"max_tokens"') in answer.body
                assert info["accounting"]["sampled"] == room
                continue
            assert not backend.given, "the engine is not asked"
            told = json.dumps(answer.json)
            if protocol == "messages":
                assert f"prompt is too long: {length} tokens > {length + room} maximum" in told
                assert answer.json["error"]["type"] == "invalid_request_error"
            else:
                assert answer.json["error"]["code"] == "context_length_exceeded"
            assert info["limit_hit"] == "context" and info["errors"] == {"context_length": 1}
            done = await gateway.finalize(agent.session)
            assert done["phase"] == "finalized", "the episode stays gradable"


@EACH
async def test_proto_19_an_observation_that_fills_the_window_ends_a_session_with_its_turns(
    make: MakeRenderer, protocol: str
) -> None:
    renderer = make("qwen3")
    async with serving(renderer, backend=engine(renderer, [call("cat big")]), config={"max_context": 2000}) as gateway:
        agent = Agent(gateway, await gateway.open(), protocol).user("go")
        [asked] = calls(await agent.ask())
        assert (await agent.result(asked[3], "漢" * 20_000).send()).status == 400
        done = await finished(gateway, agent)
    [trajectory] = done["trajectories"]
    assert trajectory["materialization_reason"] == "context" and len(trajectory["trained"]) == 1
