"""What each request of the recorded clients is tagged, and that a main turn is never taken for another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.gateway.scenario_requests import PATHS, chat, request
from uni_agent.gateway.canonical import ModelRequest
from uni_agent.gateway.scenario import (
    BUILT_IN_RULES,
    Scenario,
    ScenarioConfig,
    SessionFacts,
    Tag,
    Tagger,
    conversation_key,
    tag,
)

RECORDED = Path(__file__).parent / "scenario" / "recorded.jsonl"
DOCS = Path(__file__).parents[2] / "docs" / "scenario_tags.md"

# What is no main turn, by recording: request number → scenario. A recording that is not named has main turns alone.
SIDE: dict[str, dict[int, Scenario]] = {
    "anthropic-sdk/count": {1: Scenario.COUNT},
    "claude-agent-sdk/query_agents-sub": dict.fromkeys((3, 4), Scenario.SUB_AGENT),
    "claude-code/explore": dict.fromkeys((3, 4), Scenario.SUB_AGENT),
    "claude-code/f400long": dict.fromkeys((3, 4), Scenario.COMPACTION),
    "claude-code/sub": dict.fromkeys((3, 4), Scenario.SUB_AGENT),
    "claude-code/twosubs": dict.fromkeys((3, 4, 5, 6), Scenario.SUB_AGENT),
    "codex/compact": {4: Scenario.COMPACTION},
    "codex/sub": dict.fromkeys((3, 4), Scenario.SUB_AGENT),
    "hermes-agent/compact": {11: Scenario.COMPACTION},
    "openai-agents/resp-sub": {2: Scenario.SUB_AGENT},
    "opencode/anthropic.nosig": {1: Scenario.TITLE},
    "opencode/anthropic.nums": {1: Scenario.TITLE},
    "opencode/badargs": {1: Scenario.TITLE},
    "opencode/badtool": {1: Scenario.TITLE},
    "opencode/basic": {1: Scenario.TITLE},
    "opencode/compact": {1: Scenario.TITLE, 5: Scenario.COMPACTION},
    "opencode/empty": {1: Scenario.TITLE},
    "opencode/fcut_tool": {1: Scenario.TITLE},
    "opencode/image": {1: Scenario.TITLE},
    "opencode/nums": {1: Scenario.TITLE},
    "opencode/parallel": {1: Scenario.TITLE},
    "opencode/responses.noenc": {1: Scenario.TITLE},
    "opencode/responses.think": {1: Scenario.TITLE},
    "opencode/sub": {1: Scenario.TITLE} | dict.fromkeys((3, 4), Scenario.SUB_AGENT),
    "opencode/twosubs": {1: Scenario.TITLE} | dict.fromkeys((3, 4, 5, 6), Scenario.SUB_AGENT),
    "qwen-code/compact": {5: Scenario.COMPACTION},
    "qwen-code/length": {4: Scenario.MEMORY},
    "qwen-code/sub": dict.fromkeys((3, 4), Scenario.SUB_AGENT),
}


def recordings() -> dict[str, dict[int, ModelRequest]]:
    """Recording → request number → request.

    Each line holds what differs from the line before it in the same recording; `keep` of its messages stand before
    those given. Middles of histories and ends of texts are left out.
    """
    out: dict[str, dict[int, ModelRequest]] = {}
    last: dict[str, Any] = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        read = json.loads(line)
        before = last if last.get("file") == read["file"] else {}
        for key in ("messages", "input"):
            if isinstance(read["body"].get(key), list):
                read["body"][key] = [*before.get("body", {}).get(key, [])[: read["keep"]], *read["body"][key]]
        last = before | read
        for key in ("headers", "body"):
            merged = before.get(key, {}) | read.get(key, {})
            last[key] = {name: value for name, value in merged.items() if value is not None}
        made = request(last["body"], last["headers"], protocol=last["protocol"], path=last["path"])
        out.setdefault(last["file"], {})[last["n"]] = made
    return out


ALL = recordings()


def run(requests: Sequence[ModelRequest], tagger: Tagger | None = None) -> list[Tag]:
    """The tags of one session's requests."""
    facts, tags = SessionFacts(), list[Tag]()
    for one in requests:
        tags.append((tagger or Tagger()).tag(one, facts))
        facts = facts.after(one, tags[-1])
    return tags


def scenarios(*requests: ModelRequest, tagger: Tagger | None = None) -> list[Scenario]:
    return [one.scenario for one in run(requests, tagger)]


