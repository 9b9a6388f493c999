"""Images over HTTP (case 14): three protocols, messages and tool results, streams, restarts, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.support import Answer, Gateway, Opened, call, serving
from tests.tokens.media.vision import encoded, picture, png, runs, url, vision_renderer, write_vision_folder
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.trajectory import Trajectory
from uni_agent.types import Media

SMALL, WIDE, TALL = png(), png(200, 60, 1), png(60, 200, 2)
AGAIN = png(note="sent again")
SCRIPT = (call("shot", before="Let me look."), "I see it.", "Still there.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_folder(tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="module")
def vision(folder: Path) -> ChatTemplateRenderer:
    return vision_renderer(folder)


class Client:
    """One conversation in one protocol: `ask` sends it, `reply` appends the model's answer as a client keeps it."""

    path: str

    def __init__(self, gateway: Gateway, session: Opened, *, stream: bool = False) -> None:
        self.gateway, self.session, self.stream = gateway, session, stream
        self.history: list[Any] = []

    def say(self, *parts: str | Media) -> None:
        raise NotImplementedError

    def result(self, *parts: str | Media) -> None:
        raise NotImplementedError

    async def send(self, history: list[Any]) -> Answer:
        raise NotImplementedError

    def keep(self, answer: Answer) -> None:
        raise NotImplementedError

    async def ask(self) -> Answer:
        answer = await self.send(self.history)
        assert answer.status == 200, answer.body
        self.keep(answer)
        return answer


class Chat(Client):
    def parts(self, parts: tuple[str | Media, ...]) -> list[Any]:
        return [
            {"type": "text", "text": p} if isinstance(p, str) else {"type": "image_url", "image_url": {"url": url(p)}}
            for p in parts
        ]

    def say(self, *parts: str | Media) -> None:
        self.history.append({"role": "user", "content": self.parts(parts)})

    def result(self, *parts: str | Media) -> None:
        id_ = self.history[-1]["tool_calls"][0]["id"]
        self.history.append({"role": "tool", "tool_call_id": id_, "content": self.parts(parts)})

    async def send(self, history: list[Any]) -> Answer:
        return await self.gateway.chat(self.session, history, stream=self.stream)

    def keep(self, answer: Answer) -> None:
        if not self.stream:
            self.history.append(answer.json["choices"][0]["message"])
            return
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for _, event in answer.events:
            chunk: Any = {"choices": []} if event == "[DONE]" else event
            for choice in chunk["choices"]:
                delta: Any = choice["delta"]
                message["content"] += delta.get("content") or ""
                for piece in delta.get("tool_calls") or ():
                    calls = message.setdefault("tool_calls", [])
                    if piece.get("id"):
                        calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
                    for key in ("name", "arguments"):
                        calls[-1]["function"][key] += piece["function"].get(key) or ""
        self.history.append(message)


class Responses(Client):
    def parts(self, parts: tuple[str | Media, ...]) -> list[Any]:
        return [
            {"type": "input_text", "text": p} if isinstance(p, str) else {"type": "input_image", "image_url": url(p)}
            for p in parts
        ]

    def say(self, *parts: str | Media) -> None:
        self.history.append({"type": "message", "role": "user", "content": self.parts(parts)})

    def result(self, *parts: str | Media) -> None:
        id_ = self.history[-1]["call_id"]
        self.history.append({"type": "function_call_output", "call_id": id_, "output": self.parts(parts)})

    async def send(self, history: list[Any]) -> Answer:
        return await self.gateway.responses(self.session, history, stream=self.stream)

    def keep(self, answer: Answer) -> None:
        body = answer.json
        if self.stream:
            body = next(event["response"] for name, event in answer.events if name == "response.completed")
        self.history += body["output"]


