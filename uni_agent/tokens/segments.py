"""Which tokens of a sampled turn are thought, which are action."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum, auto
from typing import Literal

from uni_agent.tokens.base import Renderer, StreamingParse, ToolSchema

SegmentKind = Literal["thought", "action", "text"]
Segment = tuple[SegmentKind, int, int]
"""Kind, and the half-open range of tokens."""

_TAG = re.compile(r"<[^<>\n]{0,220}>")


def turn_segments(renderer: Renderer, ids: Sequence[int], tools: Sequence[ToolSchema] = ()) -> list[Segment]:
    """Segments that tile [0, len(ids)) of one sampled turn, in order; neighbours differ in kind. [] for no tokens.

    `thought`: thinking with its tags, and what is written before the first call · `action`: a call from its first tag
    to its last, broken ones too, with white space behind it · `text`: the rest, such as the answer of a turn without a
    call. A token that spans a border belongs to the segment in which it begins, a stop token to the last one. `tools`
    are what the model was offered; some formats tell a call by its name.

    What is a call and what is thinking is said by the renderer's own parser, read once; one that does not show where it
    stands (`at_content`) leaves the whole turn `text`.
    """
    if not ids:
        return []
    stopped = ids[-1] in renderer.stop_token_ids
    decoder = renderer.decoder()
    starts: list[int] = []
    pieces: list[str] = []
    length = 0
    for id_ in ids[: len(ids) - stopped]:
        starts.append(length)
        pieces.append(decoder.push([id_]))
        length += len(pieces[-1])
    pieces.append(decoder.finish())
    kinds = _kinds("".join(pieces), renderer.stream(tools))
    segments: list[Segment] = []
    begins = [begin for _, begin in kinds]
    for token, start in enumerate(starts):
        kind = kinds[bisect_right(begins, start) - 1][0] if kinds else "text"
        _extend(segments, kind, token)
    if stopped:
        _extend(segments, segments[-1][0] if segments else "text", len(ids) - 1)
    return segments


def _extend(segments: list[Segment], kind: SegmentKind, token: int) -> None:
    if segments and segments[-1][0] == kind:
        segments[-1] = (kind, segments[-1][1], token + 1)
    else:
        segments.append((kind, token, token + 1))


class _At(Enum):
    THINKING = auto()
    CONTENT = auto()
    CALL = auto()


def _kinds(text: str, stream: StreamingParse) -> list[tuple[SegmentKind, int]]:
    """(kind, where it begins) of the pieces of `text`."""
    pieces = _read(text, stream)
    calls = [i for i, (at, _, _) in enumerate(pieces) if at is _At.CALL]
    kinds: list[tuple[SegmentKind, int]] = []
    for i, (at, start, _) in enumerate(pieces):
        if at is _At.CALL:
            kinds.append(("action", start))
        elif at is _At.THINKING or (calls and i < calls[0]):
            kinds.append(("thought", start))
        else:
            kinds.append(("text", start))
    return kinds


_Piece = tuple[_At, int, int]


def _read(text: str, stream: StreamingParse) -> list[_Piece]:
    """(what it is, start, end) of each tag of `text` and of each text between two tags."""
    pieces: list[_Piece] = []
    at = _where(stream)
    for start, end in _cut(text):
        stream.feed(text[start:end])
        before, at = at, _where(stream)
        tag = _TAG.fullmatch(text, start, end) is not None
        closing = tag and text.startswith("</", start)
        kind = at
        if _At.THINKING in (before, at):
            kind = _At.THINKING
        elif before is _At.CALL and at is _At.CONTENT:
            kind = _At.CALL if tag else _At.CONTENT
            if not tag:
                _unquote(text, pieces)
        elif before is _At.CONTENT and at is _At.CALL and closing:
            _reopen(pieces)
        elif pieces and pieces[-1][0] is _At.CALL and (closing or text[start:end].isspace()):
            kind = _At.CALL
        pieces.append((kind, start, end))
    return pieces


def _reopen(pieces: list[_Piece]) -> None:
    """The last call had not ended yet: what seemed to follow is in it."""
    i = len(pieces) - 1
    while i >= 0 and pieces[i][0] is _At.CONTENT:
        pieces[i] = (_At.CALL, *pieces[i][1:])
        i -= 1


def _unquote(text: str, pieces: list[_Piece]) -> None:
    """The tag that is the last piece is quoted and began no call, nor did such tags in front of it."""
    _, start, end = pieces[-1]
    opener = text[start:end]
    first = i = len(pieces) - 1
    while i >= 0 and pieces[i][0] is _At.CALL:
        own = text[pieces[i][1] : pieces[i][2]]
        if own == opener:
            first = i
        elif not own.isspace():
            break
        i -= 1
    pieces[first:] = [(_At.CONTENT, *piece[1:]) for piece in pieces[first:]]


def _where(stream: StreamingParse) -> _At:
    if getattr(stream, "thinking", False):
        return _At.THINKING
    return _At.CONTENT if getattr(stream, "at_content", True) else _At.CALL


def _cut(text: str) -> list[tuple[int, int]]:
    """(start, end) of the tags in `text` and of what is between them."""
    ranges: list[tuple[int, int]] = []
    position = 0
    for match in _TAG.finditer(text):
        if match.start() > position:
            ranges.append((position, match.start()))
        ranges.append((match.start(), match.end()))
        position = match.end()
    if position < len(text):
        ranges.append((position, len(text)))
    return ranges
