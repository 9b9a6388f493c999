"""The thread that owns the model: continuous batching, one decode step for all running requests at a time."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

import torch

from uni_agent.engine.base import SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.local.kv import BatchKv
from uni_agent.engine.local.loading import LocalModel
from uni_agent.engine.local.sampling import Draw, generator_for, sample
from uni_agent.engine.local.sessions import Session, SessionStore
from uni_agent.engine.local.weights import matched
from uni_agent.errors import ModelError

_LOG = logging.getLogger(__name__)
_PREFILL_TOKENS = 1024  # of one pass, padding included; between passes it is seen who was cancelled


@dataclass(slots=True, eq=False)
class Request:
    """One generation of at least 1 and at most `limit` tokens. `done` is called once, on the worker's thread.

    `step` is called there with each token, its logprob and the version of the weights, before `done`. `cached` is set
    before the first one: prompt tokens that were not computed again.
    """

    request_id: str
    prompt: list[int]
    sampling: SamplingParams
    stop_ids: frozenset[int]
    limit: int
    seed: int
    done: Callable[[TokenOutput | ModelError], None]
    step: Callable[[int, float, str | None], None] | None = None
    cached: int = 0
    cancelled: bool = False
    aborted: bool = False
    keep: bool = True


@dataclass(frozen=True, slots=True)
class _Command:
    """Something done between two steps. `done` is called once, on the worker's thread, with a count or the failure."""

    run: Callable[[], int]
    done: Callable[[int | ModelError], None]


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A sequence about to enter the batch: `session` holds the first `shared` tokens of `ids`."""

    request: Request
    ids: list[int]
    session: Session | None
    shared: int

    @property
    def new(self) -> int:
        """Tokens to compute, at least one."""
        return len(self.ids) - self.shared


@dataclass(slots=True, eq=False)
class _Running:
    """A request in the batch: its row there is its place in `Worker._running`."""

    request: Request
    generator: torch.Generator
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[float] = field(default_factory=list[float])
    versions: list[str | None] = field(default_factory=list[str | None])

    def draw(self) -> Draw:
        params = self.request.sampling
        seen = [*self.request.prompt, *self.ids] if params.repetition_penalty != 1.0 else ()
        return Draw(params, self.generator, seen)

    def accept(self, token: int, logprob: float, version: str | None) -> TokenOutput | None:
        """Take the next token; the output when it was the last one. Raises ModelError for broken logits."""
        if math.isnan(logprob):
            raise ModelError("the model gave NaN logits")
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        if self.request.step is not None and not self.request.cancelled:
            self.request.step(token, logprob, version)
        stopped = token in self.request.stop_ids
        if not stopped and len(self.ids) < self.request.limit:
            return None
        return self.output("stop" if stopped else "length")

    def output(self, reason: Literal["stop", "length", "abort"]) -> TokenOutput:
        """What was sampled so far, ended by `reason`."""
        spans = weight_spans(self.versions)
        return TokenOutput(self.ids, self.logprobs, reason, spans, cached_tokens=self.request.cached)


class Worker:
    """Runs requests on a thread of its own. All methods may be called from any thread and return at once."""

    def __init__(
        self, model: LocalModel, *, threads: int, max_batch: int, cache: SessionStore, share_prefixes: bool
    ) -> None:
        self._model = model
        self._threads = threads
        self._max_batch = max_batch
        self._cache = cache
        self._share_prefixes = share_prefixes
        self._version: str | None = None
        self._wake = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._released: list[str] = []
        self._commands: deque[_Command] = deque()
        self._closing = False
        self._paused = False  # what waits is not begun
        self._rejecting = False  # and what comes is sent back
        self._aborting = 0  # aborts that were asked for and not done yet
        self._beginning: set[Request] = set()  # taken from the queue, not yet in the batch
        self._running: list[_Running] = []
        self._batch = BatchKv(model.shape)
        self._thread = threading.Thread(target=self._main, name="uni-agent-embedded-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> None:
        """Queue `request`. Raises ModelError once the worker is closed."""
        with self._wake:
            self._refuse_when_closing()
            if not self._rejecting:
                self._waiting.append(request)
                self._wake.notify()
                return
        request.done(TokenOutput([], [], "abort"))

    def cancel(self, request: Request) -> None:
        """Let `request` leave the queue or the batch; its `done` is not called any more."""
        with self._wake:
            request.cancelled = True
            with suppress(ValueError):
                self._waiting.remove(request)  # nothing looks at the queue while it is paused
            self._wake.notify()

    def release(self, request_id: str) -> None:
        """Drop what is cached for `request_id`, also what its running requests would leave."""
        with self._wake:
            self._released.append(request_id)
            self._wake.notify()

    def abort(self, reject: bool, done: Callable[[int | ModelError], None]) -> None:
        """End what is queued or running with what it has; `done` gets how many.

        Until `resume`, what is submitted waits, or ends at once when `reject`. Raises ModelError once closed.
        """
        with self._wake:
            self._refuse_when_closing()
            self._paused, self._rejecting = True, reject
            self._aborting += 1
            for request in self._waiting:
                request.aborted = True
            self._commands.append(_Command(self._end_all, done))
            self._wake.notify()

    def resume(self) -> None:
        """Begin what waits, and take what comes."""
        with self._wake:
            self._paused = self._rejecting = False
            self._wake.notify()

    def update(
        self, tensors: Mapping[str, torch.Tensor], version: str | None, done: Callable[[int | ModelError], None]
    ) -> None:
        """Replace the weights between two steps; `done` gets how many requests went on with the new ones."""
        self._post(lambda: self._replace_weights(tensors, version), done)

    def label(self, version: str | None, done: Callable[[int | ModelError], None]) -> None:
        """Name the weights that are loaded, from the next step on."""

        def run() -> int:
            self._version = version
            return 0

        self._post(run, done)

    def clear_cache(self, done: Callable[[int | ModelError], None]) -> None:
        """Forget all kept conversations; `done` gets how many."""

        def run() -> int:
            count = len(self._cache)
            self._cache.clear()
            return count

        self._post(run, done)

    def _post(self, run: Callable[[], int], done: Callable[[int | ModelError], None]) -> None:
        with self._wake:
            self._refuse_when_closing()
            self._commands.append(_Command(run, done))
            self._wake.notify()

    def _refuse_when_closing(self) -> None:
        if self._closing:
            raise ModelError("the embedded engine is closed")

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
                    self._obey()
                    self._admit()
                    if self._running:
                        self._step()
                except Exception as error:  # whatever torch raises ends the requests it hit, never the engine
                    _LOG.exception("the embedded engine failed in a step")
                    self._fail_all(f"the embedded engine failed: {type(error).__name__}: {error}")
        self._fail_all("the embedded engine was closed")

    def _wait_for_work(self) -> bool:
        with self._wake:
            while not self._has_work():
                self._wake.wait()
            released, self._released = set(self._released), []
            for request in (*self._waiting, *(r.request for r in self._running)):
                if request.request_id in released:
                    request.keep = False
            for request_id in released:
                self._cache.take(request_id)
            return not self._closing

    def _has_work(self) -> bool:
        begin = self._waiting and not self._paused
        return bool(self._closing or begin or self._released or self._running or self._commands)

    def _obey(self) -> None:
        """Carry out the commands. A failure that is no ModelError is raised again: the state is not known any more."""
        while True:
            with self._wake:
                if not self._commands or self._closing:
                    return
                command = self._commands.popleft()
            try:
                outcome: int | ModelError = command.run()
            except ModelError as error:
                outcome = error
            except Exception as error:
                command.done(ModelError(f"the embedded engine failed: {type(error).__name__}: {error}"))
                raise
            command.done(outcome)

    def _end_all(self) -> int:
        """End what runs, what was about to begin, and what waited when the abort was asked for."""
        with self._wake:
            self._aborting -= 1
            ended = [request for request in self._waiting if request.aborted]
            self._waiting = deque(request for request in self._waiting if not request.aborted)
        ended.extend(self._beginning)
        self._beginning.clear()
        outputs = [(request, TokenOutput([], [], "abort")) for request in ended]
        for row in range(len(self._running) - 1, -1, -1):
            running = self._running[row]
            self._leave(row)
            outputs.append((running.request, running.output("abort")))
        outputs = [(request, output) for request, output in outputs if not request.cancelled]
        for request, output in outputs:
            request.done(output)
        return len(outputs)

    def _replace_weights(self, tensors: Mapping[str, torch.Tensor], version: str | None) -> int:
        for own, new in matched(self._model.module, tensors):
            own.copy_(new)
        self._version = version
        self._cache.clear()
        return self._recompute()

    def _recompute(self) -> int:
        """Compute the keys and values of what runs anew, so that each further token is that of the new weights."""
        running = {one.request: one for one in self._running}
        self._running, self._batch = [], BatchKv(self._model.shape)
        self._beginning.update(running)  # whatever happens now, these are not forgotten
        rows = [_Prompt(r, [*r.prompt, *one.ids[:-1]], None, 0) for r, one in running.items()]
        for group in grouped(rows):
            kv, logits = self._prefill(group, until_abort=False)
            if logits is None:  # closing, or nobody waits any more
                self._beginning.difference_update(p.request for p in group if p.request.cancelled)
                continue
            for row, prompt in enumerate(group):
                self._batch.join(kv[:, :, row, :, : len(prompt.ids)])
                self._running.append(running[prompt.request])
                self._beginning.discard(prompt.request)
        return len(self._running)

    def _drop_cancelled(self) -> None:
        for row in range(len(self._running) - 1, -1, -1):
            if self._running[row].request.cancelled:
                self._leave(row)

    def _admit(self) -> None:
        """Begin what waits, as far as there is room: prompts with about as much to compute go together."""
        admitted: list[_Prompt] = []
        with self._wake:
            while self._waiting and not self._paused and len(self._running) + len(admitted) < self._max_batch:
                request = self._waiting.popleft()
                if not request.cancelled:
                    self._beginning.add(request)
                    session = self._cache.take(request.request_id)
                    if session is None and self._share_prefixes:
                        session = self._cache.longest(request.prompt)
                    shared = session.shared(request.prompt) if session else 0
                    admitted.append(_Prompt(request, request.prompt, session, shared))
        for group in grouped(admitted):
            self._begin(group)

    def _begin(self, group: list[_Prompt]) -> None:
        """Prefill a group and take the first tokens; those that need more join the batch."""
        requests = [prompt.request for prompt in group]
        try:
            kv, logits = self._prefill(group, until_abort=True)
            if logits is None:  # closing or aborting, which ends the rest, or nobody waits any more
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
                outcome = one.accept(tokens[row], logprobs[row], self._version)
            except ModelError as error:
                outcome = error
            if outcome is None:
                self._batch.join(own)
                self._running.append(one)
            else:
                self._keep(one.request, one.request.prompt, own.clone())
                one.request.done(outcome)
            self._beginning.discard(one.request)

    def _prefill(self, group: list[_Prompt], *, until_abort: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Keys and values of the group's sequences, and the logits [n, vocabulary] after them.

        No logits when all were cancelled or the worker closes meanwhile, or, with `until_abort`, aborts.
        """
        prompts = [prompt.ids for prompt in group]
        kv = self._model.shape.empty(len(group), max(map(len, prompts)) + 1)
        for row, prompt in enumerate(group):
            if prompt.session is not None:
                kv[:, :, row, :, : prompt.shared] = prompt.session.kv[:, :, :, : prompt.shared]
        starts = [prompt.shared for prompt in group]
        longest = max(prompt.new for prompt in group)
        # A group of several fits into one pass; one long prompt takes several.
        for done in range(0, longest, _PREFILL_TOKENS):
            given_up = self._closing or (until_abort and self._aborting > 0)
            if given_up or all(prompt.request.cancelled for prompt in group):
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
                outcome = running.accept(tokens[row], logprobs[row], self._version)
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
            commands = list(self._commands) if self._closing else []
            if self._closing:
                self._waiting.clear()
                self._commands.clear()
        failed = [*self._beginning, *(running.request for running in self._running), *waiting]
        self._beginning.clear()
        self._running = []
        self._batch = BatchKv(self._model.shape)
        self._fail(failed, message)
        for command in commands:
            command.done(ModelError(message))

    def _fail(self, requests: list[Request], message: str) -> None:
        for request in requests:
            if not request.cancelled:
                request.done(ModelError(message))


def weight_spans(versions: Sequence[str | None]) -> tuple[WeightSpan, ...]:
    """Which weights sampled which tokens, from the version of each; tokens of weights without a name have no span."""
    spans: list[WeightSpan] = []
    start = 0
    for version, tokens in groupby(versions):
        end = start + sum(1 for _ in tokens)
        if version is not None:
            spans.append(WeightSpan(version, start, end))
        start = end
    return tuple(spans)


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
