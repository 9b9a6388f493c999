"""An SGLang server, or its router, as an engine: `/generate` with token ids. See docs/engines.md for the flags."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.engine.checked import GenerationCall, Sampled, count, decode_int32, finish_reason, listing, mapping
from uni_agent.engine.http import RefusedError, Replica, ReplicaPool, is_context_error
from uni_agent.engine.remote import ABORT_SECONDS, RemoteBackend
from uni_agent.engine.vllm import merged
from uni_agent.errors import ContextLengthError, ModelError

_INFO_PATHS = ("/get_model_info", "/model_info", "/get_server_info", "/server_info", "/v1/models")


class SglangBackend(RemoteBackend):
    """A SamplingBackend over SGLang servers.

    `routed_experts` (layers, experts per token) asks for the experts of each token and gives their shape. `extra_body`
    goes into every request, beside `input_ids`.
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
        if self._routed_experts is not None:
            body["return_routed_experts"] = True
        answer = await self._pool.post(replica, "/generate", body, session=call.request_id)
        return self._read(answer, call, replica)

    def _read(self, answer: dict[str, Any], call: GenerationCall, replica: Replica) -> TokenOutput:
        meta = mapping(answer.get("meta_info"))
        ending = meta.get("finish_reason")
        reason = mapping(ending) or {"type": ending}
        finish = finish_reason(reason.get("type"))
        message = str(reason.get("message") or "")
        if finish == "abort" and is_context_error(message):
            raise ContextLengthError(f"{replica.url}: {message}")
        rows = listing(meta.get("output_token_logprobs"))
        if rows is not None and not all(isinstance(row, list) and len(listing(row) or ()) >= 2 for row in rows):
            raise ModelError(f"{replica.url}: output_token_logprobs are not pairs of logprob and id")
        ids, logprobs = Sampled(
            listing(answer.get("output_ids")),
            None if rows is None else [row[1] for row in rows],
            None if rows is None else [row[0] for row in rows],
            finish,
            stop_id=reason.get("matched"),
            prompt_tokens=meta.get("prompt_tokens"),
            completion_tokens=meta.get("completion_tokens"),
        ).checked(call)
        version = meta.get("weight_version")
        extra: dict[str, Any] = {"replica": replica.url, "call_id": call.call_id}
        if message:
            extra["message"] = message
        return TokenOutput(
            ids,
            logprobs,
            finish,
            weight_spans=(WeightSpan(str(version), 0, len(ids)),) if version is not None and ids else (),
            routed_experts=self._experts(meta.get("routed_experts")),
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
