"""Images in the forms in which engines take them."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

from uni_agent.errors import ConfigError, MissingExtraError
from uni_agent.types import Media

_KIND = re.compile(r"image/[\w.+-]{1,80}")


def data_url(media: Media) -> str:
    """The image as a `data:` URL without parameters: engines read no others."""
    kind = media.media_type.partition(";")[0]
    kind = kind if _KIND.fullmatch(kind) else "image/*"
    return f"data:{kind};base64,{base64.b64encode(media.data).decode()}"


def pil_image(media: Media) -> Any:
    """A PIL image in RGB. Raises ConfigError for bytes that are none, MissingExtraError without Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("PIL", "train", "an image") from error
    try:
        return Image.open(io.BytesIO(media.data)).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ConfigError(f"an image of type {media.media_type!r} cannot be read: {error}") from error
