"""An engine that plays what it is told: for tests, examples and benchmarks of everything around an engine."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from uni_agent.engine.base import OnTokens, PromptImage, SamplingParams, TokenOutput, WeightSpan
from uni_agent.errors import ConfigError, ContextLengthError, ModelError
from uni_agent.types import Media


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One generation as it will be played.

    `output` is token ids, or text for the backend's encoder. `stop_id` is appended unless it is None or the turn is no
    `stop`; the default -1 means the request's first stop id, if it has one. `logprobs` None gives `-0.5` for each
    token; an empty list gives none at all; one without the appended stop token gives that -0.5. `delay` is in seconds.
    `fault`: `raise` fails with ModelError, `abort` returns the output with that finish reason, `hang` never returns.

    A caller that listens is handed `piece` tokens at a time, `token_delay` seconds before each piece; one that does not
    waits as long. `fail_after` raises ModelError after so many tokens (at most all of them), as a stream that breaks.
    """

    output: str | Sequence[int] = ()
    finish_reason: Literal["stop", "length", "abort"] = "stop"
    stop_id: int | None = -1
    logprobs: Sequence[float] | None = None
    delay: float = 0.0
    fault: Literal["raise", "abort", "hang"] | None = None
    weight_version: str | None = None
    piece: int = 1
    token_delay: float = 0.0
    fail_after: int | None = None


Script = Sequence[ScriptedTurn | str | Sequence[int]]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call that the backend received."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    media: tuple[Media, ...] = ()


@dataclass(slots=True)
class _Position:
    """Where a script stands: the next turn, and the turns that cancelled calls gave back."""

    next: int = 0
    given_back: list[int] = field(default_factory=list[int])

    def take(self) -> int:
        if self.given_back:
            return heapq.heappop(self.given_back)
        self.next += 1
        return self.next - 1

    def give_back(self, index: int) -> None:
        heapq.heappush(self.given_back, index)


