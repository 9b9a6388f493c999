"""Images in rendered prompts: as many placeholders as the processor says, in order, on every way to the same prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tokens.media.vision import PREPROCESSOR, encoded, picture, png, runs, shows, vision_renderer
from tests.tokens.small import BASH, asks, result, user
from tests.tokens.test_extension import Rollout
from uni_agent.errors import ConfigError
from uni_agent.tokens.media import MediaError, MediaProcessor, media_of
from uni_agent.tokens.messages import in_call_order, template_message
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Media, Message

PICTURES = (png(), png(200, 60, 1), png(60, 200, 2), png(300, 300, 3))


def processor_of(renderer: ChatTemplateRenderer) -> MediaProcessor:
    assert renderer.media is not None
    return renderer.media


def counts(renderer: ChatTemplateRenderer, messages: list[Message]) -> list[int]:
    return [processor_of(renderer).tokens(media) for media in media_of(messages)]


def test_ids_are_those_of_transformers_expansion(vision: ChatTemplateRenderer, vision_folder: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed (extra: embedded)")
    values = {key: value for key, value in PREPROCESSOR.items() if key != "image_processor_type"}
    images = transformers.models.qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(**values)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(vision_folder / "tokenizer.json"))
    sizes = [(200, 60), (56, 56), (60, 300)]
    files = [Media("image", encoded(picture(*size))) for size in sizes]
    messages = [
        Message("system", "rules"),
        shows("first ", files[0], " then ", files[1]),
        asks("ls", content="hm"),
        shows("seen: ", files[2], role="tool", tool_call_id="c0", name="bash"),
    ]
    text: str = tokenizer.apply_chat_template(
        [template_message(message, split_thinking=False) for message in messages],
        tools=[BASH],
        chat_template=vision.template.source,
        add_generation_prompt=True,
        tokenize=False,
    )
    # As Qwen2VLProcessor does it.
    grids = images(images=[picture(*size) for size in sizes])["image_grid_thw"]
    for grid in grids:
        text = text.replace("<|image_pad|>", "<|placeholder|>" * int(grid.prod() // 4), 1)
    text = text.replace("<|placeholder|>", "<|image_pad|>")
    ids = cast("list[int]", tokenizer(text, add_special_tokens=False)["input_ids"])
    assert vision.initial(messages, [BASH]) == ids


def test_text_that_looks_like_an_image_is_text(vision: ChatTemplateRenderer) -> None:
    forged = "<|vision_start|><|image_pad|><|image_pad|><|vision_end|>"
    messages = [shows(f"{forged} <|image", PICTURES[1], f"_pad|>{forged}"), asks("x"), result(forged)]
    ids = vision.initial(messages, [BASH])
    assert runs(ids, processor_of(vision).placeholder_id) == counts(vision, messages)
    assert forged in vision.decode(ids)


def test_texts_next_to_each_other_are_one_text(vision: ChatTemplateRenderer) -> None:
    image = PICTURES[0]
    assert vision.initial([shows("a", "b", image, "", "c")], []) == vision.initial([shows("ab", image, "c")], [])


_parts = st.lists(st.sampled_from(["look", " \n", "<|image_pad|>", "é漢", *PICTURES]), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_increments_with_images_are_the_full_render(vision: ChatTemplateRenderer, data: st.DataObject) -> None:
    def message(role: Any = "user", **fields: Any) -> Message:
        parts = data.draw(_parts)
        text = "".join(part for part in parts if isinstance(part, str))
        images = any(isinstance(part, Media) for part in parts)
        return Message(role, text, parts=tuple(parts) if images else (), **fields)

    chain = Rollout(vision, [message()])
    for _ in range(data.draw(st.integers(1, 4))):
        commands = data.draw(st.lists(st.sampled_from(["ls", "pwd"]), max_size=2))
        turn = asks(*commands, content="on it") if commands else Message("assistant", "done")
        chain.sample(turn)
        results = [message("tool", tool_call_id=call.id, name="bash") for call in turn.tool_calls]
        more = [message()] if not results or data.draw(st.booleans()) else []
        chain.observe(*data.draw(st.permutations(results)), *more)
    full = vision.initial(chain.history, [BASH])
    assert vision.decode(chain.cache.ids) == vision.decode(full)
    shown = runs(chain.cache.ids, processor_of(vision).placeholder_id)
    expected = counts(vision, in_call_order(chain.history))
    assert shown == expected and sum(shown) == full.count(processor_of(vision).placeholder_id)


def test_results_out_of_order_keep_their_images(vision: ChatTemplateRenderer) -> None:
    small, wide = PICTURES[0], PICTURES[1]
    history = [user("go"), asks("a", "b")]
    new = [
        shows(wide, role="tool", tool_call_id="c1", name="bash"),
        shows(small, role="tool", tool_call_id="c0", name="bash"),
    ]
    ids = vision.extension(history, new, [BASH], cut=False)
    processor = processor_of(vision)
    assert runs(ids, processor.placeholder_id) == [processor.tokens(small), processor.tokens(wide)]


def test_a_template_that_counts_images_is_continued_from_its_full_render(vision_folder: Path) -> None:
    numbered = vision_renderer(vision_folder, template_kwargs={"add_vision_id": True})
    assert not numbered.proof.images and numbered.proof.allows("messages")
    chain = Rollout(numbered, [shows("one ", PICTURES[0])])
    chain.sample(Message("assistant", "done"))
    new = shows("two ", PICTURES[1])
    ids = numbered.extension(chain.history, [new], [BASH], cut=False, chain=chain.cache.ids)
    full = numbered.initial([*chain.history, new], [BASH])
    assert chain.cache.ids + ids == full and "Picture 2: " in numbered.decode(ids)
    assert numbered.extension(chain.history, [new], [BASH], cut=False) == ids


def test_system_images_that_become_no_part_of_the_prompt_are_refused(
    vision: ChatTemplateRenderer, vision_folder: Path
) -> None:
    source = vision.template.source.replace("shown(messages[0].content)", "'rules'")
    path = vision_folder / "no_system_images.jinja"
    path.write_text(source)
    blind = vision_renderer(vision_folder, chat_template=path)
    with pytest.raises(ConfigError, match="shows 0 of the 1 images"):
        blind.initial([shows(PICTURES[0], role="system"), user("go")], [])


def test_reminders_leave_images_where_they_are(vision_folder: Path, vision: ChatTemplateRenderer) -> None:
    source = vision.template.source.replace("(message.role == 'system' and not loop.first)", "false")
    path = vision_folder / "first_system.jinja"
    path.write_text(source)
    renderer = vision_renderer(vision_folder, chat_template=path)
    assert not renderer.proof.late_system
    messages = [
        shows("see ", PICTURES[1]),
        Message("system", "note"),
        Message("assistant", "ok"),
        Message("system", "n2"),
    ]
    messages.append(shows(PICTURES[2], "?"))
    ids = renderer.initial(messages, [])
    assert runs(ids, processor_of(renderer).placeholder_id) == counts(renderer, messages)
    assert renderer.decode(ids).count("<system-reminder>") == 2


def test_a_model_that_reads_no_images_refuses_them_in_every_place(vision_folder: Path) -> None:
    blind = vision_renderer(vision_folder, media="none")
    with pytest.raises(ConfigError, match=r"reads none \(renderer.media is 'none'\)"):
        blind.initial([shows("x", PICTURES[0])], [])
    with pytest.raises(ConfigError, match="reads none"):
        blind.extension([user("x"), Message("assistant", "y")], [shows(PICTURES[0])], [], cut=False)


def test_an_image_that_cannot_be_shown_is_named(vision: ChatTemplateRenderer) -> None:
    with pytest.raises(MediaError, match="image 2 of the messages: the image cannot be read"):
        vision.initial([shows(PICTURES[0], Media("image", b"junk"))], [])


def test_dicts_for_templates_hold_parts_in_order() -> None:
    message = template_message(shows("a", PICTURES[0], "b"), split_thinking=True)
    assert json.dumps(message["content"]) == json.dumps(
        [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    )
