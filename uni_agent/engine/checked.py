"""What a server says it sampled, and the checks that make it a record: nothing in it is made up or lost."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from uni_agent.engine.base import PromptImage, SamplingParams, WeightSpan
from uni_agent.engine.streaming import Handover
from uni_agent.errors import ContextLengthError, MissingExtraError, ModelError, boundary


@dataclass(frozen=True, slots=True)
class GenerationCall:
    """One call on one replica. `call_id` is unique, and is what the server knows the call by.

    `handover` is None when nobody listens: then the whole answer is asked for at once. `media` are the prompt's images.
    """

    call_id: str
    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    max_tokens: int
    handover: Handover | None = None
    media: tuple[PromptImage, ...] = ()


def token_limit(prompt: Sequence[int], sampling: SamplingParams, window: int | None, engine: str) -> int:
    """New tokens to ask for: never left to an engine's default, of which 16 and 128 are usual.

    Raises ContextLengthError when `prompt` fills the `window`, ModelError for an empty prompt, a `max_tokens` below 1,
    and when neither it nor a window is known; `engine` is who should have named one.
    """
    if not prompt:
        raise ModelError("the prompt is empty")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise ModelError(f"max_tokens is {sampling.max_tokens}, at least 1 is needed")
    if window is not None and len(prompt) >= window:
        raise ContextLengthError(f"prompt of {len(prompt)} tokens, context window of {window}")
    room = None if window is None else window - len(prompt)
    limits = [limit for limit in (sampling.max_tokens, room) if limit is not None]
    if not limits:
        raise ModelError(f"max_tokens is needed: {engine} names no context window")
    return min(limits)


FinishReason = Literal["stop", "length", "abort"]


def finish_reason(raw: Any) -> FinishReason:
    """The reason as the server wrote it. Raises ModelError for any other: an unknown ending is no answer."""
    if raw in ("stop", "length", "abort"):
        return raw
    raise ModelError(f"the server ends with finish_reason {raw!r}, which is none of stop, length, abort")


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a server says it sampled. `logprob_ids` are the ids that stand beside `logprobs`, where it names them.

    `stop_id` is the stop token that it says it met; `prompt_tokens` and `completion_tokens` are its own counts. None is
    what it does not tell. `requested`: it did not end by itself but on request, with `finish` "stop".
    """

    ids: list[Any] | None
    logprob_ids: list[Any] | None
    logprobs: list[Any] | None
    finish: FinishReason
    stop_id: Any = None
    prompt_tokens: Any = None
    completion_tokens: Any = None
    requested: bool = False

    def checked(self, call: GenerationCall) -> tuple[list[int], list[float] | None]:
        """The ids and one logprob for each. Raises ModelError unless all of it agrees: nothing is made up.

        A server may cut the stop token from its text ids and yet list it beside the logprobs: then it is taken from
        there. An aborted call may come without logprobs.
        """
        if self.prompt_tokens is not None and self.prompt_tokens != len(call.prompt_ids):
            raise ModelError(f"the server read {self.prompt_tokens} prompt tokens, {len(call.prompt_ids)} were sent")
        ids = self.agreed()
        if self.completion_tokens is not None and self.completion_tokens != len(ids):
            raise ModelError(f"the server sampled {self.completion_tokens} tokens but returned {len(ids)} ids")
        if self.finish == "abort" and self.logprobs is None:
            return ids, None
        logprobs = _logprobs(self.logprobs, len(ids))
        if self.finish != "abort":
            self._check_end(ids, call)
        return ids, logprobs

    def agreed(self) -> list[int]:
        """The ids, the same by both accounts. Raises ModelError."""
        return _ids(self._agreed())

    def _agreed(self) -> list[Any]:
        ids, beside = self.ids, self.logprob_ids
        if ids is None and beside is None:
            if self.finish == "abort":
                return []
            raise ModelError("the server returned no token ids")
        if ids is None or beside is None or ids == beside:
            return beside if ids is None else ids  # pyright: ignore[reportReturnType] - one of them is there
        if self.finish == "stop" and ids == beside[:-1]:
            return beside
        raise ModelError(f"the server's {len(ids)} token ids are not the {len(beside)} that its logprobs stand beside")

    def _check_end(self, ids: list[int], call: GenerationCall) -> None:
        if isinstance(self.stop_id, int) and ids[-1:] != [self.stop_id]:
            raise ModelError(f"the server stopped at token {self.stop_id} but left it out of the ids it returned")
        if not ids and not self.requested:
            raise ModelError(f"the server ended with {self.finish!r} but returned no token")
        if len(ids) > call.max_tokens:
            raise ModelError(f"the server returned {len(ids)} tokens, {call.max_tokens} were asked for")
        stops = frozenset(call.sampling.stop_token_ids)
        if not stops.isdisjoint(ids[:-1]):
            raise ModelError("the server sampled on past a stop token")


def _ids(raw: Sequence[Any]) -> list[int]:
    if not all(type(token) is int and token >= 0 for token in raw):
        raise ModelError("the server's token ids are not all whole numbers")
    return list(raw)


def _logprobs(raw: Sequence[Any] | None, count: int) -> list[float]:
    if raw is None:
        raise ModelError("the server returned no logprobs")
    if len(raw) != count:
        raise ModelError(f"the server returned {count} token ids but {len(raw)} logprobs")
    if not all(type(value) in (int, float) and math.isfinite(value) for value in raw):
        raise ModelError("the server's logprobs are not all numbers")
    return [float(value) for value in raw]


def weight_spans(raw: Any, length: int, *, cut: bool = False) -> tuple[WeightSpan, ...]:
    """The spans of a list of `{version, start, end}` over `length` tokens; empty when the server tells none.

    With `cut` they may reach further and are cut to the length. Raises ModelError for spans that cannot be.
    """
    spans: list[WeightSpan] = []
    for item in map(mapping, listing(raw) or []):
        start, end = item.get("start"), item.get("end")
        if cut and type(start) is int and type(end) is int:
            start, end = min(start, length), min(end, length)
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= length:
            raise ModelError(f"the server's weight_versions name tokens {start!r} to {end!r} of {length}")
        if start < end:
            spans.append(WeightSpan(str(item.get("version")), start, end))
    return tuple(spans)


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}  # pyright: ignore[reportUnknownVariableType] - JSON


def listing(value: Any) -> list[Any] | None:
    """`value` if it is a JSON array, else None."""
    return value if isinstance(value, list) else None  # pyright: ignore[reportUnknownVariableType] - JSON


def count(value: Any) -> int:
    """`value` if it is a count, else 0."""
    return value if type(value) is int and value > 0 else 0


def decode_npy(text: str) -> Any:
    """The array in base64 of a `.npy` file (vLLM). Raises ModelError when it is none."""
    numpy = _numpy()
    with boundary(ModelError, "the server's routed_experts cannot be read"):
        return numpy.load(io.BytesIO(base64.b64decode(text, validate=True)), allow_pickle=False)


def decode_int32(text: str, layers: int, top_k: int) -> Any:
    """The array [rows, `layers`, `top_k`] in base64 of little-endian int32 (SGLang). Raises ModelError."""
    numpy = _numpy()
    with boundary(ModelError, f"the server's routed_experts are not rows of {layers} x {top_k}"):
        flat = numpy.frombuffer(base64.b64decode(text, validate=True), dtype="<i4")
        return flat.reshape(-1, layers, top_k)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtraError("numpy", "embedded", "routed_experts") from error
    return numpy