class ScriptedBackend:
    """Plays `script` to each request id from its start, or the script that `scripts` has for that id.

    With `shared` all request ids take their turns from the one `script`, in the order in which they arrive, and
    `release` does not rewind it. A turn is a ScriptedTurn, a text or token ids. A cancelled call gives its turn back; a
    turn that raises or hangs is used up: a retry meets the next one. Past the end: ModelError, or from the start again
    when `repeat`. `encode` turns text into ids; it is needed when a script holds text. Outputs are cut to `max_tokens`
    and the window. `calls` lists what was received and `released` the ids let go of, unless `record` is off. State per
    id is dropped at `release`.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        scripts: Mapping[str, Script] | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        repeat: bool = False,
        shared: bool = False,
        max_context: int | None = None,
        record: bool = True,
        reads_media: bool = True,
    ) -> None:
        if shared and scripts:
            raise ConfigError("the scripted engine plays either one shared script or a script for each id")
        self._encode = encode
        self._script = [self._turn(turn) for turn in script]
        self._scripts = {key: [self._turn(turn) for turn in turns] for key, turns in (scripts or {}).items()}
        self._repeat = repeat
        self._shared = shared
        self._max_context = max_context
        self._record = record
        self._reads_media = reads_media
        self._positions: dict[str, _Position] = {}
        self.calls: list[ScriptedCall] = []
        self.released: list[str] = []
        self.started = False

    def _turn(self, raw: ScriptedTurn | str | Sequence[int]) -> ScriptedTurn:
        turn = raw if isinstance(raw, ScriptedTurn) else ScriptedTurn(raw)
        if not isinstance(turn.output, str):
            return turn
        if self._encode is None:
            raise ConfigError(f"the script holds the text {turn.output!r}: give an `encode` that turns it into ids")
        return replace(turn, output=tuple(self._encode(turn.output)))

    @property
    def max_context(self) -> int | None:
        """The window that was given, or None."""
        return self._max_context

    async def start(self) -> None:
        """Accept calls."""
        self.started = True

    @property
    def reads_media(self) -> bool:
        """True unless `reads_media=False` was given: images are taken and listed in `calls`."""
        return self._reads_media

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        media: Sequence[PromptImage] = (),
    ) -> TokenOutput:
        """The next turn of the id's script. Raises ModelError past its end, ContextLengthError for a full window."""
        if not self.started:
            raise ModelError("the scripted engine is not started")
        if self._record:
            self.calls.append(ScriptedCall(request_id, list(prompt_ids), sampling, tuple(m.media for m in media)))
        length = len(prompt_ids)
        if self._max_context is not None and length >= self._max_context:
            raise ContextLengthError(f"prompt of {length} tokens, context window of {self._max_context}")
        position = self._positions.setdefault("" if self._shared else request_id, _Position())
        index = position.take()
        turn = self._at(request_id, index)
        try:
            if turn.delay:
                await asyncio.sleep(turn.delay)
            if turn.fault == "hang":
                await asyncio.get_running_loop().create_future()
            if turn.fault == "raise":
                raise ModelError(f"scripted fault in turn {index} of {request_id!r}")
            return await _played(turn, self._output(turn, length, sampling), on_tokens)
        except asyncio.CancelledError:
            if turn.fault != "hang":  # whoever gave up on it would meet it for ever
                position.give_back(index)
            raise

    def _at(self, request_id: str, index: int) -> ScriptedTurn:
        script = self._scripts.get(request_id, self._script)
        if script and self._repeat:
            return script[index % len(script)]
        if index >= len(script):
            raise ModelError(f"the script of {request_id!r} ends after {len(script)} turns")
        return script[index]

    def _output(self, turn: ScriptedTurn, prompt_length: int, sampling: SamplingParams) -> TokenOutput:
        ids = list(turn.output if not isinstance(turn.output, str) else ())
        reason = "abort" if turn.fault == "abort" else turn.finish_reason
        stop_id = turn.stop_id
        if stop_id == -1:
            stop_id = sampling.stop_token_ids[0] if sampling.stop_token_ids else None
        if reason == "stop" and stop_id is not None and ids[-1:] != [stop_id]:
            ids.append(stop_id)
        room = None if self._max_context is None else self._max_context - prompt_length
        limits = [limit for limit in (sampling.max_tokens, room) if limit is not None]
        if limits and len(ids) > min(limits):
            ids, reason = ids[: min(limits)], "length"
        logprobs = None if turn.logprobs is not None and not turn.logprobs else [-0.5] * len(ids)
        if turn.logprobs:
            given = list(turn.logprobs[: len(ids)])
            logprobs = [*given, -0.5] if len(given) == len(turn.output) == len(ids) - 1 else given
        spans = (WeightSpan(turn.weight_version, 0, len(ids)),) if turn.weight_version is not None else ()
        return TokenOutput(ids, logprobs, reason, weight_spans=spans)

    async def release(self, request_id: str) -> None:
        """Start the id's script anew; unknown ids are fine."""
        self._positions.pop(request_id, None)
        if self._record:
            self.released.append(request_id)

    async def close(self) -> None:
        """Refuse further calls."""
        self.started = False


async def _played(turn: ScriptedTurn, output: TokenOutput, on_tokens: OnTokens | None) -> TokenOutput:
    """Hand `output` over in pieces; what was handed over when `on_tokens` asked for the end, else all of it."""
    ids = output.token_ids
    fails = turn.fail_after is not None
    end = len(ids) if turn.fail_after is None else min(turn.fail_after, len(ids))
    for start in range(0, end, turn.piece):
        if on_tokens is None and not turn.token_delay:
            break
        await asyncio.sleep(turn.token_delay)  # 0 lets others run, as a wait for a real engine does
        stop = min(start + turn.piece, end)
        if on_tokens is not None and on_tokens(ids[start:stop]) and (fails or stop < len(ids)):
            return _stopped(output, stop)
    if fails:
        raise ModelError(f"scripted fault after {end} tokens")
    return output


def _stopped(output: TokenOutput, end: int) -> TokenOutput:
    """The first `end` tokens of `output`, ended on request."""
    logprobs = None if output.logprobs is None else output.logprobs[:end]
    spans = tuple(replace(span, end=min(span.end, end)) for span in output.weight_spans if span.start < end)
    return TokenOutput(output.token_ids[:end], logprobs, "stop", weight_spans=spans)
