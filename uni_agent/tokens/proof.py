"""Checks at load: which increments a template allows, and which tool parser reads what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from uni_agent.tokens.anchor import Anchor, AnchorError
from uni_agent.tokens.base import ToolParser, ToolSchema
from uni_agent.tokens.template import TemplateError
from uni_agent.tokens.transcript import Transcriber, without_thinking
from uni_agent.types import Media, Message, ToolCall

Kind = Literal["tool_results", "messages"]
"""What follows an assistant turn: the results of its calls, or anything else."""

PROBE_TOOL: ToolSchema = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool that is never run.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "flag": {"type": "boolean"},
                "options": {"type": "object"},
            },
            "required": ["text"],
        },
    },
}
_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"text": "ls -la | grep 'é' && echo \"<b>{1}</b>\"\nsecond line", "count": 7, "flag": True, "options": {"k": [1]}},
    {"text": "pwd"},
)


@dataclass(frozen=True, slots=True)
class Transition:
    """Whether increments of one kind equal the full render. `reason` says why not; "" when they do."""

    kind: Kind
    append_only: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TemplateProof:
    """What was shown about a template when it was loaded.

    `drops_thinking`: the template leaves thinking of earlier turns out once a user message follows. Extensions keep it
    (see `ChatTemplateRenderer`), so equality is meant up to thinking. `late_system`: system messages are shown where
    they stand; otherwise they are given as reminders in user turns. `same_ids`: in every shape tried the chain's ids
    were those of the full text; False when text at the start of a turn merges with the header in front of it.
    `hides_thinking`: behind what the thinking of earlier turns is not in a full render, be it that the template drops
    it there or that it never shows any. `images`: increments that may hold images; empty where the model reads none.
    """

    transitions: Mapping[Kind, Transition]
    drops_thinking: bool
    late_system: bool
    same_ids: bool
    hides_thinking: frozenset[Kind]
    images: frozenset[Kind] = frozenset()

    def allows(self, kind: Kind) -> bool:
        """Whether increments of `kind` were proved."""
        return self.transitions[kind].append_only


class _Refuted(Exception):
    """An increment differs from the full render."""


def prove(transcriber: Transcriber, anchor: Anchor, *, images: bool = False) -> TemplateProof:
    """Compare increments with full renders over conversations of several shapes, with `images` also of such."""
    prover = _Prover(transcriber, anchor)
    transitions: dict[Kind, Transition] = {}
    shapes: dict[Kind, Callable[[], Iterator[_Shape]]] = {"tool_results": _tool_shapes, "messages": _message_shapes}
    for kind, make in shapes.items():
        reason = ""
        for shape in make():
            try:
                prover.check(shape)
            except (_Refuted, AnchorError, TemplateError) as error:
                if shape.optional and isinstance(error, TemplateError):
                    continue
                reason = f"{shape.name}: {error}"
                break
        transitions[kind] = Transition(kind, not reason, reason)
    return TemplateProof(
        transitions,
        _drops_thinking(transcriber),
        transcriber.late_system,
        prover.same_ids,
        _hides_thinking(transcriber),
        frozenset(shape.kind for shape in _image_shapes() if images and _holds(prover, shape)),
    )


def _holds(prover: _Prover, shape: _Shape) -> bool:
    try:
        prover.check(shape)
    except (_Refuted, AnchorError, TemplateError):
        return False
    return True


def fitting_parsers(transcriber: Transcriber, parsers: Mapping[str, Callable[[], ToolParser]]) -> list[str]:
    """Names of the parsers that read back the tool calls which this template writes.

    Raises TemplateError when it refuses messages with tool calls.
    """
    text, count = _written_calls(transcriber)
    expected = [("probe_tool", arguments, None) for arguments in _ARGUMENTS[:count]]
    fitting: list[str] = []
    for name, make in parsers.items():
        parsed = make().parse(text, [PROBE_TOOL])
        calls = [(call.name, call.arguments, call.error) for call in parsed.tool_calls]
        if calls == expected:
            fitting.append(name)
    return fitting


def _written_calls(transcriber: Transcriber) -> tuple[str, int]:
    """The text behind a question that is answered with calls of the probe tool, and how many calls those are.

    Two, or one for a template that knows single calls only.
    """
    question = "probe-question"
    for count in (2, 1):
        turn = Message("assistant", tool_calls=_calls("probe", *_ARGUMENTS[:count]))
        try:
            draft = transcriber.draft([Message("user", question), turn], [PROBE_TOOL], generation=False)
        except TemplateError:
            if count == 1:
                raise
        else:
            text = draft.revealed
            return without_thinking(text[text.rfind(question) + len(question) :]), count
    raise AssertionError("unreachable")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A conversation: `opening`, then assistant turns and what follows each.

    `cut`: the turns have no end token of their own. `optional`: a template may refuse it; then it never comes about.
    """

    name: str
    opening: list[Message]
    rounds: list[tuple[Message, list[Message]]]
    tools: list[ToolSchema] = field(default_factory=list[ToolSchema])
    cut: bool = False
    optional: bool = False
    kind: Kind = "messages"


def _calls(prefix: str, *arguments: dict[str, Any]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"{prefix}{i}", "probe_tool", args) for i, args in enumerate(arguments))


def _asks(prefix: str, *texts: str, content: str = "") -> tuple[Message, list[Message]]:
    calls = _calls(prefix, *({"text": text} for text in texts))
    return Message("assistant", content, tool_calls=calls), [
        Message("tool", f"result of {call.arguments['text']}\n", tool_call_id=call.id, name=call.name) for call in calls
    ]


