"""A vLLM server as an engine: `/inference/v1/generate`, or `/v1/completions` where that is not enabled.

Both are asked with token ids and answer with token ids; no text is read. See docs/engines.md for the server's flags.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from uni_agent.engine.base import TokenOutput
from uni_agent.engine.checked import (
    GenerationCall,
    Sampled,
    count,
    decode_npy,
    finish_reason,
    listing,
    mapping,
    weight_spans,
)
from uni_agent.engine.http import RefusedError, Replica, ReplicaPool
from uni_agent.engine.images import data_url
from uni_agent.engine.remote import ABORT_SECONDS, RemoteBackend
from uni_agent.engine.streaming import Handover
from uni_agent.errors import ConfigError, ModelError, boundary

_NO_SUCH_ROUTE = (403, 404, 405)
_ID_PREFIX = "token_id:"
_NO_LOGPROB = -9999.0
"""What vLLM writes for a logprob that is missing, NaN or minus infinity."""


class VllmBackend(RemoteBackend):
    """A SamplingBackend over vLLM servers.

    `model` is the served name (a LoRA adapter's, too); None takes the server's first. `endpoint` "auto" asks each
    server for `generate` once and stays with `completions` where it is refused. `extra_body` goes into every request.

    Images need `generate` of vLLM 0.32 or later: the ids have one placeholder for each, the image stands beside them
    (`content_parts`), and the server lays it out. The prompt that it then tells must be the one that was given.
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

    @property
    def reads_media(self) -> bool:
        """Whether images can be sent: not to `completions`."""
        return self._endpoint != "completions"

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
                return await self._ask(replica, "/inference/v1/generate", self._body(call, "generate"), call)
            except RefusedError as error:
                # A model that it does not serve is a 404, too.
                if error.status not in _NO_SUCH_ROUTE or "does not exist" in str(error):
                    raise
                if self._endpoint == "generate":
                    raise ModelError(f"{error}; start vLLM with --enable-scale-out") from error
                self._without_generate.add(replica)
        if call.media:
            raise ModelError(f"{replica.url} takes no images beside token ids; start vLLM with --enable-scale-out")
        return await self._ask(replica, "/v1/completions", self._body(call, "completions"), call)

    async def _ask(self, replica: Replica, path: str, body: dict[str, Any], call: GenerationCall) -> TokenOutput:
        if call.handover is None:
            return _read(await self._pool.post(replica, path, body, session=call.request_id), call, replica)
        stream = _Stream(call, call.handover, replica.url, lambda: self._stop(replica, call.call_id))
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        ended = await self._pool.stream(replica, path, body, stream.take, session=call.request_id)
        return _read(stream.answer(ended), call, replica, requested=stream.requested)

    def _stop(self, replica: Replica, call_id: str) -> float:
        """End a generation on request: by name, so that the last event with its weight versions still comes."""
        if not self._names(replica):
            return 0
        self._abort_later(replica, call_id)
        return ABORT_SECONDS

    def _names(self, replica: Replica) -> bool:
        """Whether the replica aborts by name. Without, the closed connection aborts, unless a proxy stands between."""
        return self._endpoint != "completions" and replica not in self._without_generate

    def _body(self, call: GenerationCall, endpoint: Literal["generate", "completions"]) -> dict[str, Any]:
        sampling = sampling_fields(call)
        body: dict[str, Any] = {**self._extra_body, "request_id": call.call_id, "stream": False}
        if self._model is not None:
            body["model"] = self._model
        if endpoint == "generate":
            asked: dict[str, Any] = {"token_ids": folded(call), "return_token_ids": True}
            if call.media:
                asked["content_parts"] = [{"type": "image_url", "url": data_url(image.media)} for image in call.media]
            return {**body, **asked, "sampling_params": sampling}
        asked = {"prompt": call.prompt_ids, "return_token_ids": True, "return_tokens_as_token_ids": True}
        return {**body, **sampling, **asked}

    async def _abort(self, replica: Replica, call_id: str) -> None:
        if not self._names(replica):
            return
        body = {"request_ids": [f"generate-tokens-{call_id}"]}
        async with asyncio.timeout(ABORT_SECONDS):
            await self._pool.tell(replica, "/inference/v1/abort_requests", body)


@dataclass(slots=True)
class _Stream:
    """Puts the events of one call together to the answer that it would have been as a whole.

    `stop` ends the call on the server and returns the seconds in which its last event may still come.
    """

    call: GenerationCall
    handover: Handover
    url: str
    stop: Callable[[], float]
    ids: list[int] = field(default_factory=list[int])
    logprobs: list[Any] = field(default_factory=list[Any])
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    echoed: Any = None
    usage: Any = None
    requested: bool = False

    def take(self, event: dict[str, Any]) -> float | None:
        """Hand the event's ids over; what `ReplicaPool.stream` asks for. Raises ModelError when it is no chunk."""
        self.usage = event.get("usage") or self.usage
        self.echoed = event.get("prompt_token_ids") or self.echoed
        choices = listing(event.get("choices"))
        if choices is None or len(choices) > 1:
            raise ModelError(f"{self.url} streams {len(choices or ())} choices, 1 was asked for")
        if not choices:
            return None
        choice = mapping(choices[0])
        self.echoed = choice.get("prompt_token_ids") or self.echoed
        if self.last.get("finish_reason"):
            raise ModelError(f"{self.url} streams on after its last chunk")
        self.last = choice
        return None if self.requested else self._add(choice)

    def _add(self, choice: dict[str, Any]) -> float | None:
        finish = choice.get("finish_reason")
        with boundary(ModelError, f"{self.url}: the logprobs cannot be read"):
            beside, logprobs = _beside(choice.get("logprobs"))
        named = listing(choice.get("token_ids")) or []
        sampled = Sampled(named, beside or None, logprobs, "stop" if finish == "stop" else "length")
        ids = sampled.agreed()
        if len(logprobs or ()) != len(ids):
            raise ModelError(f"{self.url} streams {len(ids)} token ids with {len(logprobs or ())} logprobs")
        self.ids += ids
        self.logprobs += logprobs or ()
        if len(self.ids) > self.call.max_tokens:
            raise ModelError(f"{self.url} streams more than the {self.call.max_tokens} tokens that were asked for")
        if self.handover.give(ids) and not finish:
            self.requested = True
            return self.stop()
        return None

    def answer(self, ended: bool) -> dict[str, Any]:
        """The whole answer. Raises ModelError when the stream `ended` without a chunk that says how."""
        if ended and not self.requested and not self.last.get("finish_reason"):
            raise ModelError(f"{self.url}: the stream ended without a finish_reason")
        choice: dict[str, Any] = {
            **self.last,
            "token_ids": self.ids,
            "logprobs": {"tokens": self.ids, "token_logprobs": self.logprobs},
            "prompt_token_ids": self.echoed,
        }
        return {"choices": [choice], "usage": self.usage}


def folded(call: GenerationCall) -> list[int]:
    """The prompt with one placeholder for each image, as vLLM wants it: longer runs would be laid out once more."""
    out: list[int] = []
    at = 0
    for image in call.media:
        out += call.prompt_ids[at : image.start + 1]
        at = image.start + image.length
    return out + call.prompt_ids[at:] if call.media else call.prompt_ids


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


def _read(answer: dict[str, Any], call: GenerationCall, replica: Replica, *, requested: bool = False) -> TokenOutput:
    """The checked output. `requested`: it was stopped on request, and its last event may tell of more tokens."""
    choices = listing(answer.get("choices"))
    if not choices or len(choices) != 1:
        raise ModelError(f"{replica.url} returned {len(choices or ())} choices, 1 was asked for")
    choice = mapping(choices[0])
    echoed = listing(choice.get("prompt_token_ids")) or listing(answer.get("prompt_token_ids"))
    if call.media and echoed is None:
        raise ModelError(f"{replica.url} does not tell how it laid out the prompt's images; vLLM 0.32 or later does")
    if echoed is not None and echoed != call.prompt_ids:
        raise ModelError(f"{replica.url} sampled after a prompt of {len(echoed)} tokens that is not the one sent")
    usage = mapping(answer.get("usage"))
    with boundary(ModelError, f"{replica.url}: the logprobs cannot be read"):
        logprob_ids, logprobs = _beside(choice.get("logprobs"))
    finish = "stop" if requested else finish_reason(choice.get("finish_reason"))
    ids, checked = Sampled(
        listing(choice.get("token_ids")),
        logprob_ids,
        logprobs,
        finish,
        stop_id=None if requested else choice.get("stop_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=None if requested else usage.get("completion_tokens"),
        requested=requested,
    ).checked(call)
    if any(value <= _NO_LOGPROB for value in checked or ()):
        raise ModelError(f"{replica.url} has no logprob for a token that it sampled")
    experts = choice.get("routed_experts")
    return TokenOutput(
        ids,
        checked,
        finish,
        weight_spans=weight_spans(choice.get("weight_versions"), len(ids), cut=requested),
        routed_experts=None if requested else decode_npy(experts) if isinstance(experts, str) else experts,
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
