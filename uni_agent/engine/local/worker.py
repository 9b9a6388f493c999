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
_PREFILL_CHUNK = 512  # tokens between two looks at whether the request was cancelled


@dataclass(slots=True, eq=False)
class Request:
    """One generation of at least 1 and at most `limit` tokens. `done` is called once, on the worker's thread."""

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    limit: int
    seed: int
    done: Callable[[TokenOutput | ModelError], None]
    cancelled: bool = False
    keep: bool = True


@dataclass(slots=True, eq=False)
class _Running:
    """A request in the batch: its row there is its place in `Worker._running`."""

    request: Request
    generator: torch.Generator
    cached: int
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
        stopped = token in self.request.stop_ids
        if not stopped and len(self.ids) < self.request.limit:
            return None
        reason = "stop" if stopped else "length"
        return TokenOutput(self.ids, self.logprobs, reason, cached_tokens=self.cached)


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
        while len(self._running) < self._max_batch:
            with self._wake:
                if not self._waiting or self._closing:
                    return
                request = self._waiting.popleft()
            if not request.cancelled:
                self._begin(request)

    def _begin(self, request: Request) -> None:
        """Prefill and take the first token; join the batch unless that was the last."""
        try:
            prefilled = self._prefill(request)
            if prefilled is None:
                return
            running, kv, logits = prefilled
            (token,), (logprob,) = sample(logits[None], [running.draw()])
            output = running.accept(token, logprob)
        except ModelError as error:
            request.done(error)
            return
        except Exception as error:  # this request alone is hit: the batch was not touched
            _LOG.exception("the embedded engine failed in a prefill")
            request.done(ModelError(f"the embedded engine failed: {type(error).__name__}: {error}"))
            return
        if output is None:
            self._batch.join(kv)
            self._running.append(running)
        else:
            self._keep(request, request.prompt, kv)
            request.done(output)

    def _prefill(self, request: Request) -> tuple[_Running, torch.Tensor, torch.Tensor] | None:
        """Compute what is not cached of the prompt: keys and values of all of it, and the logits after it.

        None when the request was cancelled meanwhile. Raises ModelError when the worker closes.
        """
        prompt = request.prompt
        session = self._cache.take(request.request_id)
        done = session.shared(prompt) if session else 0
        kv = self._model.shape.empty(None, len(prompt))
        if session is not None:
            kv[:, :, :, :done] = session.kv[:, :, :, :done]
        running = _Running(request, generator_for(request.seed), cached=done)
        while True:  # at least one token is left to compute
            if self._closing:
                raise ModelError("the embedded engine was closed")
            if request.cancelled:
                self._keep(request, prompt[:done], kv[:, :, :, :done].clone())
                return None
            end = min(done + _PREFILL_CHUNK, len(prompt))
            logits = self._model.prefill(prompt, kv, done, end)
            done = end
            if done == len(prompt):
                return running, kv, logits

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
        failed = [running.request for running in self._running] + waiting
        self._running = []
        self._batch = BatchKv(self._model.shape)
        for request in failed:
            if not request.cancelled:
                request.done(ModelError(message))