def _tool_shapes() -> Iterator[_Shape]:
    user, system = Message("user", "go"), Message("system", "rules")
    tools = [PROBE_TOOL]
    yield _Shape("one tool result", [user], [_asks("a", "x")], tools)
    yield _Shape("a system prompt", [system, user], [_asks("a", "x", content="look")], tools)
    yield _Shape("three tool rounds", [user], [_asks("a", "x"), _asks("b", "y", content="and"), _asks("c", "z")], tools)
    yield _Shape("parallel tool results", [user], [_asks("a", "x", "y"), _asks("b", "z")], tools, optional=True)


def _message_shapes() -> Iterator[_Shape]:
    user, more, done = Message("user", "go"), Message("user", "more"), Message("assistant", "done")
    for tools in ([], [PROBE_TOOL]):
        yield _Shape("a user message", [user], [(done, [more])], tools)
        yield _Shape("two user messages", [user], [(done, [more]), (Message("assistant", "again"), [more])], tools)
        yield _Shape("a turn cut by length", [user], [(done, [more])], tools, cut=True)
    yield _Shape("a system message", [user], [(done, [Message("system", "note"), more])])
    yield _Shape("a user message after tools", [user], [_asks("a", "x"), (done, [more])], [PROBE_TOOL], optional=True)


def _image_shapes() -> Iterator[_Shape]:
    """Conversations in which images stand before an increment and in it: a template may count them."""
    image = Media("image", b"")
    done = Message("assistant", "done")
    asked = Message("user", "look: \n", parts=("look: ", image, "\n"))
    more = Message("user", "and these", parts=(image, image, "and these"))
    yield _Shape("images in user messages", [asked], [(done, [more]), (done, [asked])])
    rounds: list[tuple[Message, list[Message]]] = []
    for name in ("a", "b"):
        turn, results = _asks(name, "x")
        rounds.append((turn, [replace(r, content="seen: .", parts=("seen: ", image, ".", image)) for r in results]))
    yield _Shape("images in tool results", [asked], rounds, [PROBE_TOOL], kind="tool_results")


class _Prover:
    def __init__(self, transcriber: Transcriber, anchor: Anchor) -> None:
        self._transcriber = transcriber
        self._anchor = anchor
        self.same_ids = True

    def check(self, shape: _Shape) -> None:
        """Build the chain as a rollout would, and compare it with the full render."""
        transcriber = self._transcriber
        draft = transcriber.draft(shape.opening, shape.tools, generation=True)
        text, ids, history = draft.revealed, transcriber.ids(draft), list(shape.opening)
        for turn, new in shape.rounds:
            sampled = self._sampled(history, turn, shape)
            draft, start = self._anchor.increment(new, shape.tools, turn.tool_calls)
            text = without_thinking(text) + sampled + draft.disguise.reveal(draft.text[start:])
            ids += transcriber.tokenizer.encode(sampled) + transcriber.ids(draft, start)
            history += [turn, *new]
        full = transcriber.draft(history, shape.tools, generation=True)
        if without_thinking(text) != without_thinking(full.revealed):
            raise _Refuted("the increments do not add up to the full render")
        if without_thinking(full.revealed) == full.revealed and ids != transcriber.ids(full):
            self.same_ids = False

    def _sampled(self, history: list[Message], turn: Message, shape: _Shape) -> str:
        """What a model would have sampled for `turn`, by the template's own render of it, without thinking."""
        before = self._transcriber.draft(history, shape.tools, generation=True).revealed
        after = self._transcriber.draft([*history, turn], shape.tools, generation=False).revealed
        header = without_thinking(before)
        after = without_thinking(after)
        if not after.startswith(header):
            raise _Refuted("the template writes what came before anew when an assistant turn is added")
        ending = self._anchor.ending(shape.tools, turn.tool_calls, "anchor-text")
        if ending is not None and not ending.token:  # the next header ends it
            return after[len(header) :]
        end = after.rfind(ending.token) if ending else -1
        if ending is None or end < len(header):
            raise _Refuted("the template ends an assistant turn with no control token")
        stop = ending.behind(after, end + len(ending.token))
        if shape.cut:  # the turn stops before its end, which the renderer then writes
            return after[len(header) : end].removesuffix(ending.lead) + ending.lead + after[end:stop]
        return after[len(header) : stop]


def _drops_thinking(transcriber: Transcriber) -> bool:
    thought = "probe-thought"
    user = Message("user", "go")
    turns = [user, Message("assistant", "done", reasoning=thought)]
    try:
        last = transcriber.draft(turns, [], generation=False).text
        earlier = transcriber.draft([*turns, user], [], generation=True).text
    except TemplateError:
        return False
    return thought in last and thought not in earlier


def _hides_thinking(transcriber: Transcriber) -> frozenset[Kind]:
    """See `TemplateProof`; tried behind two rounds of tools, of which a template may treat the last one apart."""
    user = Message("user", "go")
    history = [user]
    for name in ("probe-one", "probe-two"):
        turn, results = _asks(name, "x")
        history += [Message("assistant", "", f"{name}-thought", turn.tool_calls), *results]
    done = Message("assistant", "done", "probe-one-thought probe-two-thought")
    hidden: set[Kind] = set()
    tried: list[tuple[Kind, list[Message]]] = [("tool_results", history), ("messages", [user, done, user])]
    for kind, messages in tried:
        try:
            text = transcriber.draft(messages, [PROBE_TOOL] if kind == "tool_results" else [], generation=True).text
        except TemplateError:
            continue
        if "probe-one-thought" not in text or "probe-two-thought" not in text:
            hidden.add(kind)
    return frozenset(hidden)