class Messages(Client):
    def parts(self, parts: tuple[str | Media, ...]) -> list[Any]:
        return [{"type": "text", "text": p} if isinstance(p, str) else self.image(p) for p in parts]

    def image(self, media: Media) -> Any:
        data = base64.b64encode(media.data).decode()
        return {"type": "image", "source": {"type": "base64", "media_type": media.media_type, "data": data}}

    def say(self, *parts: str | Media) -> None:
        self.history.append({"role": "user", "content": self.parts(parts)})

    def result(self, *parts: str | Media) -> None:
        id_ = self.history[-1]["content"][-1]["id"]
        block = {"type": "tool_result", "tool_use_id": id_, "content": self.parts(parts)}
        self.history.append({"role": "user", "content": [block]})

    async def send(self, history: list[Any]) -> Answer:
        return await self.gateway.messages(self.session, history, stream=self.stream)

    def keep(self, answer: Answer) -> None:
        if not self.stream:
            self.history.append({"role": "assistant", "content": answer.json["content"]})
            return
        blocks: list[Any] = []
        for name, event in answer.events:
            if name == "content_block_start":
                blocks.append(dict(event["content_block"]))
            elif name == "content_block_delta" and event["delta"]["type"] == "text_delta":
                blocks[-1]["text"] += event["delta"]["text"]
            elif name == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
                blocks[-1]["written"] = blocks[-1].get("written", "") + event["delta"]["partial_json"]
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block.pop("written"))
        self.history.append({"role": "assistant", "content": blocks})


PROTOCOLS: list[type[Client]] = [Chat, Responses, Messages]


def check(vision: ChatTemplateRenderer, finished: dict[str, Any]) -> list[Trajectory]:
    """Each trajectory's images fit its placeholders; returns them."""
    assert vision.media is not None
    out = [Trajectory.from_json(data) for data in finished["trajectories"]]
    for trajectory in out:
        lengths = [vision.media.tokens(image) for image in trajectory.multi_modal_data]
        assert runs(trajectory.ids, vision.media.placeholder_id) == lengths
    return out


def swapped(history: list[Any], old: Media, new: Media) -> list[Any]:
    """`history` with another file in place of an image."""
    before, after = (base64.b64encode(media.data).decode() for media in (old, new))
    return json.loads(json.dumps(history).replace(before, after))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_case_14_images_in_messages_and_results_reach_the_engine_and_the_record(
    vision: ChatTemplateRenderer, protocol: type[Client], stream: bool
) -> None:
    async with serving(vision, SCRIPT) as gateway:
        client = protocol(gateway, await gateway.open(), stream=stream)
        client.say("what is ", SMALL, " here, and ", TALL, "?")
        await client.ask()
        client.result("a screen: ", WIDE)
        await client.ask()
        client.history = swapped(client.history, SMALL, AGAIN)  # the same image in another file
        client.say("and now ", SMALL, "?")
        await client.ask()
        first, second, third = gateway.backend.calls
        assert first.media == (SMALL, TALL)
        assert second.media == (SMALL, TALL, WIDE)
        assert third.media == (SMALL, TALL, WIDE, SMALL)
        for before, after in ((first, second), (second, third)):
            assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
        info = await gateway.info(client.session)
        finished = await gateway.finalize(client.session)
    (trajectory,) = check(vision, finished)
    assert trajectory.multi_modal_data == third.media and trajectory.num_turns == 3
    assert finished["accounting"]["masked"] == 0 and info["session_id"] == client.session.session_id
    assert "what is <|vision_start|><|image_pad|>" in vision.decode(trajectory.prompt_ids)


