"""The token-exact chat model: what is recorded is what was sampled."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from uni_agent.engine.base import SamplingBackend, SamplingParams, TokenOutput
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError, UniAgentError, boundary
from uni_agent.model.base import ModelTurn
from uni_agent.tokens.accounting import record_drop
from uni_agent.tokens.base import Renderer, ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.types import Message, Usage

_T = TypeVar("_T")

_INLINE_CHARACTERS = 4096
"""Texts below this are rendered on the event loop: a thread hand-over costs more than they do."""


class AgentChatModel:
    """Renders with the model's chat template, samples from a token engine, keeps ids, masks and logprobs."""

    def __init__(
        self,
        backend: SamplingBackend,
        renderer: Renderer,
        *,
        sampling: SamplingParams | None = None,
        max_context: int | None = None,
        timeout: float = 600.0,
        retries: int = 2,
        seed: int | None = None,
    ) -> None:
        self.backend = backend
        self.renderer = renderer
        self.sampling = sampling or SamplingParams()
        self.timeout = timeout
        self.retries = retries
        self._seed = seed
        self._max_context = max_context

    @property
    def max_context(self) -> int | None:
        """Tokens of prompt and response together; None when neither the configuration nor the engine limits them."""
        limits = [limit for limit in (self._max_context, self.backend.max_context) if limit is not None]
        return min(limits, default=None)

    async def start(self) -> None:
        """Load the engine."""
        with boundary(ModelError, "the engine did not start"):
            await self.backend.start()

    async def probe(self) -> None:
        """Sample one token. Raises ConfigError with the engine's reason."""
        ids = self.renderer.initial([Message(role="user", content="ping")], [])
        try:
            await self.generate("probe", ids, replace(self.sampling, max_tokens=1))
        except ModelError as error:
            raise ConfigError(f"model.engine cannot sample: {error}") from error
        finally:
            await self.backend.release("probe")

    async def open(self, request_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> AgentChatSession:
        """A conversation whose prompt is `messages`, rendered with `tools`."""
        session = AgentChatSession(self, request_id, list(messages), list(tools))
        session.cache.prompt_ids = await session.rendered(
            sum(len(m.content) for m in messages), lambda: self.renderer.initial(messages, tools)
        )
        return session

    async def close(self) -> None:
        """Free the engine."""
        await self.backend.close()

    def params_for(self, request_id: str, turn: int, room: int) -> SamplingParams:
        """Sampling for one turn: capped to `room` tokens, seeded by run, conversation and turn."""
        seed = None
        if self._seed is not None:
            digest = hashlib.blake2b(f"{self._seed}/{request_id}/{turn}".encode(), digest_size=8).digest()
            seed = int.from_bytes(digest, "big") >> 1
        wanted = self.sampling.max_tokens
        return replace(
            self.sampling,
            max_tokens=room if wanted is None else min(wanted, room),
            seed=seed,
            stop_token_ids=self.renderer.stop_token_ids,
        )

    async def generate(self, request_id: str, ids: list[int], params: SamplingParams) -> TokenOutput:
        """One call of the engine; what it raises becomes a ModelError."""
        with boundary(ModelError, "the engine failed"):
            return await self.backend.generate(request_id, ids, params)


class AgentChatSession:
    """One conversation and its token chain."""

    def __init__(
        self, model: AgentChatModel, request_id: str, messages: list[Message], tools: list[ToolSchema]
    ) -> None:
        self.messages = messages
        self.cache = RolloutCache(request_id)
        self._model = model
        self._tools = tools
        self._turn = 0
        self._cut = False

    @property
    def caches(self) -> list[RolloutCache]:
        """The one chain of this conversation."""
        return [self.cache]

    async def query(self) -> ModelTurn:
        """Sample a turn and commit it. See `ChatSession.query` for what it raises."""
        room = self._room()
        params = self._model.params_for(self.cache.request_id, self._turn, room)
        prompt = self.cache.ids
        output = await self._sample(prompt, params)
        parsed = await self.rendered(
            4 * len(output.token_ids), lambda: self._model.renderer.parse(output.token_ids, self._tools)
        )
        with boundary(ModelError, "the engine's output cannot be recorded"):
            span = self.cache.append_sampled(output, self._turn)
        ended = bool(output.token_ids) and output.token_ids[-1] in self._model.renderer.stop_token_ids
        self._cut = not ended
        message = Message(
            role="assistant", content=parsed.content, reasoning=parsed.reasoning, tool_calls=parsed.tool_calls
        )
        self.messages.append(message)
        self._turn += 1
        usable = any(call.error is None for call in parsed.tool_calls)
        reason = "tool_calls" if parsed.tool_calls else "stop"
        if output.finish_reason == "length" and not ended:
            reason = "context" if len(output.token_ids) >= room else "length"
        return ModelTurn(
            message,
            reason,
            Usage(len(prompt), len(output.token_ids), output.cached_tokens),
            (span.start, span.end),
            parse_failed=parsed.marker_seen and not usable,
        )

    async def observe(self, messages: Sequence[Message]) -> None:
        """Append what follows the last turn; all or nothing."""
        renderer = self._model.renderer
        ids = await self.rendered(
            sum(len(m.content) for m in messages),
            lambda: renderer.extension(self.messages, messages, self._tools, cut=self._cut, chain=self.cache.ids),
        )
        limit = self._model.max_context
        if limit is not None and len(self.cache) + len(ids) >= limit:
            raise ContextLengthError(f"the observation needs {len(ids)} tokens, the window of {limit} has no room")
        closing = len(renderer.closing_ids()) if self._cut else 0
        if closing:
            self.cache.append_context(ids[:closing], self._turn - 1, "closing")
        self.cache.append_context(ids[closing:], self._turn - 1)
        self.messages.extend(messages)

    async def close(self) -> None:
        """Let the engine forget this conversation."""
        await self._model.backend.release(self.cache.request_id)

    async def rendered(self, characters: int, work: Callable[[], _T]) -> _T:
        """`work()`, on a thread when the text is long: rendering must not stall other episodes."""
        return work() if characters < _INLINE_CHARACTERS else await asyncio.to_thread(work)

    def _room(self) -> int:
        limit = self._model.max_context
        room = (limit if limit is not None else 1 << 31) - len(self.cache)
        if room <= 0:
            raise ContextLengthError(f"the prompt has {len(self.cache)} tokens, the window {limit}")
        return room

    async def _sample(self, prompt: list[int], params: SamplingParams) -> TokenOutput:
        """One generation, within the model's deadline and retries. Aborted parts are dropped and counted."""
        model = self._model
        try:
            async with asyncio.timeout(model.timeout):
                for attempt in range(model.retries + 1):
                    try:
                        output = await model.generate(self.cache.request_id, prompt, params)
                    except (ContextLengthError, ConfigError):
                        raise
                    except UniAgentError:
                        if attempt == model.retries:
                            raise
                        await asyncio.sleep(0.2 * 2**attempt)
                        continue
                    if output.finish_reason != "abort":
                        return output
                    record_drop(self.cache, "aborted", len(output.token_ids))
        except TimeoutError as error:
            raise TurnTooLongError(f"no answer from the engine within {model.timeout:g} s") from error
        raise ModelError(f"the engine aborted the call {model.retries + 1} times")
