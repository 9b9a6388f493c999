"""The Tinker service as an engine, through its SDK's sampling client."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Protocol

from uni_agent.engine.base import OnTokens, SamplingParams, TokenOutput, WeightSpan
from uni_agent.engine.checked import GenerationCall, Sampled, count, finish_reason, token_limit
from uni_agent.engine.http import is_context_error
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, boundary
from uni_agent.optional import load


class TinkerClient(Protocol):
    """What is used of the SDK's `SamplingClient` (tinker 0.38): the answer can be awaited."""

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        """A future of a SampleResponse."""
        ...


class TinkerBackend:
    """A SamplingBackend over Tinker: `model_path` (`tinker://…`, saved weights) or `base_model`, sampled at `base_url`.

    `client` is used in place of one that `start` would make; a trainer gives that of its latest weights, and their name
    as `model_path`. Its `weight_spans` carry that name. `api_key_env` names the variable with the key; None leaves it
    to the SDK (`TINKER_API_KEY`). `sdk` is a stand-in for the module `tinker`. `max_context` is the model's window,
    which the service does not tell.

    The service returns whole answers, so `on_tokens` is never called, and a cancelled call is dropped here while the
    service may sample on. It retries by itself. It knows temperature, top_p, top_k, max_tokens, seed and
    stop ids; anything else is an error. `extra` of an output has its `sequence_id`.
    """

    def __init__(
        self,
        *,
        model_path: str | None = None,
        base_model: str | None = None,
        base_url: str | None = None,
        api_key_env: str | None = None,
        client: TinkerClient | None = None,
        sdk: Any = None,
        max_context: int | None = None,
    ) -> None:
        if client is None and (model_path is None) == (base_model is None):
            raise ConfigError("engine: give either `model_path` or `base_model`")
        self._model_path = model_path
        self._base_model = base_model
        self._base_url = base_url
        self._api_key_env = api_key_env
        self._given = client
        self._max_context = max_context
        self._client: TinkerClient | None = None
        self._service: Any = None
        self._sdk: Any = sdk
        self._lock = asyncio.Lock()

    @property
    def max_context(self) -> int | None:
        """The window that was given, or None."""
        return self._max_context

    async def start(self) -> None:
        """Open a session. Raises MissingExtraError without the SDK, ConfigError when the service refuses."""
        async with self._lock:
            if self._client is not None:
                return
            self._sdk = self._sdk or load("tinker", extra="tinker", needed_for="engine.type 'tinker'")
            if self._given is not None:
                self._client = self._given
                return
            key = None
            if self._api_key_env is not None and not (key := os.environ.get(self._api_key_env)):
                raise ConfigError(
                    f"engine.api_key_env names {self._api_key_env}, which is not set: export {self._api_key_env}=…"
                )
            with boundary(ConfigError, "engine: Tinker cannot be used"):
                self._service, self._client = await asyncio.to_thread(self._connect, key)

    def _connect(self, key: str | None) -> tuple[Any, TinkerClient]:
        service = self._sdk.ServiceClient(base_url=self._base_url, api_key=key)
        future = service.create_sampling_client(model_path=self._model_path, base_model=self._base_model)
        return service, future.result()

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling: SamplingParams, *, on_tokens: OnTokens | None = None
    ) -> TokenOutput:
        """Sample one continuation. Raises ContextLengthError for a full window, else ModelError."""
        del on_tokens
        client = self._client
        if client is None:
            raise ModelError("the engine is not started")
        limit = token_limit(prompt_ids, sampling, self._max_context, "Tinker")
        call = GenerationCall("", request_id, list(prompt_ids), sampling, limit)
        try:
            prompt = self._sdk.ModelInput.from_ints(call.prompt_ids)
            params = self._sdk.SamplingParams(**sampling_fields(call))
            answer = await client.sample(prompt=prompt, num_samples=1, sampling_params=params)
        except ModelError:
            raise
        except Exception as error:
            cls = ContextLengthError if is_context_error(str(error)) else ModelError
            raise cls(f"Tinker failed: {type(error).__name__}: {error}") from error
        with boundary(ModelError, "Tinker's answer cannot be read"):
            return self._read(answer, call)

    def _read(self, answer: Any, call: GenerationCall) -> TokenOutput:
        if len(answer.sequences) != 1:
            raise ModelError(f"Tinker returned {len(answer.sequences)} sequences, 1 was asked for")
        (sequence,) = answer.sequences
        finish = finish_reason(sequence.stop_reason)
        logprobs = sequence.logprobs
        ids, checked = Sampled(
            list(sequence.tokens), None, None if logprobs is None else list(logprobs), finish
        ).checked(call)
        stops = call.sampling.stop_token_ids
        if finish == "stop" and stops and ids[-1] not in stops:
            raise ModelError("Tinker stopped at a stop token but left it out of the ids it returned")
        name = self._model_path or self._base_model
        return TokenOutput(
            ids,
            checked,
            finish,
            weight_spans=(WeightSpan(name, 0, len(ids)),) if name is not None and ids else (),
            cached_tokens=count(getattr(answer, "prompt_cache_hit_tokens", 0)),
            extra={"sequence_id": getattr(sequence, "sequence_id", None)},
        )

    async def release(self, request_id: str) -> None:
        """Do nothing: the service drops by itself what is old."""
        del request_id

    async def close(self) -> None:
        """Leave the session; a given client stays open."""
        async with self._lock:
            service, self._service, self._client = self._service, None, None
        close = getattr(service, "close", None)  # older SDKs end with the process
        if close is not None:
            with boundary(ModelError, "Tinker's session cannot be closed"):
                await asyncio.to_thread(lambda: close("success").result())


def sampling_fields(call: GenerationCall) -> dict[str, Any]:
    """The call's sampling as Tinker names it. Raises ModelError for what it does not know."""
    sampling = call.sampling
    unknown = {"min_p": sampling.min_p != 0, "repetition_penalty": sampling.repetition_penalty != 1}
    names = [name for name, given in unknown.items() if given] + sorted(sampling.extra)
    if names:
        raise ModelError(f"Tinker has no sampling options {', '.join(names)}")
    fields: dict[str, Any] = {
        "max_tokens": call.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }
    if sampling.seed is not None:
        fields["seed"] = sampling.seed
    if sampling.stop_token_ids:  # an empty list would switch the model's own end off
        fields["stop"] = list(sampling.stop_token_ids)
    return fields
