"""Token chains from what a chat server returns beside its text (vLLM: `prompt_token_ids`, `choices[].token_ids`)."""

from __future__ import annotations

from typing import Any

from uni_agent.engine.base import TokenOutput
from uni_agent.errors import ModelError
from uni_agent.tokens.accounting import record_drop
from uni_agent.tokens.cache import RolloutCache


class TokenRecorder:
    """Builds one chain for each stretch of turns in which every prompt extended what came before.

    A server that re-renders history differently breaks the stretch: a new chain starts, and the turns before it stay in
    theirs. No sampled id is re-encoded or lost.
    """

    def __init__(self, request_id: str) -> None:
        self.caches: list[RolloutCache] = []
        self._request_id = request_id

    def record(self, response: Any, choice: Any, turn: int) -> tuple[int, int]:
        """Record one turn; the half-open range of its ids in the last chain's response.

        Raises ModelError when the server, asked for token ids, returned none, ids that do not fit their logprobs, or
        fewer than it says it sampled: a gap would be a short trajectory that nobody notices.
        """
        prompt: Any = getattr(response, "prompt_token_ids", None) or getattr(choice, "prompt_token_ids", None)
        ids: Any = getattr(choice, "token_ids", None)
        if not isinstance(prompt, list) or not isinstance(ids, list):
            raise ModelError("model.token_ids is on, but the server returned no `prompt_token_ids` and `token_ids`")
        logprobs = _logprobs(choice)
        if logprobs is not None and len(logprobs) != len(ids):  # pyright: ignore[reportUnknownArgumentType]
            raise ModelError(f"the server returned {len(ids)} token ids but {len(logprobs)} logprobs")  # pyright: ignore
        counted: Any = getattr(getattr(response, "usage", None), "completion_tokens", None)
        if isinstance(counted, int) and counted != len(ids):  # pyright: ignore[reportUnknownArgumentType]
            raise ModelError(f"the server counts {counted} sampled tokens but returned {len(ids)} ids")  # pyright: ignore
        chain = self._chain_for(prompt, turn)  # pyright: ignore[reportUnknownArgumentType]
        finish = "length" if getattr(choice, "finish_reason", None) == "length" else "stop"
        span = chain.append_sampled(TokenOutput(list(ids), logprobs, finish), turn)  # pyright: ignore
        return span.start, span.end

    def dropped(self, response: Any, choice: Any, turn: int, reason: str) -> None:
        """Count ids that were sampled and are not used: they stand in no chain, but none is lost sight of."""
        prompt: Any = getattr(response, "prompt_token_ids", None) or getattr(choice, "prompt_token_ids", None)
        ids: Any = getattr(choice, "token_ids", None)
        if isinstance(prompt, list) and isinstance(ids, list) and ids:
            chain = self._chain_for(prompt, turn)  # pyright: ignore[reportUnknownArgumentType]
            record_drop(chain, reason, len(ids))  # pyright: ignore[reportUnknownArgumentType]

    def _chain_for(self, prompt: list[int], turn: int) -> RolloutCache:
        if self.caches:
            chain = self.caches[-1]
            held = chain.ids
            if prompt[: len(held)] == held:
                if len(prompt) > len(held):
                    chain.append_context(prompt[len(held) :], turn)
                return chain
        self.caches.append(RolloutCache(f"{self._request_id}/{len(self.caches)}", prompt_ids=list(prompt)))
        return self.caches[-1]


def _logprobs(choice: Any) -> list[float] | None:
    content: Any = getattr(getattr(choice, "logprobs", None), "content", None)
    if content is None:
        return None
    return [float(item.logprob) for item in content]
