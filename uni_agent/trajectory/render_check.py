"""Whether the tokens of a trajectory say what its messages say: the messages are what the agent saw.

The chain is compared with the chat template's full render of the messages. Where both differ, contexts have to be in
the render in their order, each turn has to be read as its message, and so has what the render has in its place. What
passes is another form of the same; what does not is trained on although no agent ever saw it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, Literal

from uni_agent.errors import UniAgentError
from uni_agent.tokens.base import ParsedOutput, Renderer
from uni_agent.tokens.cache import SpanKind
from uni_agent.tokens.compare import same_turn
from uni_agent.tokens.transcript import without_thinking
from uni_agent.trajectory.render_pieces import Piece, pieces_of, text_of, without_open_thinking
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import Message, ToolCall

DifferenceKind = Literal["spelling", "form", "text", "tools"]
RenderKind = Literal["exact", "spelling", "form", "text", "tools"]

KINDS: tuple[DifferenceKind, ...] = ("spelling", "form", "text", "tools")
"""What a trajectory can be, beside `exact`."""

_SHOWN = 40
_STOP_CHARACTERS = 64
"""What stands at the end of a turn without an end token can be a stop string and the rest of its last token."""


@dataclass(frozen=True, slots=True)
class RenderDifference:
    """Where a chain and the full render of its messages part.

    `kind`: `spelling`, the same text in other tokens · `form`, another text that means the same (thinking that the
    template leaves out of earlier turns, arguments that it writes anew, a turn that its limit cut) · `text`, the chain
    says what the messages do not say · `tools`, a tool that was offered is not in the prompt.

    `position` is that of the first differing token in `Trajectory.ids`, their length where the chain ends too early;
    `span` and `turn` (its id in the session, None in the prompt) are where that is. The texts begin there, for
    `spelling` they are the one token; both are short and escaped.
    """

    kind: DifferenceKind
    position: int
    span: Literal["prompt"] | SpanKind
    turn: int | None
    chain_text: str
    render_text: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return asdict(self)


def checked_render(
    trajectory: Trajectory, renderer: Renderer | None
) -> tuple[RenderKind | None, RenderDifference | None]:
    """The kind of a trajectory, and its difference unless it is `exact`.

    (None, None) where nothing can be compared: there is no renderer, there are no messages or no turns, or the template
    refuses them.
    """
    if renderer is None or not trajectory.messages or not trajectory.turns:
        return None, None
    try:
        found = render_difference(trajectory, renderer)
    except UniAgentError:
        return None, None
    return ("exact" if found is None else found.kind), found


def render_difference(trajectory: Trajectory, renderer: Renderer) -> RenderDifference | None:
    """The first difference of a chain from the full render of its messages with its tools; None when it is exact.

    The end token of the last turn may be missing, and so may what `fit` cut off. The cost is that of one render. Raises
    what `Renderer.initial` raises.
    """
    return _Comparison(trajectory, renderer).difference()


class _Comparison:
    """One chain (ids, text of its pieces) beside one render. `tail` is what the render has behind the chain."""

    def __init__(self, trajectory: Trajectory, renderer: Renderer) -> None:
        self.t = trajectory
        self.renderer = renderer
        self.ids = trajectory.ids
        self.rendered = renderer.initial(trajectory.messages, trajectory.tools)
        self.pieces = pieces_of(trajectory)
        self.cut = "cut" in trajectory.extra
        self.tail = None if self.cut else self._tail()

    def difference(self) -> RenderDifference | None:
        position = _common(self.ids, self.rendered)
        if self._lacks_tools():
            position = min(position, self.pieces[0].end)
            shown = self.renderer.decode(self.rendered[position : position + _SHOWN])
            return self._found("tools", position, shown)
        if self._ends(self.ids, self.rendered, self.tail, position):
            return None
        texts = [self.renderer.decode(self.ids[piece.start : piece.end]) for piece in self.pieces]
        chain, render = "".join(texts), self.renderer.decode(self.rendered)
        tail = None if self.tail is None else self.renderer.decode(self.tail)
        at = _common(chain, render)
        if self._ends(chain, render, tail, at):
            return self._found("spelling", position, self.renderer.decode(self.rendered[position : position + 1]))
        wrong = self._disagreement(texts, render, tail)
        kind, (found, other) = ("text", wrong) if wrong else ("form", (self._token_at(texts, at), render[at:]))
        if any(piece.start <= position < found <= piece.end for piece in self.pieces):
            # A token of the same piece before it, such as an end token where the render has one's letters.
            found, other = position, self.renderer.decode(self.rendered[position : position + _SHOWN])
        return self._found(kind, found, other)

    def _ends(self, chain: Sequence[Any], render: Sequence[Any], tail: Sequence[Any] | None, common: int) -> bool:
        """Whether the chain is how the render begins, with nothing but its `tail` behind."""
        return common == len(chain) and (tail is None or render[common:] == tail)

    def _tail(self) -> list[int] | None:
        """Ids that a render with a generation prompt has behind the last turn; None when they are not known."""
        if not self.ids:
            return None
        cut = self.ids[-1] not in self.renderer.end_token_ids
        try:
            return self.renderer.extension(self.t.messages, [], self.t.tools, cut=cut, chain=self.ids)
        except (UniAgentError, ValueError):  # not append-only, or no assistant message at the end
            return None

    def _lacks_tools(self) -> bool:
        if not self.t.tools or (self.cut and not any(span.kind == "sampled" for span in self.t.spans)):
            return False  # the prompt may be cut as well
        prompt = self.renderer.decode(self.ids[: self.pieces[0].end])
        return any(str(tool.get("function", tool).get("name", "")) not in prompt for tool in self.t.tools)

    def _disagreement(self, texts: Sequence[str], render: str, tail: str | None) -> tuple[int, str] | None:
        """The first token that is no other form of what the messages say, with the render's text there."""
        pairs = list(zip(self.pieces, texts, strict=True))
        if self.cut:
            pairs = pairs[:-1]  # half a turn, or half a message, says nothing
        places, lost = _located([text for piece, text in pairs if piece.context], render, tail)
        if lost is not None and (again := _located_without_thinking(pairs, render, tail)) is not None:
            places, lost = again, None
        contexts = -1
        for piece, text in pairs:
            contexts += piece.context
            if contexts == lost:
                return self._parted(piece, text, render)
            said = places[contexts] if contexts < len(places) else None
            if not piece.context and not self._agrees(piece, said):
                at = _common(text, said or "")
                return self._inside(piece, at), (said or "")[at:]
        return None

    def _parted(self, piece: Piece, text: str, render: str) -> tuple[int, str]:
        """Where a context parts from the render, in which it is not to be found: as near as both still agree."""
        before = self.renderer.decode(self.ids[: piece.start])
        if render.startswith(before):
            rest = render[len(before) :]
            at = _common(text, rest)
            return self._inside(piece, at), rest[at:]
        return piece.start, ""

    def _agrees(self, piece: Piece, said: str | None) -> bool:
        """Whether a turn reads as its message, and as `said`, what the render has in its place (None: not known)."""
        message = piece.message
        if message is None:
            return True
        if not self._reads_as(message, self.ids[piece.start : piece.stop]):
            return False
        if said is None or any(call.error for call in message.tool_calls):
            return True
        plain = replace(message, content=without_thinking(message.content), reasoning="", parts=())
        parsed = _assistant(self._parsed(without_thinking(text_of(self.renderer, said))))
        if parsed.tool_calls and not parsed.content.strip():  # some templates write calls without what was said
            plain = replace(plain, content="")
        return same_turn(plain, parsed)

    def _reads_as(self, message: Message, ids: Sequence[int]) -> bool:
        """Whether sampled ids say what a message says: as a turn with calls, or as one in which none was allowed."""
        said = _assistant(self.renderer.parse(ids, self.t.tools))
        if len(_named(message.tool_calls)) == len(message.tool_calls) < len(said.tool_calls):
            # A call without a name may have been shown as the text that it is.
            said = replace(said, content=message.content, tool_calls=_named(said.tool_calls))
        if same_turn(_unbroken(message), _unbroken(said)):
            return True
        stream = self.renderer.stream_text()
        stream.feed(text_of(self.renderer, self.renderer.decode(ids)))
        plain = _assistant(stream.finish()[1])
        if not any(id_ in self.renderer.stop_token_ids for id_ in ids[-1:]):
            said, plain = _stopped(said, message), _stopped(plain, message)
        return same_turn(_unbroken(message), _unbroken(said)) or same_turn(message, plain)

    def _parsed(self, text: str) -> ParsedOutput:
        stream = self.renderer.stream(self.t.tools)
        if getattr(stream, "thinking", False):  # the generation prompt opened what is left out here
            stream.feed("</think>")
        stream.feed(text)
        return stream.finish()[1]

    def _token_at(self, texts: Sequence[str], at: int) -> int:
        """The token with character `at` of the chain's text."""
        starts = [0, *accumulate(map(len, texts))]
        number = min(bisect_right(starts, at) - 1, len(texts) - 1)
        return self._inside(self.pieces[number], at - starts[number])

    def _inside(self, piece: Piece, at: int) -> int:
        """The token with character `at` of a piece's text."""
        count = bisect_right(
            range(piece.end - piece.start + 1),
            at,
            key=lambda count: len(self.renderer.decode(self.ids[piece.start : piece.start + count])),
        )
        return min(piece.start + max(count - 1, 0), piece.end)

    def _found(self, kind: DifferenceKind, position: int, other: str) -> RenderDifference:
        end = position + (1 if kind == "spelling" else _SHOWN)
        own = self.renderer.decode(self.ids[position:end])
        place, turn = self._place(position)
        return RenderDifference(kind, position, place, turn, _escaped(own), _escaped(other))

    def _place(self, position: int) -> tuple[Literal["prompt"] | SpanKind, int | None]:
        if position < self.pieces[0].end:
            return "prompt", None
        at = position - len(self.t.prompt_ids)
        spans = [span for span in self.t.spans if span.end > span.start]
        for span in spans:
            if at < span.end:
                return span.kind, self.t.turns[span.turn]
        return (spans[-1].kind, self.t.turns[spans[-1].turn]) if spans else ("prompt", None)


