"""The images of a prompt on their way to an engine."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pytest

from tests.engine.fake_clients import Answer, FakeVerlClient
from tests.engine.fake_servers import Play
from tests.engine.test_backend_contract import PARAMS, playing
from tests.tokens.media.vision import encoded, picture, png
from uni_agent.engine.base import SamplingParams, media_backend
from uni_agent.engine.remote import RemoteBackend
from uni_agent.engine.sampler import sample
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ConfigError, ModelError
from uni_agent.types import Media

VERL = SamplingParams(max_tokens=8, stop_token_ids=(9,))
IMAGES = (png(), Media("image", encoded(picture(30, 20), "JPEG"), "image/jpeg"), Media("image", png(9, 9).data))


def _listener(ids: Sequence[int]) -> bool:
    del ids
    return False


@pytest.mark.parametrize("streaming", [False, True])
async def test_sglang_gets_them_beside_the_ids(streaming: bool) -> None:
    async with playing("sglang") as (backend, server):
        reader = media_backend(backend)
        assert reader is not None
        listener = _listener if streaming else None
        await reader.generate("a", [5, 6], PARAMS, on_tokens=listener, media=IMAGES)
        await backend.generate("a", [5, 6], PARAMS, on_tokens=listener)
    first, second = server.requests
    assert first["input_ids"] == [5, 6] and "image_data" not in second
    heads = [data.split(",")[0] for data in first["image_data"]]
    assert heads == ["data:image/png;base64", "data:image/jpeg;base64", "data:image/*;base64"]
    assert [base64.b64decode(data.split(",")[1]) for data in first["image_data"]] == [image.data for image in IMAGES]


async def test_an_sglang_server_that_lays_images_out_in_another_way_is_found_out() -> None:
    def more(body: dict[str, Any]) -> None:
        body["meta_info"]["prompt_tokens"] += 3

    async with playing("sglang", Play(edit=more)) as (backend, _):
        reader = media_backend(backend)
        assert reader is not None
        with pytest.raises(ModelError, match="read 5 prompt tokens, 2 were sent"):
            await reader.generate("a", [5, 6], PARAMS, media=IMAGES[:1])


@pytest.mark.parametrize("flavour", ["vllm-generate", "vllm-completions"])
async def test_vllm_takes_none_beside_token_ids(flavour: Any) -> None:
    async with playing(flavour) as (backend, server):
        assert media_backend(backend) is None and isinstance(backend, RemoteBackend)
        with pytest.raises(ModelError, match="images"):
            await backend.generate("a", [5, 6], PARAMS, media=IMAGES)
        assert not server.requests


async def test_verl_gets_them_as_its_own_loops_pass_them() -> None:
    client = FakeVerlClient(Answer())
    backend = VerlBackend(client)
    await backend.start()
    await backend.generate("a", [5], VERL, media=IMAGES[:2])
    await backend.generate("a", [5], VERL)
    assert [(image.mode, image.size) for image in client.images[0]] == [("RGB", (56, 56)), ("RGB", (30, 20))]
    assert client.images[1] is None
    with pytest.raises(ConfigError, match="cannot be read"):
        await backend.generate("a", [5], VERL, media=[Media("image", b"junk")])


async def test_an_answer_that_goes_on_after_an_abort_sees_the_same_images() -> None:
    backend = ScriptedBackend([ScriptedTurn((1, 2), "abort"), ScriptedTurn((3,))])
    await backend.start()
    params = SamplingParams(max_tokens=9, stop_token_ids=(0,))
    done = await sample(backend, "a", [7, 8], params, timeout=5, retries=1, backoff=0, media=IMAGES)
    assert done.output.token_ids == [1, 2, 3, 0]
    assert [call.media for call in backend.calls] == [IMAGES, IMAGES]
    assert [call.prompt_ids for call in backend.calls] == [[7, 8], [7, 8, 1, 2]]


async def test_an_engine_that_takes_none_is_never_asked() -> None:
    backend = ScriptedBackend([(1,)], reads_media=False)
    await backend.start()
    with pytest.raises(ConfigError, match="images, which this engine does not take"):
        await sample(backend, "a", [7], PARAMS, timeout=5, retries=0, media=IMAGES)
    assert not backend.calls
    await sample(backend, "a", [7], PARAMS, timeout=5, retries=0)
