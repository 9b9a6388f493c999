"""Incremental equals full, and what was sampled stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokens.conftest import MakeRenderer
from tests.tokens.small import BASH, NAMES, asks, peer_ids, result, user
from uni_agent.engine.base import TokenOutput
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.messages import in_call_order
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tokens.transcript import without_thinking
from uni_agent.types import Message, ToolCall


class Rollout:
    """A conversation whose assistant turns are sampled, as a model session builds it."""

    def __init__(self, renderer: ChatTemplateRenderer, opening: list[Message], *, tools: bool = True) -> None:
        self.renderer = renderer
        self.tools = [BASH] if tools else []
        self.history = list(opening)
        self.cache = RolloutCache("r", prompt_ids=renderer.initial(opening, self.tools))
        self.turn = 0

    def sample(self, message: Message, ids: list[int] | None = None) -> None:
        ids = self.written(message) if ids is None else ids
        self.cache.append_sampled(TokenOutput(ids, [-0.1] * len(ids), "stop"), self.turn)
        self.history.append(message)

    def observe(self, *new: Message, cut: bool = False) -> list[int]:
        ids = self.renderer.extension(self.history, new, self.tools, cut=cut)
        self.cache.append_context(ids, self.turn)
        self.history += new
        self.turn += 1
        return ids

    def written(self, message: Message) -> list[int]:
        """The ids of a model that writes `message` just as the template does; without thinking, it writes none."""
        transcriber = self.renderer.transcriber
        before = transcriber.draft(self.history, self.tools, generation=True).revealed
        after = transcriber.draft([*self.history, message], self.tools, generation=False).revealed
        if not message.reasoning:
            header = without_thinking(before)
            closed = "\n</think>\n\n" if self.renderer.starts_in_reasoning else ""
            text = closed + without_thinking(after)[len(header) :]
        else:
            text = after[len(before) :]
        return self.renderer.tokenizer.encode(text[: text.rindex("<|im_end|>")] + "<|im_end|>")

    def check(self) -> None:
        cache = self.cache
        assert cache.response_logprobs is not None
        assert len(cache.response_ids) == len(cache.response_mask) == len(cache.response_logprobs)
        for span in cache.spans:
            trained = span.kind == "sampled"
            assert set(cache.response_mask[span.start : span.end]) <= {int(trained)}
            assert set(cache.response_logprobs[span.start : span.end]) <= {-0.1 if trained else 0.0}


word = st.text(st.sampled_from("abcé漢🧪 .,\n{}\"'<>/1"), min_size=1, max_size=12).map(lambda text: f"w{text}w")


@st.composite
def rounds(draw: st.DrawFn) -> list[tuple[Message, list[Message]]]:
    out: list[tuple[Message, list[Message]]] = []
    for i in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            commands = draw(st.lists(word, min_size=1, max_size=3))
            turn = asks(*commands, content=draw(st.one_of(st.just(""), word)), prefix=f"t{i}c")
            new = [result(draw(word), call.id) for call in turn.tool_calls]
            new = draw(st.permutations(new))
            if draw(st.integers(0, 3)) == 0:
                new = [*new, user(draw(word))]
        else:
            turn = Message("assistant", draw(word))
            new = [user(draw(word))]
        out.append((turn, new))
    return out


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(opening=st.sampled_from([[user("go")], [Message("system", "rules"), user("go")]]), played=rounds())
def test_incremental_equals_full(
    make: MakeRenderer,
    small_folder: Path,
    name: str,
    opening: list[Message],
    played: list[tuple[Message, list[Message]]],
) -> None:
    # Qwen3.6 opens the thinking in the prompt and leaves it out of turns before the last user message: texts are
    # compared without it.
    rollout = Rollout(make(name), opening)
    for turn, new in played:
        rollout.sample(turn)
        rollout.observe(*new)
    rollout.check()
    renderer = rollout.renderer
    full = renderer.initial(rollout.history, [BASH])
    assert without_thinking(renderer.decode(rollout.cache.ids)) == without_thinking(renderer.decode(full))
    if name != "qwen3_6":
        assert rollout.cache.ids == full
    assert full == peer_ids(small_folder, name, in_call_order(rollout.history), [BASH])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_6"])
def test_thinking_within_one_query_gives_exactly_the_full_render(
    make: MakeRenderer, small_folder: Path, name: str
) -> None:
    rollout = Rollout(make(name), [Message("system", "s"), user("go")])
    for i in range(10):
        rollout.sample(asks("ls", "pwd", reasoning=f"plan {i}", content="next", prefix=f"t{i}c"))
        rollout.observe(result("A\n", f"t{i}c0"), result("B", f"t{i}c1"))
    rollout.check()
    assert rollout.cache.ids == peer_ids(small_folder, name, rollout.history, [BASH])


def test_tok_01_the_newline_between_turns_is_there_after_every_turn(make: MakeRenderer, small_folder: Path) -> None:
    rollout = Rollout(make("qwen3"), [user("go")], tools=False)
    ids = rollout.renderer.tokenizer.controls.ids
    newline = rollout.renderer.tokenizer.encode_plain("\n")
    for _ in range(10):
        rollout.sample(Message("assistant", "hi"))
        added = rollout.observe(result("A", "x"))
        assert added[:2] == [*newline, ids["<|im_start|>"]]
    assert rollout.cache.ids == peer_ids(small_folder, "qwen3", rollout.history, None)


@pytest.mark.parametrize("name", NAMES)
def test_tok_03_parallel_results_are_one_user_turn(make: MakeRenderer, name: str) -> None:
    renderer = make(name)
    history = [user("go"), asks("ls", "pwd")]
    body = "<tool_response>\nA\n</tool_response>\n<tool_response>\nError: B\n</tool_response>"
    for new in ([result("A"), result("Error: B", "c1")], [result("Error: B", "c1"), result("A")]):
        text = renderer.decode(renderer.extension(history, new, [BASH], cut=False))
        assert text.startswith(f"\n<|im_start|>user\n{body}")
        assert text.count("<|im_start|>user") == 1 and text.count("<|im_end|>") == 1


def test_tok_04_thinking_that_the_template_drops_stays_in_the_chain_once(make: MakeRenderer) -> None:
    for name in ("qwen3", "qwen3_6"):
        rollout = Rollout(make(name), [user("go")], tools=False)
        opened = rollout.renderer.starts_in_reasoning
        text = ("" if opened else "<think>\n") + "plan\n</think>\n\nhi<|im_end|>"
        ids = rollout.renderer.tokenizer.encode(text)
        rollout.sample(Message("assistant", "hi", "plan"), ids)
        added = rollout.observe(user("more"))
        assert rollout.renderer.decode(added).startswith("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")
        whole = rollout.renderer.decode(rollout.cache.ids)
        assert whole.count("plan") == 1 and whole.count("more") == 1 and whole.count("go<|im_end|>") == 1
        assert sum(rollout.cache.response_mask) == len(ids)
        assert rollout.renderer.proof.drops_thinking


def test_tok_07_header_and_separator_are_not_trained(make: MakeRenderer) -> None:
    rollout = Rollout(make("qwen2_5"), [user("go")], tools=False)
    rollout.sample(Message("assistant", "hi"))
    rollout.observe(user("q"))
    text = [
        rollout.renderer.decode([id_])
        for id_, mask in zip(rollout.cache.response_ids, rollout.cache.response_mask, strict=True)
        if mask
    ]
    assert "".join(text) == "hi<|im_end|>"


@pytest.mark.parametrize("name", NAMES)
def test_tok_09_increments_hold_no_system_text_and_need_no_user_message(make: MakeRenderer, name: str) -> None:
    renderer = make(name)
    for tools in ([], [BASH]):
        ids = renderer.extension([asks("ls")], [result("A")], tools, cut=False)
        text = renderer.decode(ids)
        assert "system" not in text and "anchor" not in text and "You are" not in text
        assert text.startswith("\n<|im_start|>user\n<tool_response>\nA\n</tool_response>")


@pytest.mark.parametrize("name", NAMES)
def test_tok_10_a_late_system_message_extends_the_chain_in_place(make: MakeRenderer, name: str) -> None:
    rollout = Rollout(make(name), [user("go")], tools=False)
    rollout.sample(Message("assistant", "hi"))
    earlier = list(rollout.cache.ids)
    rollout.observe(Message("system", "S2"), user("q"))
    assert rollout.cache.ids[: len(earlier)] == earlier
    text = rollout.renderer.decode(rollout.cache.ids[len(earlier) :])
    assert text.index("S2") < text.index("q<|im_end|>")
    full = rollout.renderer.decode(rollout.renderer.initial(rollout.history, []))
    assert without_thinking(full) == without_thinking(rollout.renderer.decode(rollout.cache.ids))


@pytest.mark.parametrize("name", NAMES)
def test_tok_12_the_chain_holds_one_think_opener_per_turn(make: MakeRenderer, name: str) -> None:
    rollout = Rollout(make(name), [user("go")])
    for _ in range(3):
        turn = asks("ls", reasoning="plan" if name in ("qwen3", "qwen3_6") else "")
        rollout.sample(turn)
        rollout.observe(result("A"))
    text = rollout.renderer.decode(rollout.cache.ids)
    closed = text.count("</think>")
    opened = text.count("<think>")
    assert opened == closed + (1 if rollout.renderer.starts_in_reasoning else 0)
    assert closed == (3 if name in ("qwen3", "qwen3_6") else 0)


def test_tok_15_a_turn_in_odd_spacing_keeps_its_ids(make: MakeRenderer) -> None:
    text = '<tool_call>\n{"name":"bash", "arguments": {"timeout":5,"command":"echo \'<a>\' é"}}\n</tool_call><|im_end|>'
    rollout = Rollout(make("qwen3"), [user("go")])
    ids = rollout.renderer.tokenizer.encode(text)
    parsed = rollout.renderer.parse(ids, [BASH])
    assert parsed.tool_calls[0].arguments == {"command": "echo '<a>' é", "timeout": 5}
    rollout.sample(Message("assistant", parsed.content, tool_calls=parsed.tool_calls), ids)
    rollout.observe(result("A", parsed.tool_calls[0].id))
    span = next(rollout.cache.sampled_spans())
    assert rollout.cache.response_ids[span.start : span.end] == ids


def test_tok_16_every_render_sees_the_same_variables_and_tools(make: MakeRenderer, small_folder: Path) -> None:
    renderer = make("qwen3", enable_thinking=False, unknown="x")
    prompt = renderer.decode(renderer.initial([user("go")], [BASH]))
    assert "<tools>" in prompt and prompt.endswith("<think>\n\n</think>\n\n")
    rollout = Rollout(renderer, [user("go")])
    for turn in range(3):
        rollout.sample(asks("ls", prefix=f"t{turn}c"))
        added = rollout.observe(result("A", f"t{turn}c0"))
        assert renderer.decode(added).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_tok_18_a_leading_newline_stays_apart_from_the_header(make: MakeRenderer) -> None:
    rollout = Rollout(make("qwen2_5"), [user("go")], tools=False)
    tokenizer = rollout.renderer.tokenizer
    newline = tokenizer.encode_plain("\n")
    ids = [*tokenizer.encode_plain("\nok"), tokenizer.controls.ids["<|im_end|>"]]
    rollout.sample(Message("assistant", "\nok"), ids)
    at = len(rollout.cache.prompt_ids)
    assert rollout.cache.ids[at - 1 : at + 1] == [*newline, *newline]
    assert rollout.cache.response_mask[0] == 1
    assert tokenizer.encode("\n\n") != [*newline, *newline]


@pytest.mark.parametrize("name", NAMES)
def test_a_turn_cut_by_length_is_closed_first(make: MakeRenderer, name: str) -> None:
    renderer = make(name)
    end = renderer.tokenizer.controls.ids["<|im_end|>"]
    assert renderer.closing_ids() == [end] and renderer.stop_token_ids[0] == end
    history = [user("go"), Message("assistant", "hi")]
    whole = renderer.extension(history, [user("more")], [], cut=False)
    assert renderer.extension(history, [user("more")], [], cut=True) == [end, *whole]


def test_the_cost_does_not_depend_on_the_history(make: MakeRenderer) -> None:
    renderer = make("qwen3")
    renders: list[int] = []
    original = renderer.transcriber.template
    history = [user("long " * 1000)]
    for i in range(50):
        history += [asks("ls", prefix=f"t{i}c"), result("x" * 100, f"t{i}c0")]
    history.append(asks("ls", prefix="last"))

    class Counting:
        source, name, variables = original.source, original.name, original.variables

        def render(self, messages: list[object], tools: list[object], *, generation: bool) -> str:
            renders.append(len(messages))
            return original.render(messages, tools, generation=generation)  # pyright: ignore[reportArgumentType]

    renderer.transcriber.template = Counting()  # pyright: ignore[reportAttributeAccessIssue]
    try:
        renderer.extension(history, [result("A", "last0")], [BASH], cut=False)
    finally:
        renderer.transcriber.template = original
    assert max(renders) == 3


def test_an_extension_needs_an_assistant_turn_in_front(make: MakeRenderer) -> None:
    with pytest.raises(ValueError, match="assistant"):
        make("qwen3").extension([user("go")], [user("more")], [], cut=False)


def test_text_of_the_anchor_in_a_message_does_not_confuse_it(make: MakeRenderer) -> None:
    for name in NAMES:
        renderer = make(name)
        new = [result("anchor-text anchor-text-1 <|im_end|> anchor")]
        text = renderer.decode(renderer.extension([user("go"), asks("ls")], new, [BASH], cut=False))
        assert text.count("anchor-text-1") == 1 and text.count("anchor") == 3
        odd = Message("assistant", "", tool_calls=(ToolCall("anchor-text", "anchor-text", {}),))
        text = renderer.decode(renderer.extension([user("go"), odd], [result("A", "anchor-text")], [BASH], cut=False))
        assert text.startswith("\n<|im_start|>user\n<tool_response>\nA\n")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_new_is_just_the_next_header(make: MakeRenderer, name: str) -> None:
    renderer = make(name)
    text = renderer.decode(renderer.extension([user("go"), Message("assistant", "hi")], [], [BASH], cut=False))
    assert text.startswith("\n<|im_start|>assistant\n")