# ------------------------------------------------------------------------------------------------- recordings


@pytest.mark.parametrize("name", ALL)
def test_every_recorded_request_has_its_tag(name: str) -> None:
    requests = ALL[name]
    tags = run(list(requests.values()))
    expected = {n: SIDE.get(name, {}).get(n, Scenario.MAIN) for n in requests}
    assert dict(zip(requests, (one.scenario for one in tags), strict=True)) == expected


def test_the_table_names_requests_that_exist() -> None:
    assert len(ALL) >= 150
    assert {(name, n) for name, side in SIDE.items() for n in side} <= {(name, n) for name in ALL for n in ALL[name]}


# The recording of claude-code/f400long has both ends of its system prompt cut off, by which its versions are known.
@pytest.mark.parametrize("name", [name for name in ALL if name != "claude-code/f400long"])
def test_without_the_clients_rules_no_main_turn_is_taken_for_another(name: str) -> None:
    """What the general rules do not see stays main; a main turn never becomes anything else."""
    general = Tagger([rule for rule in BUILT_IN_RULES if rule.client == "any"])
    requests = ALL[name]
    for n, got in zip(requests, run(list(requests.values()), general), strict=True):
        assert got.scenario in (Scenario.MAIN, SIDE.get(name, {}).get(n, Scenario.MAIN)), (n, got)


def test_each_recorded_client_is_claimed_by_its_own_rules() -> None:
    seen = {name.split("/")[0]: {one.rule for one in run(list(ALL[name].values()))} for name in ALL}
    for name in ("claude-code/sub", "codex/sub", "opencode/sub", "qwen-code/sub", "hermes-agent/compact"):
        client = name.split("/")[0].removesuffix("-agent")
        assert any(one.rule.startswith(client) for one in run(list(ALL[name].values()))), seen[name.split("/")[0]]


def test_a_client_s_own_ids_name_the_conversation() -> None:
    keys = {n: conversation_key(one) for n, one in ALL["claude-code/twosubs"].items()}
    assert keys[1] == keys[2] == keys[7]
    assert keys[3] == keys[5]
    assert keys[4] == keys[6]
    assert len(set(keys.values())) == 3
    assert len({conversation_key(one) for one in ALL["codex/sub"].values()}) == 2
    assert len({conversation_key(one) for one in ALL["codex/compact"].values()}) == 1
    assert len({conversation_key(one) for one in ALL["opencode/twosubs"].values()}) == 3
    assert {conversation_key(one) for one in ALL["qwen-code/sub"].values()} == {""}


# ------------------------------------------------------------------------------------------------- clients


CLAUDE = {"user-agent": "claude-cli/2.1.332 (external, cli)", "x-claude-code-session-id": "s"}


def claude(body: Mapping[str, Any], **headers: str) -> ModelRequest:
    return request(body, CLAUDE | headers, protocol="anthropic_messages")


def test_claude_code_s_side_requests() -> None:
    hi = [{"role": "user", "content": "hi"}]
    tools = [{"name": "Bash", "input_schema": "…"}]
    title = {"format": {"type": "json_schema", "schema": {"properties": {"title": {"type": "string"}}}}}
    search = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]
    compaction = [*hi, {"role": "user", "content": [{"type": "text", "text": COMPACTION}]}]
    page = [{"role": "user", "content": "\nWeb page content:\n---\nText\n---\n\nWhat is it?"}]
    assert scenarios(
        claude({"messages": [{"role": "user", "content": "quota"}], "max_tokens": 1}),
        claude({"messages": hi, "output_config": title, "max_tokens": 128000}),
        claude({"messages": hi, "tools": tools}),
        claude({"messages": hi, "tools": search, "system": "You run a web search."}),
        claude({"messages": page}),
        claude({"messages": compaction, "tools": tools}, **{"x-claude-code-agent-id": "a"}),
        claude({"messages": hi, "tools": tools}, **{"x-claude-code-agent-id": "a"}),
        claude({"messages": compaction, "tools": tools}),
        claude({"messages": [{"role": "user", "content": "Continued"}], "tools": tools, "system": "New"}),
    ) == ["heartbeat", "title", "main", "search", "summary", "compaction", "sub_agent", "compaction", "main"]


COMPACTION = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Do NOT use Read"


