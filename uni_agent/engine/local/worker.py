"""The thread that owns the model: continuous batching, one decode step for all running requests at a time."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from uni_agent.engine.base import SamplingParams, TokenOutput
from uni_agent.engine.local.kv import BatchKv
from uni_agent.engine.local.loading import LocalModel
from uni_agent.engine.local.sampling import Draw, generator_for, sample
from uni_agent.engine.local.sessions import Session, SessionStore
from uni_agent.errors import ModelError

_LOG = logging.getLogger(__name__)
_PREFILL_TOKENS = 1024  # of one pass, padding included; between passes it is seen who was cancelled


@dataclass(slots=True, eq=False)
class Request:
    """One generation of at least 1 and at most `limit` tokens. `done` is called once, on the worker's thread.

    `step` is called there with each token and its logprob, before `done`. `cached` is set before the first one: prompt
    tokens that were not computed again.
    """

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    limit: int
    seed: int
    done: Callable[[TokenOutput | ModelError], None]
    step: Callable[[int, float], None] | None = None
    cached: int = 0
    cancelled: bool = False
    keep: bool = True


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A request about to begin: `session` holds its first `shared` tokens."""

    request: Request
    session: Session | None
    shared: int

    @property
    def new(self) -> int:
        """Tokens to compute, at least one."""
        return len(self.request.prompt) - self.shared


@dataclass(slots=True, eq=False)
class _Running:
    """A request in the batch: its row there is its place in `Worker._running`."""

    request: Request
    generator: torch.Generator
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])

    def draw(self) -> Draw:
        params = self.request.sampling
        seen = [*self.request.prompt, *self.ids] if params.repetition_penalty != 1.0 else ()
        return Draw(params, self.generator, seen)

    def accept(self, token: int, logprob: float) -> TokenOutput | None:
        """Take the next token; the output when it was the last one. Raises ModelError for broken logits."""
        if math.isnan(logprob):
            raise ModelError("the model gave NaN logits")
        self.ids.append(token)
        self.logprobs.append(logprob)
        if self.request.step is not None and not self.request.cancelled:
            self.request.step(token, logprob)
        stopped = token in self.request.stop_ids
        if not stopped and len(self.ids) < self.request.limit:
            return None
        reason = "stop" if stopped else "length"
        return TokenOutput(self.ids, self.logprobs, reason, cached_tokens=self.request.cached)


