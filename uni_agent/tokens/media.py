"""Images in prompts: what a model's processor says of them, and when two of them are the same."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from uni_agent.engine.base import PromptImage
from uni_agent.errors import ConfigError, ModelError
from uni_agent.types import Media, Message

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""What is decoded; other formats are refused, since some of Pillow's decoders run programs or are hardly ever used."""

MOST_PIXELS = 1 << 25
"""Pixels of the largest image that is decoded: a small file can claim any size."""

_CACHED = 4096
_ORIENTATION = 0x0112


class MediaError(ConfigError):
    """An image that no model can be shown; the message says what is wrong with it."""


class MediaProcessor(Protocol):
    """How one model shows images: a run of one placeholder token for each."""

    @property
    def placeholder_id(self) -> int:
        """The token that stands for a part of an image; the chat template writes it once for each image."""
        ...

    def tokens(self, media: Media) -> int:
        """How many placeholders stand for the image, at least 1. Raises MediaError for one that cannot be shown."""
        ...


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What a look at an image tells.

    `identity` is the same for images with the same pixels, whatever file they come in; of what cannot be decoded it is
    that of the bytes. `file` is the digest of the bytes. `error` is "" for an image that can be shown; then `width` and
    `height` are in pixels.
    """

    identity: bytes
    file: bytes
    width: int = 0
    height: int = 0
    error: str = ""


def media_of(messages: Iterable[Message]) -> tuple[Media, ...]:
    """The images of `messages`, in their order."""
    return tuple(part for message in messages if message.parts for part in message.parts if isinstance(part, Media))


def processor_of(renderer: object) -> MediaProcessor | None:
    """The processor with which `renderer` shows images; None when it shows none."""
    return getattr(renderer, "media", None)


def placed(media: Sequence[Media], ids: Sequence[int], renderer: object) -> tuple[PromptImage, ...]:
    """`media` with the places of their placeholders in `ids`, a prompt of `renderer`.

    Raises ModelError when the runs of placeholders are not those of the images.
    """
    processor = processor_of(renderer)
    if processor is None:
        raise ModelError("the prompt holds images, but its renderer knows no placeholder")
    out: list[PromptImage] = []
    placeholder, at = processor.placeholder_id, 0
    for image in media:
        length = processor.tokens(image)
        try:
            at = ids.index(placeholder, at)
        except ValueError:
            at = len(ids)
        out.append(PromptImage(image, at, length))
        at += length
    runs = sum(image.length for image in out)
    if at > len(ids) or runs != ids.count(placeholder):
        raise ModelError(f"the prompt has {ids.count(placeholder)} placeholders, its {len(media)} images need {runs}")
    return tuple(out)


def image_facts(media: Media) -> ImageFacts:
    """Facts of an image; each file is decoded once per process, as long as it is among the 4096 last ones seen.

    Without Pillow an image is the same only as the same bytes, and its `error` says so.
    """
    digest = hashlib.blake2b(media.data, digest_size=16).digest()
    with _lock:
        if digest in _known:
            _known.move_to_end(digest)
            return _known[digest]
    facts = _decoded(media, digest)
    with _lock:
        _known[digest] = facts
        while len(_known) > _CACHED:
            _known.popitem(last=False)
    return facts


def image_size(media: Media) -> tuple[int, int]:
    """Width and height in pixels. Raises MediaError for what is no image, is broken, or is too large."""
    facts = image_facts(media)
    if facts.error:
        raise MediaError(facts.error)
    return facts.width, facts.height


_known: OrderedDict[bytes, ImageFacts] = OrderedDict()
_lock = threading.Lock()


def _decoded(media: Media, digest: bytes) -> ImageFacts:
    try:
        from PIL import Image
    except ImportError:
        return ImageFacts(digest, digest, error="images need 'pillow' here: pip install 'uni-agent[embedded]' pillow")
    try:
        with Image.open(io.BytesIO(media.data), formats=FORMATS) as image:
            width, height = image.size
            if width < 1 or height < 1 or width * height > MOST_PIXELS:
                return ImageFacts(
                    digest, digest, error=f"the image has {width} x {height} pixels, at most {MOST_PIXELS} can be read"
                )
            image.load()
            return ImageFacts(_pixels(image, digest), digest, width, height)
    except Exception as error:  # a decoder can raise anything on hostile bytes
        reason = str(error) if isinstance(error, Image.DecompressionBombError) else type(error).__name__
        known = ", ".join(FORMATS)
        return ImageFacts(digest, digest, error=f"the image cannot be read ({reason}): it is no sound file of {known}")


def _pixels(image: Any, digest: bytes) -> bytes:
    """The digest of what is to be seen. Of animations, and of depths that no processor keeps, that of the bytes."""
    if getattr(image, "n_frames", 1) != 1:
        return digest
    orientation = image.getexif().get(_ORIENTATION, 1)
    if image.mode in ("LA", "La", "PA", "RGBa", "RGBA") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getextrema()[3] == (255, 255):  # opaque: as good as none
            image = image.convert("RGB")
    elif image.mode in ("1", "L", "P", "RGB", "CMYK", "YCbCr"):
        image = image.convert("RGB")
    else:
        return digest
    head = f"{image.mode} {image.size} {orientation}".encode()
    return hashlib.blake2b(head + image.tobytes(), digest_size=16).digest()