def test_a_structured_answer_of_claude_code_is_no_title() -> None:
    schema = {"type": "json_schema", "schema": {"properties": {"title": {"type": "string"}}}}
    body = {"messages": [{"role": "user", "content": "x"}], "output_config": {"format": schema}}
    assert scenarios(claude(body | {"tools": [{"name": "Bash"}]})) == ["main"]
    assert scenarios(request(body, protocol="anthropic_messages")) == ["main"]


def test_another_client_that_uses_claude_code_s_words_is_main() -> None:
    assert scenarios(chat("Agent", "task", COMPACTION, tools=True)) == ["main"]


def test_codex_without_headers_is_read_from_its_body() -> None:
    """A proxy may drop headers; Codex says the same in `client_metadata`."""
    metadata = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"}), "thread_id": "t-1"}
    body = {"input": [{"role": "user", "content": "x"}], "client_metadata": metadata}
    made = request(body, protocol="openai_responses")
    assert run([made]) == [Tag(Scenario.COMPACTION, "codex-compaction", "codex:t-1")]
    metadata |= {"x-codex-turn-metadata": json.dumps({"request_kind": "turn"}), "x-openai-subagent": "review"}
    assert scenarios(request(body, protocol="openai_responses")) == ["sub_agent"]


@pytest.mark.parametrize("sent", ["", "{", "[]", "null", "1" * 100_000, "[" * 60_000, '{"request_kind": []}'])
def test_broken_metadata_decides_nothing(sent: str) -> None:
    made = request({"input": "x"}, {"x-codex-turn-metadata": sent}, protocol="openai_responses")
    assert run([made])[0].rule == "default"


def test_openclaw_s_heartbeat() -> None:
    prompt = "Read HEARTBEAT.md if it exists (workspace context). Follow it. If nothing, reply HEARTBEAT_OK."
    made = chat("Agent", prompt, tools=True, headers={"traceparent": "00-1-1-01"})
    assert scenarios(made, chat("Agent", prompt, tools=True)) == ["heartbeat", "main"]


# ------------------------------------------------------------------------------------------------- other clients


def test_proto_05_helpers_beside_the_main_conversation_are_told_apart() -> None:
    """PROTO-05: one base URL for the main agent, a title and a sub-agent."""
    assert scenarios(
        chat("main", "fix bug", tools=True),
        chat("Write a short title", "fix bug", max_tokens=32),
        chat("main", "fix bug", "ok", "go on", tools=True),
        chat("sub-agent", "search", tools=True),
        chat("sub-agent", "search", "found", "more", tools=True),
        chat("main", "fix bug", "ok", "go on", "ok", "end", tools=True),
    ) == ["main", "title", "main", "sub_agent", "sub_agent", "main"]


MAIN = chat("You are an agent.", "fix the bug", tools=True)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (chat("Generate a concise title for the text.", "fix the bug"), "title"),
        (chat("You are a title generator.", "fix the bug"), "title"),
        (chat("Summarize the conversation so far.", "user: fix"), "compaction"),
        (chat("Create a context checkpoint: condense this history.", "user: fix"), "compaction"),
        (chat("Summarize what the tool printed.", "text"), "summary"),
        (chat("", "Summarize: text"), "summary"),
        (chat("Is this command safe? Answer yes or no.", "rm -r /"), "unknown"),
    ],
)
def test_helpers_without_tools(made: ModelRequest, expected: str) -> None:
    assert scenarios(MAIN, made, MAIN) == ["main", expected, "main"]


LONG = "You are an agent. " + "Follow the rules of the house. " * 20


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(chat("You are an agent.", "another task", tools=True), id="a second task"),
        pytest.param(chat("You are another agent.", "fix the bug", "ok", "go", tools=True), id="a handoff"),
        pytest.param(chat("You are an agent.", "Summary of the work so far", tools=True), id="after a compaction"),
        pytest.param(chat("You are an agent.", "fix the bug", "ok", "Now write a title", max_tokens=64), id="asked"),
        pytest.param(chat("You are an agent.", "fix the bug", "ok", "Summarize the conversation"), id="no more tools"),
        pytest.param(chat("A changed prompt.", "cut", "ok", "go on", tools=True), id="history cut in front"),
        pytest.param(chat("", "fix the bug", "ok", "go on", tools=True), id="prompt left out"),
    ],
)
def test_main_turns_that_differ_from_the_first_stay_main(later: ModelRequest) -> None:
    assert scenarios(MAIN, later, MAIN) == ["main", "main", "main"]


