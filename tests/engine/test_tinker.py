"""What is Tinker's own; what its backend shares with others is in test_backend_contract.py.

The service's wire (sessions, queued futures, protobuf) is the SDK's: the SDK's client is what is played here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.engine.fake_clients import Answer, FakeTinkerClient, FakeTinkerSdk
from uni_agent.engine import EngineConfig
from uni_agent.engine.base import SamplingParams, WeightSpan
from uni_agent.engine.tinker import TinkerBackend
from uni_agent.errors import ConfigError, ContextLengthError, MissingExtraError, ModelError

ENGINE: TypeAdapter[Any] = TypeAdapter(EngineConfig)
PARAMS = SamplingParams(max_tokens=8, stop_token_ids=(9,))


async def started(*answers: Answer, **options: Any) -> tuple[TinkerBackend, FakeTinkerClient]:
    client = FakeTinkerClient(*answers)
    chosen: dict[str, Any] = {"model_path": "tinker://run/weights/7", **options}
    backend = TinkerBackend(client=client, sdk=FakeTinkerSdk, **chosen)
    await backend.start()
    return backend, client


async def test_sampling_is_named_as_tinker_names_it() -> None:
    backend, client = await started(Answer())
    await backend.generate("a", [5, 6], SamplingParams(0.5, 0.9, 20, max_tokens=7, seed=3, stop_token_ids=(9, 10)))
    await backend.generate("a", [5, 6], SamplingParams(max_tokens=7))
    assert client.prompts[0] == [5, 6]
    full, plain = [dict(item) for item in map(vars, client.params)]
    assert full == {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 3, "stop": [9, 10]}
    assert plain == {"max_tokens": 7, "temperature": 1.0, "top_p": 1.0, "top_k": -1}


@pytest.mark.parametrize(
    ("params", "name"),
    [
        (SamplingParams(max_tokens=2, min_p=0.1), "min_p"),
        (SamplingParams(max_tokens=2, repetition_penalty=1.1), "repetition_penalty"),
        (SamplingParams(max_tokens=2, extra={"logit_bias": {}}), "logit_bias"),
    ],
)
async def test_sampling_that_it_does_not_know_is_refused(params: SamplingParams, name: str) -> None:
    backend, client = await started(Answer())
    with pytest.raises(ModelError, match=name):
        await backend.generate("a", [5], params)
    assert client.params == []


async def test_the_weights_mark_each_token() -> None:
    backend, _ = await started(Answer())
    output = await backend.generate("a", [5], PARAMS)
    assert output.weight_spans == (WeightSpan("tinker://run/weights/7", 0, 3),)
    assert (output.cached_tokens, output.extra["sequence_id"]) == (2, "s1")


def no_logprobs(answer: Any) -> None:
    answer.sequences[0].logprobs = None


def a_logprob_short(answer: Any) -> None:
    answer.sequences[0].logprobs.pop()


def stop_token_cut(answer: Any) -> None:
    answer.sequences[0].tokens.pop()
    answer.sequences[0].logprobs.pop()


def two_sequences(answer: Any) -> None:
    answer.sequences *= 2


def unknown_end(answer: Any) -> None:
    answer.sequences[0].stop_reason = "tired"


def other_shape(answer: Any) -> None:
    del answer.sequences


EDITS = [no_logprobs, a_logprob_short, stop_token_cut, two_sequences, unknown_end, other_shape]


@pytest.mark.parametrize("edit", EDITS)
async def test_an_answer_that_does_not_fit_together_is_an_error(edit: Callable[[Any], None]) -> None:
    """TOK-08."""
    backend, _ = await started(Answer(edit=edit))
    with pytest.raises(ModelError):
        await backend.generate("a", [5], PARAMS)


async def test_what_the_service_raises_is_told_and_a_full_window_is_known() -> None:
    backend, _ = await started(
        Answer(error=RuntimeError("prompt exceeds the context window")), Answer(error=RuntimeError("billing"))
    )
    with pytest.raises(ContextLengthError):
        await backend.generate("a", [5], PARAMS)
    with pytest.raises(ModelError, match="RuntimeError: billing"):
        await backend.generate("a", [5], PARAMS)


class Service:
    """`ServiceClient` of the SDK as far as an engine needs it."""

    made: list[dict[str, Any]] = []
    closed: list[str] = []

    def __init__(self, **options: Any) -> None:
        if options["api_key"] == "wrong":
            raise RuntimeError("401 invalid key")
        self.made.append(options)

    def create_sampling_client(self, **options: Any) -> Any:
        self.made.append(options)
        return SimpleNamespace(result=lambda: FakeTinkerClient(Answer()))

    def close(self, status: str) -> Any:
        return SimpleNamespace(result=lambda: self.closed.append(status))


async def test_a_session_is_opened_with_the_key_and_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sdk(FakeTinkerSdk):
        ServiceClient = Service

    backend = TinkerBackend(base_model="Q/q", base_url="http://t", api_key_env="T_KEY", sdk=Sdk)
    monkeypatch.delenv("T_KEY", raising=False)
    with pytest.raises(ConfigError, match="T_KEY"):
        await backend.start()
    monkeypatch.setenv("T_KEY", "wrong")
    with pytest.raises(ConfigError, match="401 invalid key"):
        await backend.start()
    monkeypatch.setenv("T_KEY", "right")
    await backend.start()
    assert Service.made == [{"base_url": "http://t", "api_key": "right"}, {"model_path": None, "base_model": "Q/q"}]
    assert (await backend.generate("a", [5], PARAMS)).weight_spans == (WeightSpan("Q/q", 0, 3),)
    await backend.close()
    await backend.close()
    assert Service.closed == ["success"]


def test_the_configuration_names_one_model_and_the_extra() -> None:
    for wrong in ({}, {"model_path": "tinker://x", "base_model": "y"}, {"model_path": "/x"}):
        with pytest.raises(ValidationError):
            ENGINE.validate_python({"type": "tinker", **wrong})
    config = ENGINE.validate_python({"type": "tinker", "base_model": "Q/q", "max_context": 64})
    if importlib.util.find_spec("tinker") is None:
        with pytest.raises(MissingExtraError, match=r"uni-agent\[tinker\]"):
            config.build()
    else:
        assert config.build().max_context == 64
    with pytest.raises(ConfigError, match="either"):
        TinkerBackend()
