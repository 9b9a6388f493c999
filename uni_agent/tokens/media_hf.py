"""The image processor of a Hugging Face model folder."""

from __future__ import annotations

import json
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from uni_agent.errors import ConfigError, MissingExtraError, boundary
from uni_agent.tokens.media import MediaError, image_size
from uni_agent.types import Media

_PROBE = (96, 160)


class HFMediaProcessor:
    """Counts placeholders as transformers' processors of the Qwen-VL kind do: one for each merged patch of the grid.

    `processor` is a transformers image processor whose output has `image_grid_thw`. That its count from the size alone
    is the count of a processed image is checked here, on one image. Raises ConfigError when it is not, or for a
    processor of another kind.
    """

    def __init__(self, processor: Any, placeholder_id: int) -> None:
        kind = type(processor).__name__
        names = cast("list[str]", getattr(processor, "model_input_names", None) or [])
        if "image_grid_thw" not in names or not hasattr(processor, "get_number_of_image_patches"):
            raise ConfigError(f"images: {kind} does not show an image as one run of placeholders: not supported")
        self.placeholder_id = placeholder_id
        self._processor = processor
        self._merged = int(processor.merge_size) ** 2
        with boundary(ConfigError, f"images: {kind} cannot be used"):
            whole = self._processed(*_PROBE)
            counted = self._count(*_PROBE)
        if whole != counted:
            raise ConfigError(f"images: {kind} counts {counted} tokens for an image that it shows with {whole}")

    @classmethod
    def from_folder(cls, folder: Path) -> HFMediaProcessor:
        """The processor that the folder's files describe; nothing is fetched, no code of the folder runs.

        The placeholder is `image_token_id` of config.json, else the token that tokenizer_config.json calls
        `image_token`. Raises ConfigError when something is missing or unusable, MissingExtraError without transformers
        or Pillow.
        """
        for package in ("transformers", "PIL"):
            if find_spec(package) is None:
                raise MissingExtraError("pillow" if package == "PIL" else package, "embedded", "an image")
        return _loaded(cls, folder.resolve())

    def tokens(self, media: Media) -> int:
        """See `MediaProcessor.tokens`."""
        width, height = image_size(media)
        try:
            count = self._count(width, height)
        except ValueError as error:  # too narrow for the model
            raise MediaError(f"the image of {width} x {height} pixels cannot be shown: {error}") from error
        if count < 1:
            raise MediaError(f"the image of {width} x {height} pixels is too small for this model")
        return count

    def _count(self, width: int, height: int) -> int:
        # The empty mapping is not left out: some versions look into it.
        return int(self._processor.get_number_of_image_patches(height, width, {})) // self._merged

    def _processed(self, width: int, height: int) -> int:
        from PIL import Image

        grid = self._processor(images=[Image.new("RGB", (width, height))])["image_grid_thw"][0]
        time, rows, columns = (int(side) for side in grid)
        return time * rows * columns // self._merged


def has_processor(folder: Path) -> bool:
    """Whether the folder describes an image processor."""
    return (folder / "preprocessor_config.json").is_file() or (
        (folder / "processor_config.json").is_file() and "image_processor" in _read(folder / "processor_config.json")
    )


@lru_cache(maxsize=8)
def _loaded(cls: type[HFMediaProcessor], folder: Path) -> HFMediaProcessor:
    if not has_processor(folder):
        raise ConfigError(f"images: {folder} has no preprocessor_config.json")
    placeholder = _placeholder(folder)
    with boundary(ConfigError, f"images: the image processor of {folder} cannot be loaded"):
        # From its own module: some versions of the package's top level hand out a stub where torchvision is missing,
        # although the processors that work on Pillow do without it.
        kinds: Any = import_module("transformers.models.auto.image_processing_auto").AutoImageProcessor
        processor = kinds.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    return cls(processor, placeholder)


def _placeholder(folder: Path) -> int:
    path = folder / "config.json"
    id_: Any = _read(path).get("image_token_id") if path.is_file() else None
    if type(id_) is int:
        return id_
    path = folder / "tokenizer_config.json"
    config = _read(path) if path.is_file() else {}
    token = config.get("image_token")
    decoder: dict[str, Any] = config.get("added_tokens_decoder") or {}
    for number, entry in decoder.items():
        if token is not None and isinstance(entry, dict) and cast("dict[str, Any]", entry).get("content") == token:
            return int(number)
    raise ConfigError(f"images: {folder / 'config.json'} names no `image_token_id`, the token that stands for an image")


def _read(path: Path) -> dict[str, Any]:
    with boundary(ConfigError, f"{path} cannot be read"):
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ConfigError(f"{path} cannot be read: it is no JSON object")
        return cast("dict[str, Any]", value)
