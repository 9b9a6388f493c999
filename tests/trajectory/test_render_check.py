"""What the tokens of a trajectory say, beside what the template writes of its messages."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from tests.tokens.graph.support import OTHER, POLICY, Session, renderer_of
from tests.tokens.small import BASH, asks, result, user
from tests.trajectory.support import exported, small
from uni_agent.cli import main
from uni_agent.store import RunStore
from uni_agent.store.records import RolloutRecord
from uni_agent.tokens.cache import Span
from uni_agent.tokens.graph import SessionGraph
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.toolset import Toolset
from uni_agent.trajectory import Trajectory, fit
from uni_agent.trajectory.render_check import checked_render, render_difference
from uni_agent.types import ExitReason, Message, RewardResult, RolloutKey, StepStatus, Task, ToolCall, Turn

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
TEMPLATES = ("qwen2_5", "qwen3", "qwen3_coder", "qwen3_6", "policy")


def session(template: str) -> Session:
    renderer = renderer_of(template)
    return Session(SessionGraph("s", renderer), renderer)


def talk(template: str, *turns: str | Message | list[Message], tools: Sequence[Any] = (BASH,), **say: Any) -> Session:
    """A conversation: strings and assistant messages are sampled, lists are what follows them."""
    made = session(template)
    messages: list[Message] = [Message("system", "Be brief."), user("go")]
    for step in turns:
        if isinstance(step, list):
            messages += step
            continue
        prepared = made.prepare(messages, tools)
        if isinstance(step, Message):
            turn = made.say(prepared, "", ids=made.written(prepared, step))
        else:
            turn = made.say(prepared, step, **say)
        messages.append(turn.message)
    return made


def kind(made: Session, trajectory: Trajectory | None = None) -> str | None:
    (own,) = [trajectory] if trajectory is not None else exported(made)
    return checked_render(own, made.renderer)[0]


def difference(made: Session, trajectory: Trajectory | None = None) -> Any:
    (own,) = [trajectory] if trajectory is not None else exported(made)
    found = render_difference(own, made.renderer)
    assert found is not None
    assert json.loads(json.dumps(found.to_json())) == found.to_json()
    assert 0 <= found.position <= len(own.ids)
    return found


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_written_as_the_template_writes_it_is_exact(template: str) -> None:
    made = talk(template, asks("ls", content="Look."), [result("a\nb")], asks("pwd"), [result("/")])
    assert kind(made) in ("exact", "form")  # some templates end thinking that was never there
    if template in ("qwen2_5", "policy"):
        assert kind(made) == "exact"


def test_a_last_turn_without_its_end_token_is_exact() -> None:
    assert kind(talk("qwen2_5", "The answer is", finish="length")) == "exact"


def test_letter_by_letter_is_another_spelling() -> None:
    made = session("qwen2_5")
    prepared = made.prepare([user("go")], [BASH])
    letters = [id_ for letter in "The quick README" for id_ in made.renderer.tokenizer.encode(letter)]
    whole = made.renderer.tokenizer.encode("The quick README")
    assert letters != whole
    made.say(prepared, "", ids=[*letters, *made.renderer.stop_token_ids[:1]])
    (own,) = exported(made)
    found = difference(made)
    first = next(i for i, (a, b) in enumerate(zip(letters, whole, strict=False)) if a != b)
    assert (found.kind, found.position) == ("spelling", len(own.prompt_ids) + first)
    assert (found.span, found.turn) == ("sampled", 0)
    assert found.render_text.startswith(found.chain_text) and found.render_text != found.chain_text


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "call",
    [
        '<tool_call>{"arguments":{"command":"ls -la","timeout":5},"name":"bash"}</tool_call>',
        '<tool_call>\n{"name":"bash",  "arguments": {"command": "ls \\u002dla", "timeout": 5.0}}\n</tool_call>\n',
    ],
)
def test_arguments_that_the_template_writes_anew_are_another_form(template: str, call: str) -> None:
    if template in ("qwen3_coder", "qwen3_6"):
        call = "<tool_call><function=bash><parameter=timeout>\n 5 </parameter>" + (
            "<parameter=command>\nls -la\n</parameter></function></tool_call>"
        )
        if renderer_of(template).starts_in_reasoning:
            call = "</think>" + call
    made = talk(template, f"I look.\n\n\n{call}" if "</think>" not in call else call, [result("ok")], "done")
    (own,) = exported(made)
    assert own.messages[2].tool_calls
    assert difference(made).kind == "form"


def test_thinking_that_the_template_drops_is_another_form() -> None:
    made = talk("qwen3", "<think>\np\n</think>\n\nhi", [user("more")], "<think>\nq\n</think>\n\nho")
    found = difference(made)
    assert (found.kind, found.span, found.turn) == ("form", "sampled", 0)
    assert found.chain_text.startswith("<think>\\np\\n</think>")
    assert found.render_text.startswith("hi")


def test_thinking_in_the_prompt_that_a_later_message_drops_is_another_form() -> None:
    made = session("qwen3")
    history = [user("go"), asks("ls", reasoning="deep", content="I"), result("ok")]
    turn = made.ask(history, "<think>\np\n</think>\n\nhi")
    made.ask([*history, turn.message, user("more")], "<think>\n\n</think>\n\nho")
    (own,) = exported(made)
    assert "deep" in made.text(own.prompt_ids)
    assert difference(made).kind == "form"


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("text", ["<think>\nI wonder", "Well, <think>", "", CALL[:40], f"{CALL}\n{CALL[:30]}"])
def test_a_turn_that_its_limit_cut_is_no_disagreement(template: str, text: str) -> None:
    made = session(template)
    messages = [user("go")]
    cut = made.say(made.prepare(messages, [BASH]), text, finish="length")
    assert kind(made) in ("exact", "form", "spelling")
    made.ask([*messages, cut.message, user("go on")], "done")
    assert kind(made) in ("exact", "form", "spelling")


@pytest.mark.parametrize("template", TEMPLATES)
def test_turns_that_another_trajectory_trains_are_read_as_turns(template: str) -> None:
    made = talk(template, '<tool_call>{"name":"bash","arguments":{}}</tool_call>', [user("next")], "one")
    first = made.graph.turns[0].message
    start = [Message("system", "Be brief."), user("go"), first]
    made.ask([*start, user("next")], "two", intent="resample")
    both = exported(made)
    assert len(both) == 2
    for own in both:
        assert checked_render(own, made.renderer)[0] in ("form", "exact")


def changed(own: Trajectory, at: int, **fields: Any) -> Trajectory:
    messages = list(own.messages)
    messages[at] = replace(messages[at], **fields)
    return replace(own, messages=tuple(messages))


def test_each_symptom_of_a_proxy_is_a_disagreement_with_its_place() -> None:
    made = talk("qwen3", f"<think>\np\n</think>\n\nI look.\n{CALL}", [result("ok")], "<think>\nq\n</think>\n\nhi")
    (own,) = exported(made)
    assert kind(made) == "exact"
    first, last = len(own.prompt_ids) + own.spans[0].start, len(own.prompt_ids) + own.spans[-1].start
    symptoms: list[tuple[int, dict[str, Any], int, int]] = [
        (-1, {"content": "hi<|im_end|>"}, 1, last),
        (-1, {"content": "h"}, 1, last),
        (-1, {"reasoning": "another"}, 1, last),
        (2, {"tool_calls": ()}, 0, first),
        (2, {"tool_calls": (ToolCall("x", "bash", {"command": "rm"}),)}, 0, first),
        (2, {"content": "I do."}, 0, first),
    ]
    for at, fields, turn, start in symptoms:
        found = difference(made, changed(own, at, **fields))
        assert (found.kind, found.span, found.turn) == ("text", "sampled", turn), fields
        assert found.position >= start
    hidden = changed(own, -1, content="<think>\nq\n</think>\n\nhi", reasoning="")
    assert kind(made, hidden) == "exact"  # the template takes it apart: nothing else was trained


def test_an_end_token_in_the_content_is_shown_where_it_stands() -> None:
    made = talk("qwen2_5", "hi")
    (own,) = exported(made)
    found = difference(made, changed(own, -1, content="hi<|im_end|>"))
    assert (found.kind, found.turn) == ("text", 0)
    assert found.render_text.startswith("<|im_end|>") or found.chain_text.startswith("<|im_end|>")


@pytest.mark.parametrize("template", TEMPLATES)
def test_observations_and_prompts_that_differ_are_disagreements(template: str) -> None:
    made = talk(template, asks("ls"), [result("a long listing of files")], "done", [user("thanks")], "bye")
    (own,) = exported(made)
    assert kind(made) in ("exact", "form")
    found = difference(made, changed(own, 3, content="a long list of nothing"))
    assert (found.kind, found.span) == ("text", "observation")
    found = difference(made, changed(own, 0, content="Be long."))
    assert (found.kind, found.span, found.turn) == ("text", "prompt", None)
    if template in ("qwen2_5", "policy"):
        assert found.chain_text.startswith("brief") or found.chain_text.lstrip().startswith("b")
    added = replace(
        own, messages=(*own.messages[:5], user("unseen"), *own.messages[5:]), message_turns=(), exit_reason="x"
    )
    assert difference(made, added).kind == "text"
    lost = replace(own, messages=(*own.messages[:3], *own.messages[4:]), message_turns=())
    assert difference(made, lost).kind == "text"


@pytest.mark.parametrize("template", TEMPLATES)
def test_tools_that_are_missing_from_the_prompt_are_told_apart(template: str) -> None:
    made = talk(template, "hi", tools=())
    (own,) = exported(made)
    found = difference(made, replace(own, tools=(BASH,)))
    assert (found.kind, found.span, found.turn) == ("tools", "prompt", None)
    made = talk(template, "hi", tools=(BASH,))
    (own,) = exported(made)
    assert difference(made, replace(own, tools=(BASH, OTHER))).kind == "tools"
    assert difference(made, replace(own, tools=())).kind == "text"


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_is_cut_to_a_length_is_compared_as_far_as_it_goes(template: str) -> None:
    made = talk(template, f"<think>\np\n</think>\n\n{CALL}", [result("ok")], "done", [user("more")], "<think>\nq")
    (own,) = exported(made)
    expected = kind(made)
    assert expected in ("exact", "form")
    for limit in range(1, len(own.response_ids), 3):
        assert kind(made, fit(own, max_response=limit)) in ("exact", "spelling", expected)
        assert kind(made, fit(own, max_prompt=9, max_response=limit)) in ("exact", "spelling", expected)
    assert kind(made, fit(own, max_prompt=5)) == expected


def test_nothing_is_said_where_nothing_can_be_compared() -> None:
    renderer = renderer_of("qwen3")
    assert checked_render(small(), None) == (None, None)
    assert checked_render(small(messages=(), message_turns=()), renderer) == (None, None)
    bare = small(
        response_ids=[7],
        response_mask=[0],
        response_logprobs=None,
        weight_spans=(),
        spans=(Span("observation", 0, 0, 1),),
    )
    assert checked_render(replace(bare, messages=(), message_turns=()), renderer)[0] is None
    assert checked_render(small(weight_spans=()), renderer)[0] == "text"


@pytest.mark.parametrize(("shown", "expected"), [("done", "exact"), ("gone", "text"), ("(redacted)", None)])
def test_chains_of_a_run_are_compared_where_the_store_says_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shown: str, expected: str | None
) -> None:
    tools = tuple(Toolset([ExecuteBash()]).schemas())
    call = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "ls"}}\n</tool_call>'
    made = talk("policy", call, [replace(result("ok"), name="execute_bash")], "done", tools=tools)
    (own,) = exported(made)
    assert kind(made) == "exact"
    said = [m for m in own.messages if m.role == "assistant"]
    turns = [
        Turn(0, said[0], (), (own.messages[3],), StepStatus.COMPLETED),
        Turn(1, replace(said[1], content=shown), (), (user("bye"),), StepStatus.COMPLETED),
    ]
    config = {"data": {"type": "jsonl", "path": "x"}, "model": {"type": "verl", "path": str(POLICY)}}
    config |= {"tools": ["execute_bash"], "deployment": {"type": "dummy"}, "reward": {"type": "dummy"}}
    with RunStore.create(tmp_path / "run", name="demo", config=config, digest="d") as store:
        store.task(Task(id="t", prompt="go"))
        rollout = store.rollout_started(RolloutKey("t", 0), 0)
        for turn in turns:
            store.turn(rollout, turn)
        store.chains(rollout, [made.graph.trajectories()[0].cache])
        reward = RewardResult(score=1.0, resolved=True)
        store.finished(rollout, RolloutRecord(ExitReason.FINISHED, reward=reward, opening=own.messages[:2]))
    target = tmp_path / "t.parquet"
    asked = ["export", str(tmp_path / "run"), "--format", "verl-tokens", "-o", str(target)]
    assert main([*asked, "--render", str(POLICY)]) == 0
    assert f"messages: 1 {expected or 'not compared'}" in capsys.readouterr().err
    (row,) = importlib.import_module("pyarrow.parquet").read_table(target).to_pylist()
    extra = json.loads(row["extra_fields"])
    if expected is None:
        assert "render_difference" not in extra
    else:
        assert (extra["render_difference"] or {"kind": "exact"})["kind"] == expected
    assert main(asked) == 0
    assert "render_difference" not in importlib.import_module("pyarrow.parquet").read_table(target).to_pylist()[0]


def test_a_comparison_without_tokens_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(tmp_path), "--render", str(POLICY)]) == 2
    assert main(["export", "--journal", str(tmp_path), "--format", "sft", "--render", str(POLICY)]) == 2
    assert "--render compares tokens" in capsys.readouterr().err


def timed(work: Callable[[], Any]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def test_long_chains_cost_what_they_are_long() -> None:
    def chain(turns: int) -> tuple[Session, Trajectory]:
        steps: list[Any] = []
        for i in range(turns):
            steps += [
                f'<tool_call>{{"name":"bash","arguments":{{"command":"ls {i}"}}}}</tool_call>',
                [result("ok " * 200)],
            ]
        made = talk("qwen2_5", *steps)
        return made, exported(made)[0]

    costs: list[float] = []
    for turns in (10, 80):
        made, own = chain(turns)
        assert kind(made, own) == "form"
        costs.append(min(timed(partial(render_difference, own, made.renderer)) for _ in range(3)))
    assert costs[1] < 8 * 4 * costs[0]