@pytest.mark.parametrize("changed", ["It is Monday. " + LONG, LONG + "It is Monday."], ids=["front", "end"])
def test_a_prompt_that_changed_at_one_end_is_the_same_agent_s(changed: str) -> None:
    assert scenarios(chat(LONG, "a", tools=True), chat(changed, "b", tools=True)) == ["main", "main"]


def test_a_pipeline_of_prompts_without_tools_is_main() -> None:
    assert (
        scenarios(
            chat("Write an outline.", "cats", max_tokens=4000),
            chat("Write the article.", "outline", max_tokens=4000),
            chat("Write a title for the article.", "article", max_tokens=4000),
            chat("Summarize the article.", "article", max_tokens=4000),
        )
        == ["main"] * 4
    )


def test_a_task_about_titles_is_main_when_it_comes_first() -> None:
    assert scenarios(chat("Write a short title for the news.", "text", max_tokens=32)) == ["main"]


def test_what_comes_with_tools_after_a_title_is_the_agent() -> None:
    asked = chat("You name conversations: write a title.", "Title for: fix", max_tokens=32)
    assert scenarios(asked, MAIN, chat("You are an agent.", "fix the bug", "ok", "go", tools=True))[1:] == ["main"] * 2


def test_a_new_prompt_after_a_compaction_is_main() -> None:
    """Some clients put the summary into the system prompt, and start with a new first message."""
    asked = chat("Summarize the conversation.", "user: fix")
    goes_on = chat("The task so far: …", "go on", tools=True)
    assert scenarios(MAIN, asked, goes_on) == ["main", "compaction", "main"]


def test_a_conversation_that_the_server_holds_is_told_by_its_prompt() -> None:
    """`previous_response_id`: the request has no history of its own."""
    tools = [{"type": "function", "name": "bash"}]

    def made(instructions: str, text: str, previous: str = "") -> ModelRequest:
        body = {"instructions": instructions, "input": text, "tools": tools, "previous_response_id": previous}
        return request(body, protocol="openai_responses")

    assert scenarios(
        made("main", "task"),
        made("sub", "part"),
        made("sub", "more", "resp_2"),
        made("main", "more", "resp_1"),
        made("", "more", "resp_4"),
    ) == ["main", "sub_agent", "sub_agent", "main", "main"]


def test_counting_is_told_by_the_path() -> None:
    for path in ("/v1/messages/count_tokens", "/sessions/s/v1/responses/input_tokens/"):
        counted = request({"messages": [{"role": "user", "content": "x"}]}, path=path)
        assert scenarios(counted, MAIN, counted, MAIN) == ["count", "main", "count", "main"]


def test_a_client_states_what_its_request_is() -> None:
    stated = chat("You are an agent.", "x", tools=True, headers={"x-uni-agent-scenario": " Memory"})
    assert run([stated]) == [Tag(Scenario.MEMORY, "stated", "")]
    assert scenarios(chat("a", "x", headers={"x-uni-agent-scenario": "reward"})) == ["main"]
    named = chat("a", "x", headers={"x-uni-agent-conversation": "child-1"})
    assert run([named])[0].conversation == "stated:child-1"


def test_a_long_name_of_a_conversation_is_cut_and_stays_apart() -> None:
    keys = [
        conversation_key(chat("a", "x", headers={"x-uni-agent-conversation": "\n" + "x" * 100_000 + end}))
        for end in ("1", "2")
    ]
    assert all(len(key) <= 160 and key.isprintable() for key in keys)
    assert keys[0] != keys[1]


# ------------------------------------------------------------------------------------------------- configuration


def configured(text: str) -> Tagger:
    return ScenarioConfig.model_validate(yaml.safe_load(text)).build()


