"""The images of a prompt on their way to an engine."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.fake_clients import Answer, FakeVerlClient
from tests.engine.fake_servers import Play
from tests.engine.test_backend_contract import PARAMS, playing
from tests.tokens.media.vision import encoded, picture, png
from uni_agent.engine.base import PromptImage, SamplingParams, media_backend
from uni_agent.engine.images import data_url
from uni_agent.engine.remote import RemoteBackend
from uni_agent.engine.sampler import sample
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.engine.verl import VerlBackend
from uni_agent.errors import ConfigError, ModelError
from uni_agent.types import Media

VERL = SamplingParams(max_tokens=8, stop_token_ids=(9,))
FILES = (png(), Media("image", encoded(picture(30, 20), "JPEG"), "image/jpeg"), Media("image", png(9, 9).data))

IDS = [5, 3, 3, 6, 3, 7, 3, 3, 3]
IMAGES = (PromptImage(FILES[0], 1, 2), PromptImage(FILES[1], 4, 1), PromptImage(FILES[2], 6, 3))


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
    assert [base64.b64decode(data.split(",")[1]) for data in first["image_data"]] == [image.data for image in FILES]


async def test_an_sglang_server_that_lays_images_out_in_another_way_is_found_out() -> None:
    def more(body: dict[str, Any]) -> None:
        body["meta_info"]["prompt_tokens"] += 3

    async with playing("sglang", Play(edit=more)) as (backend, _):
        reader = media_backend(backend)
        assert reader is not None
        with pytest.raises(ModelError, match="read 5 prompt tokens, 2 were sent"):
            await reader.generate("a", [5, 6], PARAMS, media=IMAGES[:1])


@pytest.mark.parametrize("streaming", [False, True])
async def test_vllm_gets_one_placeholder_for_each_and_must_lay_them_out_alike(streaming: bool) -> None:
    def tell(ids: list[int] | None) -> Callable[[dict[str, Any]], None]:
        def edit(body: dict[str, Any]) -> None:
            body["prompt_token_ids"] = body["choices"][0]["prompt_token_ids"] = ids
            body["usage"]["prompt_tokens"] = len(IDS)

        return edit

    listener = _listener if streaming else None
    play = Play(edit=tell(IDS), edit_event=lambda event: event.update(prompt_token_ids=IDS))
    async with playing("vllm-generate", play) as (backend, server):
        reader = media_backend(backend)
        assert reader is not None
        await reader.generate("a", IDS, PARAMS, on_tokens=listener, media=IMAGES)
    (asked,) = server.requests
    assert asked["token_ids"] == [5, 3, 6, 3, 7, 3] and asked["return_token_ids"] is True
    assert [part["type"] for part in asked["content_parts"]] == ["image_url"] * 3
    assert [base64.b64decode(part["url"].split(",")[1]) for part in asked["content_parts"]] == [f.data for f in FILES]
    for told, reason in ((None, "does not tell"), (IDS[:-1], "not the one sent")):
        async with playing("vllm-generate", Play(edit=tell(told))) as (backend, _):
            reader = media_backend(backend)
            assert reader is not None
            with pytest.raises(ModelError, match=reason):
                await reader.generate("a", IDS, PARAMS, media=IMAGES)


async def test_vllm_without_generate_takes_none() -> None:
    async with playing("vllm-completions") as (backend, server):
        reader = media_backend(backend)
        if reader is None:  # it was told never to try
            assert isinstance(backend, RemoteBackend)
            with pytest.raises(ModelError, match="images"):
                await backend.generate("a", IDS, PARAMS, media=IMAGES)
        else:
            with pytest.raises(ModelError, match="--enable-scale-out"):
                await reader.generate("a", IDS, PARAMS, media=IMAGES)
        assert not server.requests


def test_data_urls_have_no_parameters() -> None:
    data = base64.b64encode(b"x").decode()
    for kind, written in (("image/png;name=a,b", "image/png"), ("text/html", "image/*"), ("", "image/*")):
        assert data_url(Media("image", b"x", kind)) == f"data:{written};base64,{data}"


async def test_verl_gets_them_as_its_own_loops_pass_them() -> None:
    client = FakeVerlClient(Answer())
    backend = VerlBackend(client)
    await backend.start()
    await backend.generate("a", [5], VERL, media=IMAGES[:2])
    await backend.generate("a", [5], VERL)
    assert [(image.mode, image.size) for image in client.images[0]] == [("RGB", (56, 56)), ("RGB", (30, 20))]
    assert client.images[1] is None
    with pytest.raises(ConfigError, match="cannot be read"):
        await backend.generate("a", [5], VERL, media=[PromptImage(Media("image", b"junk"), 0, 1)])


async def test_an_answer_that_goes_on_after_an_abort_sees_the_same_images() -> None:
    backend = ScriptedBackend([ScriptedTurn((1, 2), "abort"), ScriptedTurn((3,))])
    await backend.start()
    params = SamplingParams(max_tokens=9, stop_token_ids=(0,))
    done = await sample(backend, "a", [7, 8], params, timeout=5, retries=1, backoff=0, media=IMAGES)
    assert done.output.token_ids == [1, 2, 3, 0]
    assert [call.media for call in backend.calls] == [FILES, FILES]
    assert [call.prompt_ids for call in backend.calls] == [[7, 8], [7, 8, 1, 2]]


async def test_an_engine_that_takes_none_is_never_asked() -> None:
    backend = ScriptedBackend([(1,)], reads_media=False)
    await backend.start()
    with pytest.raises(ConfigError, match="images, which this engine does not take"):
        await sample(backend, "a", [7], PARAMS, timeout=5, retries=0, media=IMAGES)
    assert not backend.calls
    await sample(backend, "a", [7], PARAMS, timeout=5, retries=0)