async def test_case_14_the_record_is_the_same_over_every_protocol(vision: ChatTemplateRenderer) -> None:
    ids: list[list[int]] = []
    for protocol in PROTOCOLS:
        async with serving(vision, SCRIPT) as gateway:
            client = protocol(gateway, await gateway.open())
            client.say("see ", SMALL)
            await client.ask()
            client.result(WIDE, "done", TALL)
            await client.ask()
            (trajectory,) = check(vision, await gateway.finalize(client.session))
        ids.append(trajectory.ids)
        assert [image.data for image in trajectory.multi_modal_data] == [SMALL.data, WIDE.data, TALL.data]
    # Each protocol's tools are rendered alike, so whole prompts are.
    assert ids[0] == ids[1] == ids[2]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_case_14_another_image_opens_a_branch(vision: ChatTemplateRenderer, protocol: type[Client]) -> None:
    async with serving(vision, (*SCRIPT, "Another.")) as gateway:
        client = protocol(gateway, await gateway.open())
        client.say("see ", SMALL)
        await client.ask()
        client.result(WIDE)
        await client.ask()
        await client.send(swapped(client.history[:-1], WIDE, TALL))
        finished = await gateway.finalize(client.session)
    first, second = check(vision, finished)
    assert first.multi_modal_data == (SMALL, WIDE) and second.multi_modal_data == (SMALL, TALL)
    assert len(first.trained) == 2 and len(second.trained) == 1 and second.branched_from == 0


async def test_parameters_of_a_data_url_do_not_matter(vision: ChatTemplateRenderer) -> None:
    async with serving(vision, ("one", "two")) as gateway:
        session = await gateway.open()
        links = [url(SMALL), url(Media("image", AGAIN.data, "image/jpeg"), ";name=a.png")]
        asked = [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": link, "detail": detail}}]}
            for link, detail in zip(links, ("low", "high"), strict=True)
        ]
        first = await gateway.chat(session, asked[:1])
        said = first.json["choices"][0]["message"]
        await gateway.chat(session, [asked[1], said, {"role": "user", "content": "and?"}])
        (trajectory,) = check(vision, await gateway.finalize(session))
    assert trajectory.multi_modal_data == (SMALL,) and trajectory.num_turns == 2