def test_rules_of_one_s_own_come_first() -> None:
    tagger = configured("""
        rules:
          - {name: planner, scenario: sub_agent, header: {X-Role: "^planner$"}}
          - {name: judge, scenario: unknown, system: "(?i)^you are a judge", tools: false}
          - {name: short, scenario: title, max_tokens_below: 50, last: name, path: completions$}
          - {name: json, scenario: summary, body: {response_format.type: json_schema, "messages.*.role": system}}
          - {name: flag, scenario: memory, body: {store: "true"}, first_user: remember}
    """)
    stated = {"x-role": "planner", "x-uni-agent-scenario": "main"}
    assert run([chat("a", "x", headers=stated)], tagger)[0] == Tag(Scenario.SUB_AGENT, "planner", "")
    assert scenarios(chat("a", "x", headers={"x-role": "a planner"}), tagger=tagger) == ["main"]
    assert scenarios(chat("You are a judge.", "x"), tagger=tagger) == ["unknown"]
    assert scenarios(chat("You are a judge.", "x", tools=True), tagger=tagger) == ["main"]
    assert scenarios(chat("a", "a name", max_tokens=49), chat("a", "a name", max_tokens=50), tagger=tagger) == [
        "title",
        "main",
    ]
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    body = {"messages": messages, "response_format": {"type": "json_schema"}}
    assert scenarios(request(body), request(body | {"messages": messages[1:]}), tagger=tagger) == ["summary", "main"]
    body = {"messages": [{"role": "user", "content": "remember"}]}
    assert scenarios(request(body | {"store": True}), request(body | {"store": False}), tagger=tagger) == [
        "memory",
        "main",
    ]


def test_a_built_in_rule_can_be_switched_off() -> None:
    name = "opencode/basic"
    off = configured("disabled: [opencode-title]")
    assert scenarios(*ALL[name].values(), tagger=off) == ["main", "main", "main"]
    stated = chat("a", "x", headers={"x-uni-agent-scenario": "title"})
    assert scenarios(stated, tagger=configured("disabled: [stated]")) == ["main"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("disabled: [opencode]", "no built-in rule is named 'opencode'"),
        ("rules: [{name: a, scenario: main}]", "no condition"),
        ("rules: [{name: a, scenario: chat, tools: true}]", "'main', 'sub_agent'"),
        ("rules: [{name: a, scenario: main, system: '('}]", "no regular expression"),
        ("rules: [{name: a, scenario: main, header: {x: '['}}]", "no regular expression"),
        ("rules: [{name: A b, scenario: main, tools: true}]", "string_pattern_mismatch"),
        ("rules: [{name: stated, scenario: main, tools: true}]", "two rules are named 'stated'"),
        ("rules: [{name: a, scenario: main, tools: true, user: x}]", "extra_forbidden"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        configured(text)


def test_every_rule_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    rows = [line.split("|")[1].strip().strip("`") for line in text.splitlines() if line.startswith("| `")]
    for rule in BUILT_IN_RULES:
        assert rule.name in rows
        assert rule.evidence
    for scenario in Scenario:
        assert scenario.value in rows
    assert len({rule.name for rule in BUILT_IN_RULES}) == len(BUILT_IN_RULES)


# ------------------------------------------------------------------------------------------------- hostile input


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(
    ["system", "client_metadata", "messages", "input", "tools", "functions", "output_config", "thread"]
)
headers = st.dictionaries(
    st.sampled_from(["user-agent", "x-claude-code-session-id", "x-codex-turn-metadata", "x-session-id"]),
    st.text(max_size=9) | st.sampled_from(["claude-cli/1", "opencode/1", "QwenCode/1", '{"request_kind": 1}']),
)


@given(st.dictionaries(names, json_values), headers, st.sampled_from(sorted(PATHS)))
def test_no_body_breaks_a_rule(body: dict[str, Any], sent: dict[str, str], protocol: Any) -> None:
    plain = chat("a", "x")
    made = ModelRequest(request({}, sent, protocol=protocol).wire, plain.messages)
    made = ModelRequest(type(made.wire)(protocol, PATHS[protocol], sent, body), plain.messages)
    first, second = run([made, made])
    assert isinstance(first.scenario, Scenario)
    assert isinstance(second.scenario, Scenario)


def test_lone_surrogates_are_tagged() -> None:
    assert scenarios(chat("\ud800", "\udfff", tools=True), chat("\udc00", "x", tools=True)) == ["main", "sub_agent"]


def test_what_is_remembered_of_a_session_is_bounded() -> None:
    def requests() -> Iterator[ModelRequest]:
        yield MAIN
        for i in range(700):
            yield chat(f"sub-agent {i}", f"part {i}", tools=True)

    facts = SessionFacts()
    for one in requests():
        facts = facts.after(one, tag(one, facts))
    assert len(facts.sub_agents) <= 512
    assert tag(chat("sub-agent 699", "part 699", "ok", "go", tools=True), facts).rule == "known-sub-agent"
