"""A chain as contexts and turns in alternation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from uni_agent.tokens.base import Renderer
from uni_agent.tokens.cache import Span
from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import Message

_OPEN_THINKING = re.compile(r"<think>\s*(?:</think>\s*)?\Z")


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens [`start`, `end`) of `Trajectory.ids`: a `context`, or a turn.

    Those of a turn that were sampled end at `stop`: behind are the tokens that close it. `message` is what the agent
    saw of a turn, None where that is not known.
    """

    context: bool
    start: int
    stop: int
    end: int
    message: Message | None = None


def pieces_of(t: Trajectory) -> list[Piece]:
    """The pieces of a chain, a context first; they tile its ids. Turns that another trajectory trains are turns too."""
    prompt = len(t.prompt_ids)
    messages = _messages(t)
    own: dict[int, list[Span]] = {}
    for span in t.spans:
        own.setdefault(span.turn, []).append(span)
    pieces: list[Piece] = []
    at = 0
    for turn, spans in sorted(own.items()):
        body, sure = _body(spans, first=turn == 0, last=turn == len(t.turns) - 1)
        behind = [span for span in spans if span.start >= body.end and span.kind == "closing"]
        start, stop = prompt + body.start, prompt + body.end
        end = prompt + behind[-1].end if behind else stop
        pieces.append(Piece(True, at, start, start))
        pieces.append(Piece(False, start, stop, end, messages.get(t.turns[turn]) if sure else None))
        at = end
    if at < prompt + len(t.response_ids) or not pieces:
        pieces.append(Piece(True, at, prompt + len(t.response_ids), prompt + len(t.response_ids)))
    return pieces


def _body(spans: list[Span], *, first: bool, last: bool) -> tuple[Span, bool]:
    """The span that is the turn itself among those that came in with it, and whether that is sure.

    In front of it can be what `fit` moved out of the prompt, behind it what closes it and what leads to the next turn.
    """
    sampled = next((span for span in spans if span.kind == "sampled"), None)
    if sampled is not None:
        return sampled, True
    observed = [span for span in spans if span.kind == "observation"]
    if first and len(observed) > (1 if last else 2):
        return observed[1], True
    return (observed or spans)[0], not (first and last)


def without_open_thinking(text: str) -> str:
    """`text` without a thinking block at its end that is open or empty, as generation prompts have them."""
    return _OPEN_THINKING.sub("", text)


def text_of(renderer: Renderer, text: str) -> str:
    """The text of a turn without what ends it."""
    bare = text.rstrip()
    ends = (renderer.decode([id_]) for id_ in renderer.stop_token_ids)
    return next((bare.removesuffix(end) for end in ends if end and bare.endswith(end)), text)


def _messages(t: Trajectory) -> dict[int, Message]:
    """Turn → its message; without `message_turns` the last assistant messages are those of the turns."""
    if t.message_turns:
        pairs = zip(t.message_turns, t.messages, strict=True)
        return {turn: message for turn, message in pairs if turn is not None}
    said = [message for message in t.messages if message.role == "assistant"]
    return dict(zip(t.turns, said[-len(t.turns) :], strict=False)) if len(said) >= len(t.turns) else {}
