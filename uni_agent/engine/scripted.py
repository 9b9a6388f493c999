"""An engine that plays what it is told: for tests, examples and benchmarks of everything around an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from uni_agent.engine.base import SamplingParams, TokenOutput, WeightSpan
from uni_agent.errors import ConfigError, ContextLengthError, ModelError


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """One generation as it will be played.

    `output` is token ids, or text for the backend's encoder. `stop_id` is appended unless it is None or the turn is no
    `stop`; the default -1 means the request's first stop id, if it has one. `logprobs` None gives `-0.5` for each
    token; an empty list gives none at all. `delay` is in seconds. `fault`: `raise` fails with ModelError, `abort`
    returns the output with that finish reason, `hang` never returns.
    """

    output: str | Sequence[int] = ()
    finish_reason: Literal["stop", "length", "abort"] = "stop"
    stop_id: int | None = -1
    logprobs: Sequence[float] | None = None
    delay: float = 0.0
    fault: Literal["raise", "abort", "hang"] | None = None
    weight_version: str | None = None


Script = Sequence[ScriptedTurn | str | Sequence[int]]


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call that the backend received."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams


class ScriptedBackend:
    """Plays `script` to each request id from its start, or the script that `scripts` has for that id.

    A turn is a ScriptedTurn, a text or token ids. A cancelled call does not advance the script, a turn that raises
    does: a retry meets the next one. Past the end: ModelError, or from the start again when `repeat`. `encode` turns
    text into ids; it is needed when a script holds text. Outputs are cut to `max_tokens` and the window. `calls` lists
    what was received and `released` the ids let go of, unless `record` is off. State per id is dropped at `release`.
    """

    def __init__(
        self,
        script: Script = (),
        *,
        scripts: Mapping[str, Script] | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        repeat: bool = False,
        max_context: int | None = None,
        record: bool = True,
    ) -> None:
        self._encode = encode
        self._script = [self._turn(turn) for turn in script]
        self._scripts = {key: [self._turn(turn) for turn in turns] for key, turns in (scripts or {}).items()}
        self._repeat = repeat
        self._max_context = max_context
        self._record = record
        self._next: dict[str, int] = {}
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

    async def generate(self, request_id: str, prompt_ids: list[int], sampling: SamplingParams) -> TokenOutput:
        """The next turn of the id's script. Raises ModelError past its end, ContextLengthError for a full window."""
        if not self.started:
            raise ModelError("the scripted engine is not started")
        if self._record:
            self.calls.append(ScriptedCall(request_id, list(prompt_ids), sampling))
        if self._max_context is not None and len(prompt_ids) >= self._max_context:
            raise ContextLengthError(f"prompt of {len(prompt_ids)} tokens, context window of {self._max_context}")
        index = self._next.get(request_id, 0)
        turn = self._at(request_id, index)
        if turn.delay:
            await asyncio.sleep(turn.delay)
        if turn.fault == "hang":
            await asyncio.get_running_loop().create_future()
        self._next[request_id] = index + 1
        if turn.fault == "raise":
            raise ModelError(f"scripted fault in turn {index} of {request_id!r}")
        return self._output(turn, len(prompt_ids), sampling)

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
        logprobs = [-0.5] * len(ids) if turn.logprobs is None else list(turn.logprobs[: len(ids)]) or None
        spans = (WeightSpan(turn.weight_version, 0, len(ids)),) if turn.weight_version is not None else ()
        return TokenOutput(ids, logprobs, reason, weight_spans=spans)

    async def release(self, request_id: str) -> None:
        """Start the id's script anew; unknown ids are fine."""
        self._next.pop(request_id, None)
        if self._record:
            self.released.append(request_id)

    async def close(self) -> None:
        """Refuse further calls."""
        self.started = False
