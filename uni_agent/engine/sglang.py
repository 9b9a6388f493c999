"""An SGLang server, or its router, as an engine: `/generate` with token ids. See docs/engines.md for the flags."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.engine.checked import (
    GenerationCall,
    Sampled,
    count,
    decode_int32,
    finish_reason,
    listing,
    mapping,
    weight_spans,
)
from uni_agent.engine.http import RefusedError, Replica, ReplicaPool, failure, is_context_error
from uni_agent.engine.images import data_url
from uni_agent.engine.remote import ABORT_SECONDS, RemoteBackend
from uni_agent.engine.streaming import Handover
from uni_agent.engine.vllm import merged
from uni_agent.errors import ContextLengthError, ModelError

_INFO_PATHS = ("/get_model_info", "/model_info", "/get_server_info", "/server_info", "/v1/models")


class SglangBackend(RemoteBackend):
    """A SamplingBackend over SGLang servers.

    `routed_experts` (layers, experts per token) asks for the experts of each token and gives their shape. `extra_body`
    goes into every request, beside `input_ids`.

    Images go beside the ids as `image_data`. The server lays each out anew over its run of placeholders: its count of
    the prompt's tokens must then be that of the ids, so that a server with another image processor is found out.
    """

    def __init__(
        self,
        pool: ReplicaPool,
        *,
        routed_experts: tuple[int, int] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        retries: int = 3,
        backoff: float = 0.5,
    ) -> None:
        super().__init__(pool, retries=retries, backoff=backoff)
        self._routed_experts = routed_experts
        self._extra_body = dict(extra_body or {})

    @property
    def reads_media(self) -> bool:
        """True: images are sent as `image_data`."""
        return True

    async def _window(self, replica: Replica) -> int | None:
        """The first route that names a window; routes come and go between versions and routers."""
        refused: ModelError | None = None
        answered = False
        for path in _INFO_PATHS:
            try:
                info = await self._pool.get(replica, path)
            except RefusedError as error:
                if error.status in (401, 403):
                    raise
                refused = error
                continue
            answered = True
            cards = [mapping(card) for card in listing(info.get("data")) or []]
            windows = [count(info.get("context_length")), *(count(card.get("max_model_len")) for card in cards)]
            if window := next((window for window in windows if window), None):
                return window
        if refused is not None and not answered:
            raise refused
        return None

    async def _exchange(self, replica: Replica, call: GenerationCall) -> TokenOutput:
        body: dict[str, Any] = {
            **self._extra_body,
            "rid": call.call_id,
            "input_ids": call.prompt_ids,
            "sampling_params": sampling_fields(call),
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": False,
        }
        if call.media:
            body["image_data"] = [data_url(image.media) for image in call.media]
        if self._routed_experts is not None:
            body["return_routed_experts"] = True
        if call.handover is None:
            answer = await self._pool.post(replica, "/generate", body, session=call.request_id)
            return self._read(answer, call, replica)
        stream = _Stream(call, call.handover, replica.url)
        body["stream"] = True
        ended = await self._pool.stream(replica, "/generate", body, stream.take, session=call.request_id)
        if stream.requested:
            self._abort_later(replica, call.call_id)
        return self._read(stream.answer(ended), call, replica, requested=stream.requested)

    def _read(
        self, answer: dict[str, Any], call: GenerationCall, replica: Replica, *, requested: bool = False
    ) -> TokenOutput:
        meta = mapping(answer.get("meta_info"))
        ending = {"type": "stop"} if requested else meta.get("finish_reason")
        reason = mapping(ending) or {"type": ending}
        finish = finish_reason(reason.get("type"))
        message = str(reason.get("message") or "")
        if finish == "abort":
            _raise_failed(replica.url, reason.get("status_code"), message)
        rows = logprob_rows(meta, replica.url)
        ids, logprobs = Sampled(
            listing(answer.get("output_ids")),
            None if rows is None else [row[1] for row in rows],
            None if rows is None else [row[0] for row in rows],
            finish,
            stop_id=reason.get("matched"),
            prompt_tokens=meta.get("prompt_tokens"),
            completion_tokens=None if requested else meta.get("completion_tokens"),
            requested=requested,
        ).checked(call)
        extra: dict[str, Any] = {"replica": replica.url, "call_id": call.call_id}
        if message:
            extra["message"] = message
        return TokenOutput(
            ids,
            logprobs,
            finish,
            weight_spans=_versions(meta, len(ids), cut=requested),
            routed_experts=None if requested else self._experts(meta.get("routed_experts")),
            cached_tokens=count(meta.get("cached_tokens")),
            extra=extra,
        )

    def _experts(self, raw: Any) -> Any:
        if self._routed_experts is None or not isinstance(raw, str):
            return None
        return decode_int32(raw, *self._routed_experts)

    async def _abort(self, replica: Replica, call_id: str) -> None:
        async with asyncio.timeout(ABORT_SECONDS):
            await self._pool.tell(replica, "/abort_request", {"rid": call_id})


@dataclass(slots=True)
class _Stream:
    """Puts the events of one call together to the answer that it would have been as a whole.

    Each event holds either everything until then (the default) or what is new (`--incremental-streaming-output`, some
    versions for a part of the fields); `completion_tokens` is always the count until then and tells which.
    """

    call: GenerationCall
    handover: Handover
    url: str
    ids: list[int] = field(default_factory=list[int])
    rows: list[Any] = field(default_factory=list[Any])
    versions: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    requested: bool = False

    def take(self, event: dict[str, Any]) -> float | None:
        """Hand the event's new ids over; what `ReplicaPool.stream` asks for. Raises ModelError when it is no chunk."""
        meta = mapping(event.get("meta_info"))
        if not meta:
            raise ModelError(f"{self.url} streams an event without meta_info")
        self.meta = meta
        finish = mapping(meta.get("finish_reason")).get("type")
        rows = logprob_rows(meta, self.url) or []
        total, have = meta.get("completion_tokens"), len(self.ids)
        if total not in (len(rows), have + len(rows)) and (rows or finish != "abort"):
            raise ModelError(f"{self.url} streams {len(rows)} logprobs after {have}, but counts {total} tokens")
        new = rows[have:] if total == len(rows) else rows
        named, beside = listing(event.get("output_ids")), [row[1] for row in new]
        choices = (None,) if named is None else (named[have:], named)
        fits = [ids for ids in choices if ids is None or ids == beside or (finish == "stop" and ids == beside[:-1])]
        if not fits and beside:
            raise ModelError(f"{self.url} streams token ids that are not those that its logprobs stand beside")
        ids = Sampled(None, beside, None, "stop").agreed()
        self.rows += new
        self.ids += ids
        self._mark(meta.get("weight_version"), have)
        if len(self.ids) > self.call.max_tokens:
            raise ModelError(f"{self.url} streams more than the {self.call.max_tokens} tokens that were asked for")
        if self.handover.give(ids) and not finish:
            self.requested = True
            return 0
        return None

    def _mark(self, version: Any, start: int) -> None:
        """Note which weights the ids from `start` on are of, as far as an event tells."""
        if version is None or start == len(self.ids):
            return
        if not self.versions or self.versions[-1]["version"] != version:
            self.versions.append({"version": version, "start": start})
        self.versions[-1]["end"] = len(self.ids)

    def answer(self, ended: bool) -> dict[str, Any]:
        """The whole answer. Raises ModelError when the stream `ended` without an event that says how."""
        if ended and not self.requested and not self.meta.get("finish_reason"):
            raise ModelError(f"{self.url}: the stream ended without a finish_reason")
        meta = {"weight_versions": self.versions, **self.meta, "output_token_logprobs": self.rows}
        return {"output_ids": self.ids, "meta_info": meta}


