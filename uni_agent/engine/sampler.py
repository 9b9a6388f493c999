"""One generation above an engine: its deadline, its retries, and what an engine's `abort` means.

An engine gives up in mid-turn when new weights come in. That is never an answer: the generation goes on from what was
sampled (each token keeps its logprob and its weight version), or begins anew.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from uni_agent.engine.base import (
    OnTokens,
    PromptImage,
    SamplingBackend,
    SamplingParams,
    TokenOutput,
    WeightSpan,
    media_backend,
)
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError, UniAgentError, boundary

OnDrop = Callable[[str, int], None]
"""Takes a reason and how many sampled tokens were lost to it: `aborted`, `failed`, `timeout` or `cancelled`."""
OnAbort = Literal["continue", "restart"]
_MOST_WAIT = 10.0


@dataclass(frozen=True, slots=True)
class Sampling:
    """A whole generation. `dropped` maps a reason to the sampled tokens that are not in `output`; usually empty."""

    output: TokenOutput
    dropped: dict[str, int]


async def sample(
    backend: SamplingBackend,
    request_id: str,
    prompt_ids: Sequence[int],
    sampling: SamplingParams,
    *,
    timeout: float,
    retries: int,
    backoff: float = 0.2,
    on_tokens: OnTokens | None = None,
    on_abort: OnAbort = "continue",
    on_drop: OnDrop | None = None,
    media: Sequence[PromptImage] = (),
) -> Sampling:
    """One answer to `prompt_ids`, in which `media` stand; its finish_reason is never `abort`.

    A call of the engine that fails before it handed ids over is repeated, up to `retries` times without a new token in
    between, after `backoff` seconds, twice as many each time. An abort counts as such a failure. With `on_abort`
    "continue" its ids stay and the engine is asked to go on after them, with what is left of `max_tokens` and a seed
    that follows from the first one; with "restart" they are dropped, and so they are where they came without logprobs
    (which are not made up) or with routed experts that cannot be joined. `cached_tokens` of a joined output are those
    of its first part.

    Every drop is told to `on_drop` when it happens, so that it is known also when this raises or is cancelled; it
    counts the tokens that were seen. Raises TurnTooLongError after `timeout` seconds in all, ContextLengthError and
    ConfigError as the engine does, and ModelError: after the last retry, for a stream that failed after ids were handed
    over, and for an abort that must begin anew although ids were handed over. Raises ConfigError for `media` with an
    engine that takes none.
    """
    if media and media_backend(backend) is None:
        raise ConfigError("the prompt holds images, which this engine does not take")
    prompt = prompt_ids if isinstance(prompt_ids, list) else list(prompt_ids)  # read only, so not copied
    run = _Run(backend, request_id, prompt, sampling, on_tokens, on_drop, tuple(media))
    deadline = asyncio.timeout(timeout)
    try:
        async with deadline:
            output = await run.all(retries, backoff, on_abort)
    except TimeoutError as error:
        run.drop("timeout")
        if not deadline.expired():  # the engine's own deadline
            raise
        raise TurnTooLongError(f"no answer from the engine within {timeout:g} s") from error
    except asyncio.CancelledError:
        run.drop("cancelled")
        raise
    except BaseException:
        run.drop("failed")
        raise
    return Sampling(output, run.dropped)


@dataclass(slots=True)
class _Run:
    """`parts` are the aborted outputs that stay, `handed` all ids that went to `on_tokens`."""

    backend: SamplingBackend
    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    on_tokens: OnTokens | None
    on_drop: OnDrop | None
    media: tuple[PromptImage, ...] = ()
    dropped: dict[str, int] = field(default_factory=dict[str, int])
    parts: list[TokenOutput] = field(default_factory=list[TokenOutput])
    kept: list[int] = field(default_factory=list[int])
    handed: list[int] = field(default_factory=list[int])
    seen: int = 0
    """Tokens that the call under way is known to have sampled."""
    streamed: bool = False
    """Whether the call under way has handed ids over."""
    stopped: bool = False

    async def all(self, retries: int, backoff: float, on_abort: OnAbort) -> TokenOutput:
        failures = 0
        while (done := self._ended()) is None:
            self.seen, self.streamed = 0, False
            try:
                output = await self._call()
            except (ContextLengthError, ConfigError) as error:
                if isinstance(error, ContextLengthError) and self.kept and not self.streamed:
                    return self._joined("length")  # the window filled up on the way
                raise
            except UniAgentError:
                if self.streamed or failures == retries:
                    raise
            else:
                self.seen = len(output.token_ids)
                self._check(output)
                if self.stopped and output.finish_reason == "abort":
                    output = replace(output, finish_reason="stop")
                if output.finish_reason != "abort":
                    self.parts.append(output)
                    return self._joined(output.finish_reason)
                if self._keep(output, on_abort):
                    failures = -1
                elif failures == retries:
                    raise ModelError(f"the engine aborted the call {retries + 1} times without a token that stays")
            failures += 1
            if self._ended() is None:
                await asyncio.sleep(min(backoff * 2 ** max(failures - 1, 0), _MOST_WAIT))
        return self._joined(done)

    async def _call(self) -> TokenOutput:
        sampling = self.sampling
        if self.kept:
            left = None if sampling.max_tokens is None else sampling.max_tokens - len(self.kept)
            sampling = replace(sampling, max_tokens=left, seed=_next_seed(sampling.seed, len(self.kept)))
        listener = None if self.on_tokens is None else self._listen
        with boundary(ModelError, "the engine failed"):
            prompt = [*self.prompt, *self.kept] if self.kept else self.prompt
            reader = media_backend(self.backend) if self.media else None
            if reader is not None:
                return await reader.generate(self.request_id, prompt, sampling, on_tokens=listener, media=self.media)
            return await self.backend.generate(self.request_id, prompt, sampling, on_tokens=listener)

    def _listen(self, ids: Sequence[int]) -> bool:
        """Hand `ids` over, after what an aborted part held back."""
        missing = [] if self.streamed else self.kept[len(self.handed) :]
        self.seen += len(ids)
        self.streamed = True
        for piece in (missing, ids):
            if piece and not self.stopped and self.on_tokens is not None:
                self.handed.extend(piece)
                self.stopped = self.on_tokens(piece)
        return self.stopped

    def _check(self, output: TokenOutput) -> None:
        """Raises ModelError when what was handed over is not the beginning of what came."""
        ids = output.token_ids
        if output.logprobs is not None and len(output.logprobs) != len(ids):
            raise ModelError(f"the engine returned {len(ids)} ids but {len(output.logprobs)} logprobs")
        new = self.handed[len(self.kept) :]
        if new != ids[: len(new)]:
            raise ModelError("the engine's output does not begin with the ids that it streamed")

    def _keep(self, output: TokenOutput, on_abort: OnAbort) -> bool:
        """Take an aborted output as the beginning of the answer, or drop it; whether a new token was kept."""
        if not output.token_ids:
            return False
        sampled, before = len(output.token_ids), len(self.prompt) + len(self.kept)
        rows = None if output.routed_experts is None else len(output.routed_experts)
        exact = output.logprobs is not None and rows in (None, sampled, before + sampled - 1)
        if on_abort == "continue" and exact:
            self.parts.append(output)
            self.kept.extend(output.token_ids)
            self.seen = 0
            return True
        self._lost("aborted", len(output.token_ids))
        self.seen = 0
        if self.streamed:
            raise ModelError("the engine aborted a call whose first tokens are out: it cannot begin anew")
        return False

    def _ended(self) -> Literal["stop", "length"] | None:
        """The ending that the kept ids have by themselves: the abort came after the last token."""
        if not self.kept:
            return None
        if self.kept[-1] in self.sampling.stop_token_ids or self.stopped:
            return "stop"
        length, window, most = len(self.kept), self.backend.max_context, self.sampling.max_tokens
        full = (most is not None and length >= most) or (window is not None and len(self.prompt) + length >= window)
        return "length" if full else None

    def _joined(self, finish: Literal["stop", "length", "abort"]) -> TokenOutput:
        if len(self.parts) == 1:
            return replace(self.parts[0], finish_reason=finish)
        ids: list[int] = []
        logprobs: list[float] | None = []
        spans: list[WeightSpan] = []
        for part in self.parts:
            spans += [WeightSpan(s.version, s.start + len(ids), s.end + len(ids)) for s in part.weight_spans]
            ids += part.token_ids
            logprobs = None if logprobs is None or part.logprobs is None else logprobs + part.logprobs
        first, last = self.parts[0], self.parts[-1]
        extra = {**last.extra, "parts": len(self.parts)}
        preempted = [part.extra["num_preempted"] for part in self.parts if "num_preempted" in part.extra]
        if preempted:
            extra["num_preempted"] = sum(preempted)
        experts = _joined_experts(self.parts, len(self.prompt))
        return TokenOutput(ids, logprobs, finish, tuple(spans), experts, first.cached_tokens, extra)

    def drop(self, reason: str) -> None:
        """Give up everything that was seen."""
        self._lost(reason, len(self.kept) + self.seen)

    def _lost(self, reason: str, count: int) -> None:
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count
            if self.on_drop is not None:
                self.on_drop(reason, count)


def _joined_experts(parts: Sequence[TokenOutput], prompt: int) -> Any:
    """The experts of all parts; None when one came without.

    Either each part has a row for each of its tokens, or for everything that went through the model: its prompt, with
    the parts before, and its tokens but the last. Then each token keeps the row of the part that computed it first.
    Raises ModelError for other shapes.
    """
    sampled = [part for part in parts if part.token_ids]
    experts = [part.routed_experts for part in sampled]
    if any(rows is None for rows in experts):
        return None
    lengths = [len(part.token_ids) for part in sampled]
    reaches = [prompt + sum(lengths[: i + 1]) - 1 for i in range(len(lengths))]
    rows = [len(part) for part in experts]
    if rows == reaches and rows != lengths:
        experts = [part[([0, *reaches])[i] :] for i, part in enumerate(experts)]
    elif rows != lengths:
        raise ModelError("the engine's routed experts are not those of its tokens: they cannot be joined")
    if isinstance(experts[0], list):
        return [row for part in experts for row in part]
    import numpy

    return numpy.concatenate(experts)


def _next_seed(seed: int | None, offset: int) -> int | None:
    """Another seed for each continuation: the same one would draw the same random numbers again."""
    if seed is None:
        return None
    return int.from_bytes(hashlib.blake2b(f"{seed}+{offset}".encode(), digest_size=8).digest(), "big") >> 1