async def test_case_14_a_restart_goes_on_with_the_same_tokens_and_images(
    vision: ChatTemplateRenderer, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    async with serving(vision, SCRIPT, journal=journal) as gateway:
        session = await gateway.open()
        client = Chat(gateway, session)
        client.say("see ", SMALL)
        await client.ask()
        client.result(WIDE)
        await client.ask()
        before = gateway.backend.calls[-1]
        history = client.history
    async with serving(vision, ("Still there.",), journal=journal) as gateway:
        client = Chat(gateway, session)
        client.history = swapped(history, WIDE, WIDE)
        client.say("and ", TALL)
        await client.ask()
        after = gateway.backend.calls[-1]
        (trajectory,) = check(vision, await gateway.finalize(session))
    assert after.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
    assert after.media == (SMALL, WIDE, TALL) == trajectory.multi_modal_data


async def test_a_stored_response_brings_its_images_along(vision: ChatTemplateRenderer) -> None:
    async with serving(vision, ("one", "two")) as gateway:
        client = Responses(gateway, await gateway.open())
        client.say("see ", SMALL)
        first = await client.ask()
        again: list[Any] = [{"role": "user", "content": "and?"}]
        answer = await gateway.responses(client.session, again, previous_response_id=first.json["id"])
        assert answer.status == 200, answer.body
        assert gateway.backend.calls[-1].media == (SMALL,)
        check(vision, await gateway.finalize(client.session))


async def test_tokens_of_images_are_counted(vision: ChatTemplateRenderer) -> None:
    assert vision.media is not None
    async with serving(vision, ("one",)) as gateway:
        session = await gateway.open()
        client = Messages(gateway, session)
        client.say("see ", WIDE)
        headers = {"x-api-key": session.api_key, "anthropic-version": "2023-06-01"}
        body = {"model": "m", "messages": client.history}
        counted = await gateway.request("POST", "/v1/messages/count_tokens", body, headers=headers)
        assert counted.status == 200, counted.body
        answer = await gateway.messages(session, client.history, tools=None)
        assert not gateway.backend.calls[:-1]
        assert counted.json["input_tokens"] == len(gateway.backend.calls[-1].prompt_ids)
        assert answer.json["usage"]["input_tokens"] == counted.json["input_tokens"] > vision.media.tokens(WIDE)


# ---------------------------------------------------------------------------------------------- refusals

BROKEN: dict[str, bytes] = {
    "no image": b"hello",
    "nothing": b"",
    "cut off": png(300, 300).data[:-200],
    "too narrow": png(1, 300).data,
    "too large": encoded(picture(8200, 4100), compress_level=1),
    "a vector drawing": b"<svg xmlns='http://www.w3.org/2000/svg'/>",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN.keys())
async def test_broken_images_are_a_clear_error_and_the_session_lives_on(
    vision: ChatTemplateRenderer, protocol: type[Client], data: bytes, stream: bool
) -> None:
    async with serving(vision, ("fine",)) as gateway:
        client = protocol(gateway, await gateway.open(), stream=stream)
        client.say("see ", Media("image", data, "image/png"))
        answer = await client.send(client.history)
        assert (answer.status == 400 or (stream and answer.status == 200)) and b"the image" in answer.body
        assert not gateway.backend.calls
        client.history = []
        client.say("see ", SMALL)
        await client.ask()
        check(vision, await gateway.finalize(client.session))


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_images_are_refused_where_the_model_reads_none(folder: Path, protocol: type[Client]) -> None:
    blind = vision_renderer(folder, media="none")
    async with serving(blind, ("fine",)) as gateway:
        client = protocol(gateway, await gateway.open())
        client.say("see ", SMALL)
        answer = await client.send(client.history)
        assert answer.status == 400 and b"does not read (renderer.media is 'none')" in answer.body


async def test_images_are_refused_or_told_where_the_engine_takes_none(vision: ChatTemplateRenderer) -> None:
    def deaf() -> ScriptedBackend:
        return ScriptedBackend(("fine",), encode=vision.tokenizer.encode, reads_media=False)

    async with serving(vision, backend=deaf()) as gateway:
        client = Chat(gateway, await gateway.open())
        client.say("see ", SMALL)
        answer = await client.send(client.history)
        assert answer.status == 400 and b"its engine takes no images" in answer.body
    async with serving(vision, backend=deaf(), config={"media": "placeholder"}) as gateway:
        client = Chat(gateway, await gateway.open())
        client.say("see ", SMALL)
        await client.ask()
        (seen,) = gateway.backend.calls
        assert "see [image]<|im_end|>" in vision.decode(seen.prompt_ids)
        assert not check(vision, await gateway.finalize(client.session))[0].multi_modal_data


@pytest.mark.parametrize("stream", [False, True])
async def test_a_sampled_placeholder_ends_the_turn_in_front_of_it(vision: ChatTemplateRenderer, stream: bool) -> None:
    """No image stands behind it: in a later prompt, or a training batch, it would take another image's place."""
    assert vision.media is not None
    ids = [*vision.tokenizer.encode("I see "), vision.media.placeholder_id, *vision.tokenizer.encode("more")]
    async with serving(vision, (ScriptedTurn(tuple(ids)), "and on")) as gateway:
        client = Chat(gateway, await gateway.open(), stream=stream)
        client.say("see ", SMALL)
        await client.ask()
        assert client.history[-1]["content"] == "I see "
        client.say("go on with ", WIDE)
        await client.ask()
        finished = await gateway.finalize(client.session)
    (trajectory,) = check(vision, finished)
    assert trajectory.multi_modal_data == (SMALL, WIDE) and trajectory.num_turns == 2
    dropped = finished["accounting"]["dropped"]
    assert set(dropped) == {"image_placeholder"} and 0 < dropped["image_placeholder"] <= len(ids)


async def test_large_images_leave_the_event_loop_free(vision: ChatTemplateRenderer) -> None:
    large = Media("image", encoded(picture(5000, 5000), compress_level=1), "image/png")
    async with serving(vision, ("fine",)) as gateway:
        client = Chat(gateway, await gateway.open())
        client.say("see ", large)
        longest = 0.0

        async def watch() -> None:
            nonlocal longest
            while True:
                started = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - started)

        watcher = asyncio.create_task(watch())
        started = time.perf_counter()
        await client.ask()
        whole = time.perf_counter() - started
        watcher.cancel()
    assert whole > 0.1 and longest < whole / 2  # decoding alone takes most of it
