"""What every engine behind HTTP does the same way: choosing a replica, trying again, and checking what came back."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress

from uni_agent.engine.base import OnTokens, PromptImage, SamplingParams, TokenOutput
from uni_agent.engine.checked import GenerationCall, token_limit
from uni_agent.engine.http import RefusedError, Replica, ReplicaFault, ReplicaPool
from uni_agent.engine.streaming import Handover
from uni_agent.errors import ConfigError, ModelError, TurnTooLongError

ABORT_SECONDS = 2.0
_MOST_WAIT = 30.0


class RemoteBackend(ABC):
    """A SamplingBackend over `pool`: a subclass speaks one server's protocol.

    A call that fails before anything came back goes to the next replica; after each round over all of them it waits,
    `backoff` seconds at first and twice as long each time, for `retries` more rounds. A stream that breaks off is
    repeated only while no id was handed over.
    """

    def __init__(self, pool: ReplicaPool, *, retries: int = 3, backoff: float = 0.5) -> None:
        self._pool = pool
        self._retries = retries
        self._backoff = backoff
        self._started = False
        self._max_context: int | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    @property
    def max_context(self) -> int | None:
        """The smallest window that a replica named at `start`, in tokens; None when none did."""
        return self._max_context

    async def start(self) -> None:
        """Ask every replica who it is. Raises ConfigError when none can be reached or one serves something else."""
        if self._started:
            return
        self._pool.open()
        try:
            results = await asyncio.gather(*(self._meet(replica) for replica in self._pool.replicas))
            faults = [result for result in results if isinstance(result, ModelError)]
            if len(faults) == len(results):
                raise ConfigError(f"engine.url: no server can be used: {'; '.join(map(str, faults))}") from faults[0]
        except BaseException:
            await self._pool.close()
            raise
        self._max_context = min((result for result in results if isinstance(result, int)), default=None)
        self._started = True

    async def _meet(self, replica: Replica) -> int | ModelError | None:
        try:
            return await self._window(replica)
        except RefusedError as error:
            if error.status in (401, 403):
                raise ConfigError(f"engine.url: {error}; see engine.api_key_env") from error
            return error
        except ModelError as error:
            self._pool.mark(replica, down=True)
            return error

    @property
    def reads_media(self) -> bool:
        """Whether the server takes images beside the ids of a prompt."""
        return False

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        media: Sequence[PromptImage] = (),
    ) -> TokenOutput:
        """Sample one continuation. Raises ContextLengthError for a full window, TurnTooLongError, else ModelError."""
        if media and not self.reads_media:
            raise ModelError("the prompt holds images, which this server does not take beside token ids")
        if not self._started:
            raise ModelError("the engine is not started")
        limit = token_limit(prompt_ids, sampling, self._max_context, "the server")
        prompt = list(prompt_ids)
        for round_ in range(self._retries + 1):
            wait = self._backoff * 2**round_
            faults: list[ReplicaFault] = []
            for replica in self._pool.ranked(request_id):
                handover = None if on_tokens is None else Handover(on_tokens)
                call = GenerationCall(uuid.uuid4().hex, request_id, prompt, sampling, limit, handover, tuple(media))
                try:
                    return await self._attempt(replica, call)
                except ReplicaFault as fault:
                    faults.append(fault)
                    self._pool.mark(replica, down=fault.down)
                    if handover is not None and handover.count:
                        raise ModelError(f"the stream broke off after {handover.count} tokens: {fault}") from fault
                    wait = max(wait, fault.wait)
            if round_ == self._retries:
                tried = (
                    f"{self._retries + 1} tries" if len(faults) == 1 else f"{self._retries + 1} tries of each server"
                )
                raise ModelError(f"the engine failed after {tried}: {faults[-1]}") from faults[-1]
            await asyncio.sleep(min(wait, _MOST_WAIT))
        raise AssertionError("unreachable: the last round returns or raises")

    async def _attempt(self, replica: Replica, call: GenerationCall) -> TokenOutput:
        try:
            output = await self._exchange(replica, call)
        except BaseException as error:
            streams = call.handover is not None and call.handover.count
            if streams or isinstance(error, (asyncio.CancelledError, TurnTooLongError)):
                self._abort_later(replica, call.call_id)
            raise
        self._pool.mark(replica, down=False)
        return output

    def _abort_later(self, replica: Replica, call_id: str) -> None:
        async def abort() -> None:
            with suppress(ModelError, TimeoutError):  # the closed connection has told a server without that route
                await self._abort(replica, call_id)

        task = asyncio.get_running_loop().create_task(abort(), name=f"abort {call_id}")
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def release(self, request_id: str) -> None:
        """Do nothing: a server's prefix cache drops by itself what is old."""
        del request_id

    async def close(self) -> None:
        """Finish the aborts that are under way and close the connections."""
        self._started = False
        if self._aborts:
            _, late = await asyncio.wait(list(self._aborts), timeout=ABORT_SECONDS)
            for task in late:
                task.cancel()
        await self._pool.close()

    @abstractmethod
    async def _window(self, replica: Replica) -> int | None:
        """The replica's context window. Raises ModelError when it does not answer, ConfigError when it is no use."""

    @abstractmethod
    async def _exchange(self, replica: Replica, call: GenerationCall) -> TokenOutput:
        """Send the call and read the answer."""

    @abstractmethod
    async def _abort(self, replica: Replica, call_id: str) -> None:
        """Tell the replica that nobody waits for the call any more."""
