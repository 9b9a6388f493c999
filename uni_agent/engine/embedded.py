"""The engine inside this process: a Hugging Face model on torch, exact to the token.

In float32 the logprob that was sampled equals the one of a later full forward pass to 1e-4, whatever else was in the
batch, and a request's tokens depend on its seed and prompt alone. Made for small models, tests and demonstrations.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from uni_agent.engine.base import OnTokens, SamplingParams, TokenOutput
from uni_agent.engine.streaming import Handover
from uni_agent.errors import ConfigError, ContextLengthError, ModelError

if TYPE_CHECKING:
    import torch

    from uni_agent.engine.local.loading import LocalModel
    from uni_agent.engine.local.sessions import SessionStore
    from uni_agent.engine.local.worker import Request, Worker

_CLOSE_SECONDS = 30.0
_MOST_COUNTERS = 100_000


class EmbeddedBackend:
    """A SamplingBackend over the model folder `path` (config.json, safetensors).

    `device` and `dtype` "auto": a GPU in bfloat16 when there is one, else the CPU in float32. `threads` are torch's
    threads on the CPU, for the whole process. At most `max_batch` requests share a decode step; others wait. Up to
    `cache_sessions` conversations (`cache_bytes` of memory) keep their keys and values between turns. With
    `share_prefixes` a request also begins from what other ids have left: for callers that give each turn a new one.

    A request with a seed is reproducible by seed and prompt. Without one, its draws follow from `seed` (the root seed;
    random when None), the request id, how many calls of that id came before, and the prompt. Without stop ids in the
    request, the model's own end-of-text ids stop it. `max_context` is the model's window, or a smaller one given here.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
        threads: int = 1,
        max_batch: int = 64,
        cache_sessions: int = 256,
        cache_bytes: int = 2**30,
        share_prefixes: bool = False,
        max_context: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._path = path
        self._device = device
        self._dtype = dtype
        self._threads = threads
        self._max_batch = max_batch
        self._cache_sessions = cache_sessions
        self._cache_bytes = cache_bytes
        self._share_prefixes = share_prefixes
        own = model_window(path)
        self._max_context = own if max_context is None else min(max_context, own or max_context)
        self._root_seed = secrets.randbits(63) if seed is None else seed
        self._counters: OrderedDict[str, int] = OrderedDict()
        self._lock = asyncio.Lock()
        self._worker: Worker | None = None
        self._vocab_size = 0
        self._eos_ids: tuple[int, ...] = ()

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and answer together; None when config.json does not say."""
        return self._max_context

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a request without stop ids; empty before `start` and for a model that names none."""
        return self._eos_ids

    async def start(self) -> None:
        """Load the model, off the event loop. Raises ConfigError for a model that cannot be loaded or run exactly."""
        async with self._lock:
            if self._worker is not None:
                return
            # The worker's thread starts only after the load, so a cancelled start leaves no thread behind.
            model, store, worker = await asyncio.to_thread(self._load)
            self._vocab_size, self._eos_ids = model.vocab_size, model.eos_ids
            cache = store(self._cache_sessions, self._cache_bytes)
            self._worker = worker(
                model,
                threads=self._threads,
                max_batch=self._max_batch,
                cache=cache,
                share_prefixes=self._share_prefixes,
            )

    def _load(self) -> tuple[LocalModel, type[SessionStore], type[Worker]]:
        import torch

        from uni_agent.engine.local.loading import load
        from uni_agent.engine.local.sessions import SessionStore
        from uni_agent.engine.local.worker import Worker

        torch.set_num_threads(self._threads)
        return load(self._path, self._device, self._dtype), SessionStore, Worker

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling: SamplingParams, *, on_tokens: OnTokens | None = None
    ) -> TokenOutput:
        """Sample one continuation. Raises ContextLengthError when the prompt fills the window, ModelError otherwise."""
        worker = self._started()
        self._check(prompt_ids, sampling)
        future: asyncio.Future[TokenOutput] = asyncio.get_running_loop().create_future()
        count = self._counters.pop(request_id, 0)
        self._counters[request_id] = count + 1
        if len(self._counters) > _MOST_COUNTERS:
            self._counters.popitem(last=False)
        request = self._request(request_id, prompt_ids, sampling, count, future)
        if on_tokens is not None:
            request.step = _listener(Handover(on_tokens), request, worker, future)
        worker.submit(request)
        try:
            return await future
        except asyncio.CancelledError:
            worker.cancel(request)
            # The call is undone: a repeated one draws the same, unless others of this id came in between.
            if self._counters.get(request_id) == count + 1:
                self._counters[request_id] = count
            raise

    async def update_weights(
        self,
        tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
        *,
        version: str | None = None,
    ) -> int:
        """Replace the model's weights between two decode steps; how many running requests went on with the new ones.

        `tensors` has the names and shapes of the model's `state_dict`, all of them; of tied weights one is enough.
        Other number types are converted. Everything that was cached is dropped, and what runs is computed anew, so that
        each further token has the logprob that the new weights give it. `weight_spans` of the outputs name `version`
        for the tokens sampled from now on; None names none.

        Raises ModelError, and changes nothing, when a tensor is missing, unexpected, given twice or of another shape.
        A cancelled call may still take effect.
        """
        from uni_agent.engine.local.weights import named

        new = named(tensors)
        return await self._told(lambda worker, done: worker.update(new, version, done))

    async def set_version(self, version: str | None) -> None:
        """Name the weights as they are, for the `weight_spans` of tokens sampled from now on."""
        await self._told(lambda worker, done: worker.label(version, done))

    async def abort(self, *, reject: bool = False) -> int:
        """End all requests within a decode step, with `finish_reason` "abort" and what they have; how many there were.

        Until `resume`, new requests wait, or with `reject` come back at once, empty and with "abort". What was computed
        is kept for those who go on.
        """
        return await self._told(lambda worker, done: worker.abort(reject, done))

    async def resume(self) -> None:
        """Serve requests again after `abort`; without one, nothing happens."""
        self._started().resume()

    async def clear_cache(self) -> int:
        """Forget the keys and values of all conversations; how many there were."""
        return await self._told(lambda worker, done: worker.clear_cache(done))

    def _started(self) -> Worker:
        if self._worker is None:
            raise ModelError("the embedded engine is not started")
        return self._worker

    async def _told(self, tell: Callable[[Worker, Callable[[int | ModelError], None]], None]) -> int:
        """Wait until the worker has done what `tell` asks of it. Raises ModelError when it could not."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int | ModelError] = loop.create_future()

        def settle(outcome: int | ModelError) -> None:
            if not future.done():
                future.set_result(outcome)

        def done(outcome: int | ModelError) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        tell(self._started(), done)
        outcome = await future
        if isinstance(outcome, ModelError):
            raise outcome
        return outcome

    def _check(self, prompt: list[int], sampling: SamplingParams) -> None:
        if not prompt:
            raise ModelError("the prompt is empty")
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            raise ModelError(f"the prompt holds ids outside the vocabulary of {self._vocab_size}")
        if self._max_context is not None and len(prompt) >= self._max_context:
            raise ContextLengthError(f"prompt of {len(prompt)} tokens, context window of {self._max_context}")
        if sampling.max_tokens is not None and sampling.max_tokens < 1:
            raise ModelError(f"max_tokens is {sampling.max_tokens}, at least 1 is needed")
        if not (0 <= sampling.temperature < float("inf") and sampling.repetition_penalty > 0):
            raise ModelError("temperature must be finite and not negative, repetition_penalty positive")
        if sampling.extra:
            raise ModelError(f"the embedded engine has no sampling options {', '.join(sorted(sampling.extra))}")

    def _request(
        self,
        request_id: str,
        prompt: list[int],
        sampling: SamplingParams,
        count: int,
        future: asyncio.Future[TokenOutput],
    ) -> Request:
        from uni_agent.engine.local.worker import Request

        room = None if self._max_context is None else self._max_context - len(prompt)
        limits = [limit for limit in (room, sampling.max_tokens) if limit is not None]
        if not limits:
            raise ModelError("max_tokens is needed: the model names no context window")
        loop = asyncio.get_running_loop()

        def settle(outcome: TokenOutput | ModelError) -> None:
            if future.done():
                return
            if isinstance(outcome, ModelError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        def done(outcome: TokenOutput | ModelError) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, outcome)

        seed = sampling.seed if sampling.seed is not None else self._derived_seed(request_id, count, prompt)
        stop_ids = frozenset(sampling.stop_token_ids or self._eos_ids)
        return Request(request_id, list(prompt), sampling, stop_ids, min(limits), seed, done)

    def _derived_seed(self, request_id: str, count: int, prompt: list[int]) -> int:
        material = json.dumps([self._root_seed, request_id, count, prompt]).encode()
        return int.from_bytes(hashlib.sha256(material).digest()[:8], "big")

    async def release(self, request_id: str) -> None:
        """Forget what is cached for `request_id`; unknown ids are fine."""
        self._counters.pop(request_id, None)
        if self._worker is not None:
            self._worker.release(request_id)

    async def close(self) -> None:
        """Fail what runs, end the thread and free the model. Raises ModelError when a step does not end in time."""
        async with self._lock:
            worker, self._worker = self._worker, None
            if worker is None:
                return
            worker.stop()
            if not await asyncio.to_thread(worker.join, _CLOSE_SECONDS):
                raise ModelError(f"the embedded engine is still in one step after {_CLOSE_SECONDS:g} s")


def _listener(
    handover: Handover, request: Request, worker: Worker, future: asyncio.Future[TokenOutput]
) -> Callable[[int, float, str | None], None]:
    """What the worker's thread calls with each token: the caller's loop takes it, and ends the request on demand."""
    from uni_agent.engine.local.worker import weight_spans

    loop = asyncio.get_running_loop()
    ids: list[int] = []
    logprobs: list[float] = []
    versions: list[str | None] = []

    def take(token: int, logprob: float, version: str | None) -> None:
        if future.done():
            return
        ids.append(token)
        logprobs.append(logprob)
        versions.append(version)
        try:
            enough = handover.give([token])
        except Exception as error:  # the caller's own: it must not end in the loop's handler
            worker.cancel(request)
            future.set_exception(error)
            return
        if enough and len(ids) < request.limit and token not in request.stop_ids:
            worker.cancel(request)
            spans = weight_spans(versions)
            future.set_result(TokenOutput(ids, logprobs, "stop", spans, cached_tokens=request.cached))

    def step(token: int, logprob: float, version: str | None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(take, token, logprob, version)

    return step


def model_window(path: Path) -> int | None:
    """The context window that the folder's config.json names; None when it names none.

    Raises ConfigError, with the path, when the folder holds no model.
    """
    if not path.is_dir():
        raise ConfigError(f"engine.path: there is no folder {path}")
    file = path / "config.json"
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"engine.path: {path} holds no config.json: it is no Hugging Face model folder") from error
    except (ValueError, OSError) as error:
        raise ConfigError(f"engine.path: cannot read {file}: {error}") from error
    if not any(path.glob("*.safetensors")) and not any(path.glob("pytorch_model*.bin")):
        raise ConfigError(f"engine.path: {path} holds no weights (*.safetensors)")
    text_config: dict[str, Any] = config.get("text_config") or config
    window = text_config.get("max_position_embeddings")
    return window if isinstance(window, int) and window > 0 else None
