"""The vision model of the tests of images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tokens.media.vision import vision_renderer, write_vision_folder
from uni_agent.tokens.renderer import ChatTemplateRenderer


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_folder(tmp_path_factory.mktemp("vision") / "model")


@pytest.fixture(scope="session")
def vision(vision_folder: Path) -> ChatTemplateRenderer:
    """A renderer with the folder's image processor."""
    return vision_renderer(vision_folder)