class Worker:
    """Runs requests on a thread of its own. All methods may be called from any thread and return at once."""

    def __init__(self, model: LocalModel, *, threads: int, max_batch: int, cache: SessionStore) -> None:
        self._model = model
        self._threads = threads
        self._max_batch = max_batch
        self._cache = cache
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._released: list[str] = []
        self._closing = False
        self._beginning: set[Request] = set()  # taken from the queue, not yet in the batch
        self._running: list[_Running] = []
        self._batch = BatchKv(model.shape)
        self._thread = threading.Thread(target=self._main, name="uni-agent-embedded-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue `request`. Raises ModelError once the worker is closed."""
        with self._wake:
            if self._closing:
                raise ModelError("the embedded engine is closed")
            self._waiting.append(request)
            self._wake.notify()

    def cancel(self, request: Request) -> None:
        """Let `request` leave the queue or the batch; its `done` is not called any more."""
        with self._wake:
            request.cancelled = True
            self._wake.notify()

    def release(self, request_id: str) -> None:
        """Drop what is cached for `request_id`, also what its running requests would leave."""
        with self._wake:
            self._released.append(request_id)
            self._wake.notify()

    def stop(self) -> None:
        """Fail everything that is queued or running, and end the thread after the step it is in."""
        with self._wake:
            self._closing = True
            self._wake.notify()

    def join(self, timeout: float) -> bool:
        """Wait for the end of the thread; whether it ended in time."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    # ------------------------------------------------------------------------------- on the worker's thread

    def _main(self) -> None:
        torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while self._wait_for_work():
                try:
                    self._drop_cancelled()
                    self._admit()
                    if self._running:
                        self._step()
                except Exception as error:  # whatever torch raises ends the requests it hit, never the engine
                    _LOG.exception("the embedded engine failed in a step")
                    self._fail_all(f"the embedded engine failed: {type(error).__name__}: {error}")
        self._fail_all("the embedded engine was closed")

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not (self._closing or self._waiting or self._released or self._running):
                self._wake.wait()
            released, self._released = set(self._released), []
            for request in (*self._waiting, *(r.request for r in self._running)):
                if request.request_id in released:
                    request.keep = False
            for request_id in released:
                self._cache.take(request_id)
            return not self._closing

    def _drop_cancelled(self) -> None:
        for row in range(len(self._running) - 1, -1, -1):
            if self._running[row].request.cancelled:
                self._leave(row)

    def _admit(self) -> None:
        """Begin what waits, as far as there is room: prompts with about as much to compute go together."""
        admitted: list[_Prompt] = []
        with self._wake:
            while self._waiting and len(self._running) + len(admitted) < self._max_batch:
                request = self._waiting.popleft()
                if not request.cancelled:
                    self._beginning.add(request)
                    session = self._cache.take(request.request_id)
                    admitted.append(_Prompt(request, session, session.shared(request.prompt) if session else 0))
        for group in grouped(admitted):
            self._begin(group)

    def _begin(self, group: list[_Prompt]) -> None:
        """Prefill a group and take the first tokens; those that need more join the batch."""
        requests = [prompt.request for prompt in group]
        try:
            kv, logits = self._prefill(group)
            if logits is None:  # closing, or nobody waits any more
                self._beginning.difference_update(r for r in requests if r.cancelled)
                return
            for prompt in group:
                prompt.request.cached = prompt.shared
            running = [_Running(p.request, generator_for(p.request.seed)) for p in group]
            tokens, logprobs = sample(logits, [one.draw() for one in running])
        except Exception as error:  # only this group is hit: the batch was not touched
            _LOG.exception("the embedded engine failed in a prefill")
            self._beginning.difference_update(requests)
            self._fail(requests, f"the embedded engine failed: {type(error).__name__}: {error}")
            return
        for row, one in enumerate(running):
            own = kv[:, :, row, :, : len(one.request.prompt)]
            try:
                outcome = one.accept(tokens[row], logprobs[row])
            except ModelError as error:
                outcome = error
            if outcome is None:
                self._batch.join(own)
                self._running.append(one)
            else:
                self._keep(one.request, one.request.prompt, own.clone())
                one.request.done(outcome)
            self._beginning.discard(one.request)

    def _prefill(self, group: list[_Prompt]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Keys and values of the group's prompts, and the logits [n, vocabulary] after them.

        No logits when all were cancelled or the worker closes meanwhile.
        """
        prompts = [prompt.request.prompt for prompt in group]
        kv = self._model.shape.empty(len(group), max(map(len, prompts)) + 1)
        for row, prompt in enumerate(group):
            if prompt.session is not None:
                kv[:, :, row, :, : prompt.shared] = prompt.session.kv[:, :, :, : prompt.shared]
        starts = [prompt.shared for prompt in group]
        longest = max(prompt.new for prompt in group)
        # A group of several fits into one pass; one long prompt takes several.
        for done in range(0, longest, _PREFILL_TOKENS):
            if self._closing or all(prompt.request.cancelled for prompt in group):
                return kv, None
            reach = done + _PREFILL_TOKENS
            ends = [min(len(ids), prompt.shared + reach) for ids, prompt in zip(prompts, group, strict=True)]
            logits = self._model.prefill(prompts, kv, starts, ends)
            starts = ends
            if reach >= longest:
                return kv, logits
        return kv, None

    def _step(self) -> None:
        logits = self._model.decode([running.ids[-1] for running in self._running], self._batch)
        tokens, logprobs = sample(logits, [running.draw() for running in self._running])
        # From the last row on: a row that leaves is replaced by one that was handled before.
        for row in range(len(self._running) - 1, -1, -1):
            running = self._running[row]
            try:
                outcome = running.accept(tokens[row], logprobs[row])
            except ModelError as error:
                outcome = error
            if outcome is not None:
                self._leave(row)
                running.request.done(outcome)

    def _leave(self, row: int) -> None:
        kv = self._batch.leave(row)
        running = self._running[row]
        self._running[row] = self._running[-1]
        self._running.pop()
        computed = [*running.request.prompt, *running.ids][: kv.shape[3]]
        self._keep(running.request, computed, kv)

    def _keep(self, request: Request, ids: list[int], kv: torch.Tensor) -> None:
        if request.keep and ids:
            self._cache.put(request.request_id, Session(ids, kv))

    def _fail_all(self, message: str) -> None:
        with self._wake:
            waiting = list(self._waiting) if self._closing else []
            if self._closing:
                self._waiting.clear()
        failed = [*self._beginning, *(running.request for running in self._running), *waiting]
        self._beginning.clear()
        self._running = []
        self._batch = BatchKv(self._model.shape)
        self._fail(failed, message)

    def _fail(self, requests: list[Request], message: str) -> None:
        for request in requests:
            if not request.cancelled:
                request.done(ModelError(message))


def grouped(prompts: list[_Prompt]) -> list[list[_Prompt]]:
    """Prompts that are computed in one pass each: little padding, no more tokens than a pass may have."""
    groups: list[list[_Prompt]] = []
    for prompt in sorted(prompts, key=lambda prompt: prompt.new):
        group = groups[-1] if groups else []
        fits = group and prompt.new <= 2 * group[0].new + 16 and prompt.new * (len(group) + 1) <= _PREFILL_TOKENS
        if fits:
            group.append(prompt)
        else:
            groups.append([prompt])
    return groups
