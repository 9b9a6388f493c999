"""One turn from request to commit: rendered, sampled, read, kept, and only then answered."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from uni_agent.engine.base import PromptImage, SamplingBackend, SamplingParams
from uni_agent.engine.sampler import OnAbort, sample
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError
from uni_agent.gateway.canonical import FinishedTurn, FinishReason, ModelRequest, TurnHead
from uni_agent.gateway.codec import MessageCodec, Said, TurnReading
from uni_agent.gateway.config import GatewayConfig, SamplingOverrides
from uni_agent.gateway.errors import ErrorKind, GatewayError, unsupported
from uni_agent.gateway.metrics import GatewayMetrics
from uni_agent.gateway.pace import Pace
from uni_agent.gateway.session import Phase, Session
from uni_agent.tokens.base import ParserEvent
from uni_agent.tokens.graph import GraphClosedError, Intent, Prepared, Turn
from uni_agent.types import Usage

_T = TypeVar("_T")

Emit = Callable[[TurnHead | ParserEvent], None]
"""Takes what a streaming client is shown, as soon as it is certain; the head comes first."""

Recorder = Callable[[Session, Turn, FinishedTurn, ModelRequest, Mapping[str, int]], None]
"""Keeps a committed turn before it is answered, with what was sampled for it and is no part of it (reason → tokens)."""

HEAVY_CHARACTERS = 64_000
"""Requests above this are read and rendered on a thread: the event loop belongs to all sessions."""

MOST_STOPS = 64
MOST_STOP_CHARACTERS = 4096
"""Stop strings are looked for at every token, on the event loop."""

_NO_CAP = 1 << 31


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """How turns are sampled when neither client nor session says otherwise."""

    max_context: int | None
    timeout: float
    retries: int
    on_abort: OnAbort
    sampling: SamplingParams = SamplingParams()

    @classmethod
    def of(cls, config: GatewayConfig, sampling: SamplingParams | None = None) -> TurnPolicy:
        """The policy that a configuration states."""
        return cls(config.max_context, config.timeout, config.retries, config.on_abort, sampling or SamplingParams())


class TurnService:
    """Takes the turns of all sessions of a process."""

    def __init__(
        self, backend: SamplingBackend, codec: MessageCodec, policy: TurnPolicy, metrics: GatewayMetrics
    ) -> None:
        self.backend = backend
        self.codec = codec
        self.policy = policy
        self.metrics = metrics
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="gateway")
        self._pace = Pace()

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and answer together; None when nothing limits them."""
        limits = [n for n in (self.policy.max_context, self.backend.max_context) if n is not None]
        return min(limits, default=None)

    async def run(
        self,
        session: Session,
        request: ModelRequest,
        record: Recorder,
        *,
        scenario: str = "",
        emit: Emit | None = None,
        size: int = 0,
    ) -> list[FinishedTurn]:
        """The turns that answer `request`, committed and recorded. All or none of each.

        `size` is the request's length in characters, by which its cost is judged. Raises GatewayError; when cancelled,
        nothing is committed and what was sampled is counted as dropped.
        """
        check_supported(request)
        if request.previous_response_id:
            instructions = request.messages[: request.instructions]
            history = session.history(request.previous_response_id)
            request = replace(request, messages=(*instructions, *history, *request.messages[request.instructions :]))
        turns: list[FinishedTurn] = []
        for number in range(request.samples):
            if number:
                session.check_budget()
            intent: Intent = "resample" if number else intent_of(request)
            turns.append(await self._turn(session, request, record, intent, scenario, emit, size))
        return turns

    async def count(self, session: Session, request: ModelRequest, size: int = 0) -> int:
        """Tokens of the prompt that `request` would be sampled with; nothing is kept."""
        session.check_active()
        size = weight_of(request, size)
        with _translated():
            prepared = await self._exclusive(session, size, lambda: prepare(session, request, "auto", "count"))
        return len(prepared.prompt_ids)

    async def offload(self, size: int, work: Callable[[], _T]) -> _T:
        """`work()`, on a thread when `size` says that it takes long."""
        if size < HEAVY_CHARACTERS:
            await self._pace.turn()
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _turn(
        self,
        session: Session,
        request: ModelRequest,
        record: Recorder,
        intent: Intent,
        scenario: str,
        emit: Emit | None,
        size: int,
    ) -> FinishedTurn:
        def rendered() -> tuple[Prepared, tuple[PromptImage, ...]]:
            prepared = prepare(session, request, intent, scenario)
            return prepared, prepared.images

        started = time.perf_counter()
        size = weight_of(request, size)
        with _translated():
            prepared, images = await self._exclusive(session, size, rendered)
        head = TurnHead(secrets.token_hex(12), request.model or "model", int(time.time()), len(prepared.prompt_ids))
        params, room = self._params(session, request, len(prepared.prompt_ids))
        reading = self.codec.reading(request, prepared.tools, head.id, prepared.renderer)
        if emit is not None:
            emit(head)
        asked = time.perf_counter()
        said = await self._sampled(session, prepared, images, params, reading, request, emit)
        answered = time.perf_counter()
        finished = await self._committed(session, prepared, said, head, request, room, record)
        if emit is not None:
            for event in said.events:
                emit(event)
        done = time.perf_counter()
        self.metrics.turn_seconds.observe(done - started)
        self.metrics.own_seconds.observe(done - answered + asked - started)
        return finished

    async def _sampled(
        self,
        session: Session,
        prepared: Prepared,
        images: tuple[PromptImage, ...],
        params: SamplingParams,
        reading: TurnReading,
        request: ModelRequest,
        emit: Emit | None,
    ) -> Said:
        def on_tokens(ids: Sequence[int]) -> bool:
            for event in reading.push(ids):
                if emit is not None:
                    emit(event)
            return reading.over

        def on_drop(reason: str, count: int) -> None:
            self.drop(session, ended_reason(session, reason), count)

        policy = self.policy
        listening = emit is not None or bool(request.stop) or not request.tool_choice.parallel
        with _translated():
            sampling = await sample(
                self.backend,
                session.id,
                prepared.prompt_ids,
                params,
                timeout=policy.timeout,
                retries=policy.retries,
                on_tokens=on_tokens if listening else None,
                on_abort=policy.on_abort,
                on_drop=on_drop,
                media=images,
            )
        output = sampling.output
        try:
            said = await self.offload(40 * len(output.token_ids), lambda: reading.finish(output))
        except BaseException as error:
            self.drop(
                session, "cancelled" if isinstance(error, asyncio.CancelledError) else "failed", len(output.token_ids)
            )
            raise
        return said

    async def _committed(
        self,
        session: Session,
        prepared: Prepared,
        said: Said,
        head: TurnHead,
        request: ModelRequest,
        room: int,
        record: Recorder,
    ) -> FinishedTurn:
        output = said.output
        finished = FinishedTurn(
            head=head,
            message=said.message,
            finish_reason=finish_reason(said, room),
            usage=Usage(len(prepared.prompt_ids), len(output.token_ids), min(output.cached_tokens, head.prompt_tokens)),
            reasoning_tokens=self._reasoning_tokens(said),
            stop_sequence=said.stop_sequence,
            prompt_ids=prepared.prompt_ids if request.return_tokens else [],
            token_ids=output.token_ids,
            token_texts=[self.codec.renderer.decode([i]) for i in output.token_ids] if request.return_tokens else [],
            logprobs=output.logprobs,
        )
        sampled = len(output.token_ids) + sum(said.dropped.values())
        try:
            async with session.lock:
                with _translated():
                    turn = session.graph.commit(prepared, output, said.message)
                sampled = 0
                for reason, count in said.dropped.items():
                    self._count_drop(session, reason, count)
                session.sampled += len(output.token_ids)
                self._observe(prepared, turn)
                record(session, turn, finished, request, said.dropped)
        except BaseException:
            self.drop(session, ended_reason(session, "uncommitted"), sampled)
            raise
        return finished

    def drop(self, session: Session, reason: str, count: int) -> None:
        """Account for sampled tokens that no turn holds."""
        if count:
            self._count_drop(session, reason, count)
            session.on_drop(reason, count)

    def _count_drop(self, session: Session, reason: str, count: int) -> None:
        session.graph.record_drop(reason, count)
        session.sampled += count
        self.metrics.dropped.labels(reason).inc(count)

    async def _exclusive(self, session: Session, size: int, work: Callable[[], _T]) -> _T:
        """`work()` while nothing else touches the session's graph, also when the caller is cancelled meanwhile."""
        async with session.lock:
            if size < HEAVY_CHARACTERS:
                await self._pace.turn()
                return work()
            future = asyncio.get_running_loop().run_in_executor(self._threads, work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                await settled(future)
                raise

    def _params(self, session: Session, request: ModelRequest, prompt: int) -> tuple[SamplingParams, int]:
        """The sampling of one turn, and the tokens that there is room for. Raises GatewayError for a full window."""
        limit = self.max_context
        room = _NO_CAP if limit is None else limit - prompt
        if limit is not None and room <= 0:
            session.limit_hit = "context"
            raise context_error(prompt, limit)
        fixed = session.settings.sampling
        values: dict[str, Any] = {**request.sampling, **fixed_values(fixed)}
        caps = [n for n in (request.max_tokens, fixed.max_tokens, self.policy.sampling.max_tokens) if n is not None]
        if fixed.seed is not None:
            values["seed"] = _turn_seed(fixed.seed, session.id, len(session.graph.turns))
        most = min([*caps, room])
        params = replace(
            self.policy.sampling,
            **values,
            max_tokens=None if most == _NO_CAP else most,
            stop_token_ids=self.codec.renderer.stop_token_ids,
        )
        return params, room

    def _reasoning_tokens(self, said: Said) -> int:
        if not said.message.reasoning:
            return 0
        decoder, text = self.codec.renderer.decoder(), ""
        for count, id_ in enumerate(said.output.token_ids, 1):
            text = (text + decoder.push([id_]))[-32:]
            if "</think>" in text:
                return count
        return len(said.output.token_ids)

    def _observe(self, prepared: Prepared, turn: Turn) -> None:
        self.metrics.turns.labels(turn.drift).inc()
        self.metrics.sampled.inc(len(turn.ids))
        self.metrics.prompt.labels("reused").inc(prepared.reused)
        self.metrics.prompt.labels("rendered").inc(len(prepared.prompt_ids) - prepared.reused)
        if prepared.rerendered:
            self.metrics.rerendered.inc()


async def settled(future: asyncio.Future[Any]) -> None:
    """Wait until `future` is done, also when the caller is cancelled once more meanwhile."""
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue


def weight_of(request: ModelRequest, size: int) -> int:
    """The size by which the cost of `request` is judged: images are decoded, which takes long whatever their size."""
    return max(size, HEAVY_CHARACTERS) if any(message.parts for message in request.messages) else size


def prepare(session: Session, request: ModelRequest, intent: Intent, scenario: str) -> Prepared:
    """The prompt of `request` in the session's graph."""
    return session.graph.prepare(
        request.messages,
        request.tools,
        template_kwargs=request.template_kwargs or None,
        intent=intent,
        tag=scenario,
    )


def check_supported(request: ModelRequest) -> None:
    """Raises GatewayError for a wish that no engine here can grant."""
    choice = request.tool_choice
    if choice.mode in ("required", "named"):
        asked = repr(request.wire.body.get("tool_choice"))[:200]
        raise unsupported(
            f"tool_choice: {asked} ({choice.mode}) cannot be enforced: the engine samples freely. Use 'auto' or 'none'",
            "tool_choice",
        )
    if len(request.stop) > MOST_STOPS or sum(map(len, request.stop)) > MOST_STOP_CHARACTERS:
        raise unsupported(
            f"stop: {len(request.stop)} strings of {sum(map(len, request.stop))} characters; at most {MOST_STOPS} of "
            f"{MOST_STOP_CHARACTERS} together are looked for",
            "stop",
        )


def intent_of(request: ModelRequest) -> Intent:
    """Why a request that was seen before comes again, where its client says so."""
    wished = request.wire.headers.get("x-uni-agent-intent", "")
    if wished in ("retry", "resample"):
        return wished
    count = request.wire.headers.get("x-stainless-retry-count", "0")
    return "retry" if count.isdecimal() and int(count[:9]) > 0 else "auto"


def finish_reason(said: Said, room: int) -> FinishReason:
    """Why the turn ended, as far as a client can tell."""
    if said.stop_sequence:
        return "stop_sequence"
    if said.output.finish_reason == "length":
        return "context" if len(said.output.token_ids) >= room else "length"
    return "tool_calls" if said.message.tool_calls else "stop"


def ended_reason(session: Session, reason: str) -> str:
    """Why tokens were lost: a cancelled turn was left by its client, unless the session ended."""
    if session.phase is not Phase.ACTIVE:
        return session.phase.value
    return "disconnected" if reason == "cancelled" else reason


def context_error(prompt: int, limit: int) -> GatewayError:
    """A prompt that leaves no room for a token."""
    return GatewayError(
        ErrorKind.CONTEXT_LENGTH,
        f"the prompt has {prompt} tokens, the context window {limit}",
        details={"prompt_tokens": prompt, "limit": limit},
    )


def fixed_values(fixed: SamplingOverrides) -> dict[str, float | int]:
    """What the trainer fixes, under the names of SamplingParams."""
    names: tuple[Literal["temperature", "top_p", "top_k", "min_p", "repetition_penalty"], ...] = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
    )
    return {name: value for name in names if (value := getattr(fixed, name)) is not None}


def _turn_seed(seed: int, session_id: str, turn: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{session_id}/{turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


class _translated:
    """Turns errors of the graph and the engine into what a client is told."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        del kind, trace
        told = told_error(error) if isinstance(error, Exception) else None
        if told is not None:
            raise told from error


_KINDS: tuple[tuple[type[Exception], ErrorKind], ...] = (
    (GraphClosedError, ErrorKind.GONE),
    (ContextLengthError, ErrorKind.CONTEXT_LENGTH),
    (TurnTooLongError, ErrorKind.TIMEOUT),
    (ModelError, ErrorKind.ENGINE),
    (ConfigError, ErrorKind.INVALID_REQUEST),
    (ValueError, ErrorKind.INVALID_REQUEST),
    (RecursionError, ErrorKind.INVALID_REQUEST),  # a history that nests deeper than any template can walk
)


def told_error(error: Exception) -> GatewayError | None:
    """The client's view of `error`; None for what is told already, and for a fault of the gateway itself."""
    if isinstance(error, GatewayError):
        return None
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), None)
    return None if kind is None else GatewayError(kind, str(error))