def logprob_rows(meta: dict[str, Any], url: str) -> list[Any] | None:
    """The rows [logprob, id, …] of an answer, None when it has none. Raises ModelError for other shapes."""
    rows = listing(meta.get("output_token_logprobs"))
    if rows is not None and not all(len(listing(row) or ()) >= 2 for row in rows):
        raise ModelError(f"{url}: output_token_logprobs are not pairs of logprob and id")
    return rows


def _raise_failed(url: str, status: Any, message: str) -> None:
    """Raise what an `abort` stands for that is in truth an error: a full window, or an HTTP status in its reason."""
    if is_context_error(message):
        raise ContextLengthError(f"{url}: {message}")
    if type(status) is int and status >= 400:
        raise failure(url, status, 0.0, message)


def _versions(meta: dict[str, Any], length: int, *, cut: bool) -> tuple[WeightSpan, ...]:
    """The weights of each token: as the server lists them, else those that it names for the whole answer."""
    if spans := weight_spans(meta.get("weight_versions"), length, cut=cut):
        return spans
    version = meta.get("weight_version")
    return (WeightSpan(str(version), 0, length),) if version is not None and length else ()


def sampling_fields(call: GenerationCall) -> dict[str, Any]:
    """The call's sampling as SGLang names it. Raises ModelError when `extra` would replace a field set here."""
    sampling = call.sampling
    fields: dict[str, Any] = {
        "n": 1,
        "max_new_tokens": call.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
    }
    if sampling.seed is not None:
        fields["sampling_seed"] = sampling.seed
    return merged(fields, sampling.extra)
