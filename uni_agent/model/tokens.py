"""The token-exact chat model: what is recorded is what was sampled."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar, cast

from uni_agent.engine.base import SamplingBackend, SamplingParams, TokenOutput
from uni_agent.engine.sampler import OnAbort, sample
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, boundary
from uni_agent.model.base import ModelTurn
from uni_agent.tokens.accounting import record_drop
from uni_agent.tokens.base import Renderer, ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.graph import Chain, Prepared, SessionGraph
from uni_agent.tokens.graph.export import add_context
from uni_agent.tokens.graph.nodes import path_to
from uni_agent.types import Message, Usage

_T = TypeVar("_T")

_INLINE_CHARACTERS = 4096
"""Texts below this are rendered on the event loop: a thread hand-over costs more than they do."""


class AgentChatModel:
    """Renders with the model's chat template, samples from a token engine, keeps ids, masks and logprobs.

    `max_response` limits what follows the opening of a conversation, in tokens. `on_abort` says what becomes of a turn
    that the engine broke off for new weights: it begins anew, or goes on from its tokens.
    """

    def __init__(
        self,
        backend: SamplingBackend,
        renderer: Renderer,
        *,
        sampling: SamplingParams | None = None,
        max_context: int | None = None,
        max_response: int | None = None,
        timeout: float = 600.0,
        retries: int = 2,
        seed: int | None = None,
        on_abort: OnAbort = "restart",
    ) -> None:
        self.backend = backend
        self.renderer = renderer
        self.sampling = sampling or SamplingParams()
        self.timeout = timeout
        self.retries = retries
        self.max_response = max_response
        self.on_abort: OnAbort = on_abort
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
        await session.prepare()
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
    """One conversation: a session graph whose newest turn is followed.

    Where the template cannot continue the chain, the conversation goes on in a new one; both are in `caches`.
    """

    def __init__(
        self, model: AgentChatModel, request_id: str, messages: list[Message], tools: list[ToolSchema]
    ) -> None:
        self.messages = messages
        self.request_id = request_id
        self._model = model
        self._graph = SessionGraph(request_id, model.renderer)
        self._tools = tools
        self._prepared: Prepared | None = None
        self._opening = 0
        self.preempted: int | None = None
        """How often the engine put requests of this conversation back in its queue; None when it does not tell."""

    @property
    def caches(self) -> list[RolloutCache]:
        """The chains of this conversation so far, made anew at each look; the last one goes on.

        What is appended but not answered yet stands at the end of the last one.
        """
        caches = [chain.cache for chain in self._graph.trajectories()]
        waiting = self._prepared
        if waiting is not None and waiting.parent is None:
            caches.append(RolloutCache("", prompt_ids=list(waiting.prompt_ids)))
        elif waiting is not None:
            add_context(caches[-1], waiting.context, len(path_to(waiting.parent)))
        for i, cache in enumerate(caches):
            cache.request_id = f"{self.request_id}/{i}" if i else self.request_id
        for reason, count in self._graph.dropped.items():
            record_drop(caches[0], reason, count)
        return caches

    @property
    def cache(self) -> RolloutCache:
        """The chain that goes on."""
        return self.caches[-1]

    @property
    def chains(self) -> list[Chain]:
        """The chains to train on, as `SessionGraph.trajectories` gives them.

        Tokens that never became a turn are counted in the first one's `dropped`.
        """
        chains = self._graph.trajectories()
        for reason, count in self._graph.dropped.items():
            if chains:
                record_drop(chains[0].cache, reason, count)
        return chains

    async def prepare(self) -> None:
        """Render the opening."""
        self._prepared = await self.rendered(
            sum(len(m.content) for m in self.messages), lambda: self._graph.prepare(self.messages, self._tools)
        )
        self._opening = len(self._prepared.prompt_ids)

    async def query(self) -> ModelTurn:
        """Sample a turn and commit it. See `ChatSession.query` for what it raises."""
        if self._prepared is None:
            await self.observe([])
        prepared = cast(Prepared, self._prepared)
        prompt = len(prepared.prompt_ids)
        room = self._room(prepared)
        output = await self._sample(prepared, self._model.params_for(self.request_id, self._turn, room))
        parsed = await self.rendered(
            4 * len(output.token_ids), lambda: self._model.renderer.parse(output.token_ids, self._tools)
        )
        with boundary(ModelError, "the engine's output cannot be recorded"):
            turn = self._graph.commit(prepared, output, parsed)
        self._prepared = None
        self.messages.append(turn.message)
        usable = any(call.error is None for call in parsed.tool_calls)
        reason = "tool_calls" if parsed.tool_calls else "stop"
        ended = bool(turn.ids) and turn.ids[-1] in self._model.renderer.stop_token_ids
        if output.finish_reason == "length" and not ended:
            reason = "context" if len(turn.ids) >= room else "length"
        start = prompt - self._opening
        return ModelTurn(
            turn.message,
            reason,
            Usage(prompt, len(turn.ids), output.cached_tokens),
            (start, start + len(turn.ids)),
            parse_failed=parsed.marker_seen and not usable,
        )

    async def observe(self, messages: Sequence[Message]) -> None:
        """Append what follows the last turn; all or nothing."""
        if self._prepared is not None:
            raise ValueError("an observation follows a turn that was sampled")
        last = self._graph.turns[-1]
        prepared = await self.rendered(
            sum(len(m.content) for m in messages), lambda: self._graph.follow(last, messages)
        )
        limit, added = self._limit(prepared), len(prepared.context.ids)
        if limit is not None and len(prepared.prompt_ids) >= limit:
            raise ContextLengthError(f"the observation needs {added} tokens, the window of {limit} has no room")
        if prepared.parent is None:
            self._opening = len(prepared.prompt_ids)
        self._prepared = prepared
        self.messages.extend(messages)

    async def close(self) -> None:
        """Let the engine forget this conversation."""
        await self._model.backend.release(self.request_id)

    async def rendered(self, characters: int, work: Callable[[], _T]) -> _T:
        """`work()`, on a thread when the text is long: rendering must not stall other episodes."""
        return work() if characters < _INLINE_CHARACTERS else await asyncio.to_thread(work)

    @property
    def _turn(self) -> int:
        return len(self._graph.turns)

    def _limit(self, prepared: Prepared) -> int | None:
        """Tokens that the conversation may have in all, None without a limit."""
        limit, more = self._model.max_context, self._model.max_response
        if more is None:
            return limit
        opening = len(prepared.prompt_ids) if prepared.parent is None else self._opening
        return opening + more if limit is None else min(limit, opening + more)

    def _room(self, prepared: Prepared) -> int:
        prompt, limit = len(prepared.prompt_ids), self._limit(prepared)
        room = (limit if limit is not None else 1 << 31) - prompt
        if room <= 0:
            raise ContextLengthError(f"the prompt has {prompt} tokens, the window {limit}")
        return room

    async def _sample(self, prepared: Prepared, params: SamplingParams) -> TokenOutput:
        """One generation, within the model's deadline and retries. Aborted parts are dropped and counted."""
        model = self._model
        sampling = await sample(
            model.backend,
            self.request_id,
            prepared.prompt_ids,
            params,
            timeout=model.timeout,
            retries=model.retries,
            on_abort=model.on_abort,
            on_drop=self._graph.record_drop,
            media=prepared.images,
        )
        preempted = sampling.output.extra.get("num_preempted")
        if isinstance(preempted, int) and preempted >= 0:  # verl's servers say -1 for what they do not know
            self.preempted = (self.preempted or 0) + preempted
        return sampling.output
