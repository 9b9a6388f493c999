"""A vLLM server as an engine: `/inference/v1/generate`, or `/v1/completions` where that is not enabled.

Both are asked with token ids and answer with token ids; no text is read. See docs/engines.md for the server's flags.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.engine.checked import GenerationCall, Sampled, count, decode_npy, finish_reason, listing, mapping
from uni_agent.engine.http import RefusedError, Replica, ReplicaPool
from uni_agent.engine.remote import ABORT_SECONDS, RemoteBackend
from uni_agent.errors import ConfigError, ModelError, boundary

_NO_SUCH_ROUTE = (403, 404, 405)
_ID_PREFIX = "token_id:"


class VllmBackend(RemoteBackend):
    """A SamplingBackend over vLLM servers.

    `model` is the served name (a LoRA adapter's, too); None takes the server's first. `endpoint` "auto" asks each
    server for `generate` once and stays with `completions` where it is refused. `extra_body` goes into every request.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        *,
        model: str | None = None,
        endpoint: Literal["auto", "generate", "completions"] = "auto",
        extra_body: Mapping[str, Any] | None = None,
        retries: int = 3,
        backoff: float = 0.5,
    ) -> None:
        super().__init__(pool, retries=retries, backoff=backoff)
        self._model = model
        self._endpoint = endpoint
        self._extra_body = dict(extra_body or {})
        self._without_generate: set[Replica] = set()

    async def _window(self, replica: Replica) -> int | None:
        body = await self._pool.get(replica, "/v1/models")
        cards = [mapping(card) for card in listing(body.get("data")) or []]
        names = [card["id"] for card in cards if isinstance(card.get("id"), str)]
        if self._model is not None and self._model not in names:
            known = ", ".join(names) or "no model"
            raise ConfigError(f"engine.model: {replica.url} serves {known}, not {self._model}")
        # An adapter's card names no window of its own: it has that of its base model.
        chosen = [card for card in cards if card.get("id") == self._model] or cards
        windows = [count(card.get("max_model_len")) for card in (*chosen, *cards)]
        return next((window for window in windows if window), None)

    async def _exchange(self, replica: Replica, call: GenerationCall) -> TokenOutput:
        if self._endpoint != "completions" and replica not in self._without_generate:
            try:
                body = self._body(call, "generate")
                answer = await self._pool.post(replica, "/inference/v1/generate", body, session=call.request_id)
                return _read(answer, call, replica)
            except RefusedError as error:
                if error.status not in _NO_SUCH_ROUTE:
                    raise
                if self._endpoint == "generate":
                    raise ModelError(f"{error}; start vLLM with --enable-scale-out") from error
                self._without_generate.add(replica)
        body = self._body(call, "completions")
        answer = await self._pool.post(replica, "/v1/completions", body, session=call.request_id)
        return _read(answer, call, replica)

    def _body(self, call: GenerationCall, endpoint: Literal["generate", "completions"]) -> dict[str, Any]:
        sampling = sampling_fields(call)
        body: dict[str, Any] = {**self._extra_body, "request_id": call.call_id, "stream": False}
        if self._model is not None:
            body["model"] = self._model
        if endpoint == "generate":
            return {**body, "token_ids": call.prompt_ids, "sampling_params": sampling}
        asked = {"prompt": call.prompt_ids, "return_token_ids": True, "return_tokens_as_token_ids": True}
        return {**body, **sampling, **asked}

    async def _abort(self, replica: Replica, call_id: str) -> None:
        # The closed connection aborts the call by itself, unless a proxy stands between.
        if self._endpoint == "completions" or replica in self._without_generate:
            return
        body = {"request_ids": [f"generate-tokens-{call_id}"]}
        async with asyncio.timeout(ABORT_SECONDS):
            await self._pool.tell(replica, "/inference/v1/abort_requests", body)


def sampling_fields(call: GenerationCall) -> dict[str, Any]:
    """The call's sampling as vLLM names it. Raises ModelError when `extra` would replace a field set here."""
    sampling = call.sampling
    fields: dict[str, Any] = {
        "n": 1,
        "max_tokens": call.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": 0,  # of the sampled token alone
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    return merged(fields, sampling.extra)


def merged(fields: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` and `extra`. Raises ModelError for an overlap: what the record is checked against stays as sent."""
    if taken := sorted(fields.keys() & extra.keys()):
        raise ModelError(f"sampling.extra may not replace {', '.join(taken)}")
    return {**fields, **extra}


def _read(answer: dict[str, Any], call: GenerationCall, replica: Replica) -> TokenOutput:
    choices = listing(answer.get("choices"))
    if not choices or len(choices) != 1:
        raise ModelError(f"{replica.url} returned {len(choices or ())} choices, 1 was asked for")
    choice = mapping(choices[0])
    echoed = listing(choice.get("prompt_token_ids")) or listing(answer.get("prompt_token_ids"))
    if echoed is not None and echoed != call.prompt_ids:
        raise ModelError(f"{replica.url} sampled after a prompt of {len(echoed)} tokens that is not the one sent")
    usage = mapping(answer.get("usage"))
    with boundary(ModelError, f"{replica.url}: the logprobs cannot be read"):
        logprob_ids, logprobs = _beside(choice.get("logprobs"))
    finish = finish_reason(choice.get("finish_reason"))
    ids, checked = Sampled(
        listing(choice.get("token_ids")),
        logprob_ids,
        logprobs,
        finish,
        stop_id=choice.get("stop_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
    ).checked(call)
    experts = choice.get("routed_experts")
    return TokenOutput(
        ids,
        checked,
        finish,
        weight_spans=_weight_spans(choice.get("weight_versions"), len(ids)),
        routed_experts=decode_npy(experts) if isinstance(experts, str) else experts,
        cached_tokens=count(mapping(usage.get("prompt_tokens_details")).get("cached_tokens")),
        extra={"replica": replica.url, "call_id": call.call_id},
    )


def _beside(raw: Any) -> tuple[list[Any] | None, list[Any] | None]:
    """The ids that stand beside the logprobs, and the logprobs: of `content` (generate) or of lists (completions)."""
    if raw is None:
        return None, None
    if (content := listing(raw.get("content"))) is not None:
        return _named([item.get("token_id", item.get("token")) for item in content]), [i["logprob"] for i in content]
    return _named(listing(raw.get("tokens")) or []), listing(raw["token_logprobs"])


def _named(tokens: list[Any]) -> list[Any] | None:
    """Ids from numbers or `token_id:N`; None when the server wrote texts instead."""
    if tokens and all(type(token) is int for token in tokens):
        return tokens
    if tokens and all(isinstance(token, str) and token.startswith(_ID_PREFIX) for token in tokens):
        return [int(token.removeprefix(_ID_PREFIX)) for token in tokens]
    return None


def _weight_spans(raw: Any, length: int) -> tuple[WeightSpan, ...]:
    spans: list[WeightSpan] = []
    for item in map(mapping, listing(raw) or []):
        start, end = item.get("start"), item.get("end")
        if type(start) is not int or type(end) is not int or not 0 <= start <= end <= length:
            raise ModelError(f"the server's weight_versions name tokens {start!r} to {end!r} of {length}")
        if start < end:
            spans.append(WeightSpan(str(item.get("version")), start, end))
    return tuple(spans)