def _located(contexts: Sequence[str], render: str, tail: str | None) -> tuple[list[str | None], int | None]:
    """What `render` has behind each of the contexts (None: not known), and the number of the first that is not there.

    An open or empty thinking block at a context's end belongs to the generation prompt and is not looked for.
    """
    said: list[str | None] = []
    at = 0
    for number, context in enumerate(contexts):
        stem = without_open_thinking(context)
        found = render.find(stem, at) if number else (0 if render.startswith(stem) else -1)
        if found < 0:
            return said, number
        if number:
            said.append(render[at:found])
        at = found + len(stem)
    ending = None if tail is None else without_open_thinking(tail)
    whole = without_open_thinking(render)
    said.append(whole[at : len(whole) - len(ending)] if ending is not None and whole.endswith(ending) else None)
    return said, None


def _located_without_thinking(
    pairs: Sequence[tuple[Piece, str]], render: str, tail: str | None
) -> list[str | None] | None:
    """The same where thinking that is in the contexts may be missing in the render; None when they are not there."""
    contexts = [without_thinking(text) for piece, text in pairs if piece.context]
    said, lost = _located(contexts, without_thinking(render), None if tail is None else without_thinking(tail))
    return said if lost is None else None


def _assistant(parsed: ParsedOutput) -> Message:
    return Message("assistant", parsed.content, parsed.reasoning, parsed.tool_calls)


def _unbroken(message: Message) -> Message:
    """A message whose broken calls have no arguments: what a client was shown of those is not what was written."""
    blank: dict[str, Any] = {"arguments": {}, "raw_arguments": "", "error": None}
    return replace(
        message, tool_calls=tuple(replace(call, **blank) if call.error else call for call in message.tool_calls)
    )


def _named(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    return tuple(call for call in calls if call.name)


def _stopped(said: Message, shown: Message) -> Message:
    """What was said up to a stop string of the client, of which it is shown nothing, if `shown` is just that."""
    rest = len(said.content.strip()) - len(shown.content.strip())
    cut = 0 < rest <= _STOP_CHARACTERS and said.content.strip().startswith(shown.content.strip())
    return replace(said, content=shown.content) if cut else said


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many items both begin with."""
    if a == b[: len(a)]:
        return len(a)
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _escaped(text: str) -> str:
    return text[:_SHOWN].encode("unicode_escape").decode("ascii")
