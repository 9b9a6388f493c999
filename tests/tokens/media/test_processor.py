"""The processor of a model folder, and what a look at an image tells."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.tokens.media.vision import PREPROCESSOR, encoded, picture, png, vision_renderer, write_vision_folder
from uni_agent.errors import ConfigError
from uni_agent.tokens.media import MOST_PIXELS, MediaError, image_facts, image_size
from uni_agent.tokens.media_hf import HFMediaProcessor
from uni_agent.types import Media


@pytest.fixture(scope="module")
def processor(vision_folder: Path) -> HFMediaProcessor:
    return HFMediaProcessor.from_folder(vision_folder)


@pytest.fixture(scope="module")
def peer() -> Any:
    """transformers' own image processor."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed (extra: embedded)")
    settings_ = {key: value for key, value in PREPROCESSOR.items() if key != "image_processor_type"}
    return transformers.models.qwen2_vl.image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(**settings_)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 900), st.integers(2, 900))
def test_the_count_of_an_image_is_that_of_its_processed_grid(
    processor: HFMediaProcessor, peer: Any, width: int, height: int
) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    grid = peer(images=[picture(width, height)])["image_grid_thw"][0]
    assert processor.tokens(png(width, height)) == int(grid[0] * grid[1] * grid[2]) // 4


def test_the_placeholder_is_that_of_the_model_configuration(vision_folder: Path, processor: HFMediaProcessor) -> None:
    assert processor.placeholder_id == json.loads((vision_folder / "config.json").read_text())["image_token_id"]


def test_an_image_that_is_too_narrow_for_the_model_is_refused(processor: HFMediaProcessor) -> None:
    with pytest.raises(MediaError, match=r"1 x 400 pixels cannot be shown"):
        processor.tokens(png(1, 400))


def _bomb(width: int, height: int) -> bytes:
    """A small PNG file that claims to be large; its pixels are as many as it says."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress(bytes((width // 8 + 1) * min(height, 1000)), 9)
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "text": b"this is no image",
    "cut off": png(300, 300).data[:-200],
    "only a header": png().data[:30],
    "no pixels": _bomb(0, 10),
    "twenty billion pixels": _bomb(200_000, 100_000),
    "just too large": _bomb(8192, MOST_PIXELS // 8192 + 1),
    "a program": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n",
    "a vector drawing": b"<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'/>",
    "another format": encoded(picture(10, 10), "TIFF"),
    "flipped bytes": bytes(byte ^ (0x55 if 60 < i < 90 else 0) for i, byte in enumerate(png(80, 80).data)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_sound_image_is_refused_with_a_reason(processor: HFMediaProcessor, data: bytes) -> None:
    media = Media("image", data, "image/png")
    with pytest.raises(MediaError, match="the image"):
        processor.tokens(media)
    facts = image_facts(media)
    assert facts.identity == facts.file  # the bytes still tell it from others


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_bytes_crash_the_look_at_an_image(data: st.DataObject) -> None:
    sound = data.draw(
        st.sampled_from([png(40, 40).data, encoded(picture(40, 40), "JPEG"), encoded(picture(9, 9), "GIF")])
    )
    at = data.draw(st.integers(0, len(sound) - 1))
    broken = sound[:at] + data.draw(st.binary(max_size=40)) + sound[at + data.draw(st.integers(0, 40)) :]
    facts = image_facts(Media("image", broken))
    assert facts.error or facts.width * facts.height >= 1


Make = Callable[[], bytes]
SAME: dict[str, Make] = {
    "other compression and comments": lambda: png(note="again").data,
    "an opaque alpha channel": lambda: encoded(picture(56, 56, mode="RGBA")),
    "a bitmap": lambda: encoded(picture(56, 56), "BMP"),
    "lossless WebP": lambda: encoded(picture(56, 56), "WEBP", lossless=True),
    "a palette": lambda: encoded(picture(56, 56).quantize(4)),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME.keys())
def test_the_same_pixels_are_the_same_image(make: Make) -> None:
    data = make()
    assert data != png().data
    with Image.open(BytesIO(data)) as image:
        assert image.convert("RGB").tobytes() == picture(56, 56).tobytes()
    assert image_facts(Media("image", data)).identity == image_facts(png()).identity


def test_other_pixels_sizes_transparency_or_turns_are_other_images() -> None:
    see_through = picture(56, 56, mode="RGBA")
    see_through.putalpha(7)
    turned = Image.Exif()
    turned[0x0112] = 6
    others = [
        png(shade=1).data,
        png(56, 28).data,
        png(28, 56).data,
        encoded(see_through),
        encoded(picture(56, 56), exif=turned),
        encoded(picture(56, 56), "JPEG"),
        encoded(picture(56, 56), "GIF", save_all=True, append_images=[picture(56, 56, 9)]),
        encoded(Image.new("I;16", (56, 56), 300)),
    ]
    identities = {image_facts(Media("image", data)).identity for data in [png().data, *others]}
    assert len(identities) == len(others) + 1


def test_the_type_that_a_client_names_does_not_matter() -> None:
    assert image_facts(Media("image", png().data, "image/jpeg")) == image_facts(png())
    assert image_size(png(3, 5)) == (3, 5)


def test_without_pillow_only_the_same_bytes_are_the_same_image(monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = png(shade=201), png(shade=201, note="x")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert image_facts(first).identity != image_facts(again).identity
    with pytest.raises(MediaError, match="pillow"):
        image_size(first)


# ---------------------------------------------------------------------------------------------- folders


def test_a_folder_without_a_processor_shows_no_images_and_says_why(tmp_path: Path) -> None:
    renderer = vision_renderer(write_vision_folder(tmp_path / "m", {}))
    assert renderer.media is None and "preprocessor_config.json" in renderer.no_media


def test_a_processor_of_another_kind_shows_no_images_and_says_why(tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / "m", {"image_processor_type": "CLIPImageProcessor"})
    renderer = vision_renderer(folder)
    assert renderer.media is None and "not supported" in renderer.no_media
    with pytest.raises(ConfigError, match="not supported"):
        HFMediaProcessor.from_folder(folder)


@pytest.mark.parametrize("written", ["{", "[]", '{"image_processor_type": "NoSuchProcessor"}'])
def test_broken_descriptions_are_errors_that_name_the_folder(tmp_path: Path, written: str) -> None:
    folder = write_vision_folder(tmp_path / "m")
    (folder / "preprocessor_config.json").write_text(written)
    with pytest.raises(ConfigError, match="image processor"):
        HFMediaProcessor.from_folder(folder)
    assert vision_renderer(folder).media is None


def test_a_model_that_names_no_placeholder_is_an_error(tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / "m")
    (folder / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="image_token_id"):
        HFMediaProcessor.from_folder(folder)


def test_a_template_without_a_place_for_images_shows_none(tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path / "m")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template.replace("<|image_pad|>", "(image)"))
    renderer = vision_renderer(folder)
    assert renderer.media is None and "shows two images with 0" in renderer.no_media


def test_images_can_be_switched_off(vision_folder: Path) -> None:
    renderer = vision_renderer(vision_folder, media="none")
    assert renderer.media is None and "none" in renderer.no_media
