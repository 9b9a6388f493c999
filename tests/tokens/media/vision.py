"""A model folder of the Qwen2-VL kind, and images for it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.tokens.small import TEMPLATES, add, train, write_folder
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import Media, Message

PREPROCESSOR: dict[str, Any] = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "min_pixels": 28 * 28 * 4,
    "max_pixels": 28 * 28 * 40,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def write_vision_folder(folder: Path, preprocessor: dict[str, Any] | None = None) -> Path:
    """Tokenizer, chat template, config.json and, unless it is {}, preprocessor_config.json."""
    tokenizer: Any = train()
    add(tokenizer, ["<|vision_end|>"], special=True)
    write_folder(folder, tokenizer)
    template = (TEMPLATES / "qwen2_vl.jinja").read_text(encoding="utf-8")
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    config = {"model_type": "qwen2_vl", "image_token_id": tokenizer.token_to_id("<|image_pad|>")}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    described = PREPROCESSOR if preprocessor is None else preprocessor
    if described:
        (folder / "preprocessor_config.json").write_text(json.dumps(described), encoding="utf-8")
    return folder


def vision_renderer(folder: Path, **options: Any) -> ChatTemplateRenderer:
    renderer = RendererConfig(**options).build(folder)
    assert isinstance(renderer, ChatTemplateRenderer)
    return renderer


def picture(width: int, height: int, shade: int = 0, mode: str = "RGB") -> Image.Image:
    """An image in which no two of different `shade` are the same."""
    image = Image.new("RGB", (width, height), (shade % 256, 90, 200))
    image.putpixel((width // 2, height // 2), (1, 2, 3))
    return image.convert(mode)


def encoded(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def png(width: int = 56, height: int = 56, shade: int = 0, note: str = "") -> Media:
    """A PNG file; another `note` makes other bytes of the same pixels."""
    info = PngInfo()
    if note:
        info.add_text("note", note)
    data = encoded(picture(width, height, shade), compress_level=1 if note else 9, pnginfo=info)
    return Media("image", data, "image/png")


def url(media: Media, parameters: str = "") -> str:
    """The image as a data: URL, with `;name=value` parameters."""
    return f"data:{media.media_type}{parameters};base64,{base64.b64encode(media.data).decode()}"


def shows(*parts: str | Media, role: Any = "user", **fields: Any) -> Message:
    """A message of text and images, as the adapters make it."""
    return Message(role, "".join(part for part in parts if isinstance(part, str)), parts=parts, **fields)


def runs(ids: Sequence[int], placeholder: int) -> list[int]:
    """The lengths of the runs of placeholders in `ids`."""
    return [len(list(run)) for same, run in groupby(ids, lambda id_: id_ == placeholder) if same]
