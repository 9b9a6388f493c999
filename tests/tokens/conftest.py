"""Renderers over a small tokenizer, and the real Qwen tokenizer where one is at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tokens.small import TEMPLATES, train, write_folder
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tokens.tokenizer import ChatTokenizer

MakeRenderer = Callable[..., ChatTemplateRenderer]


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with the small tokenizer and no chat template."""
    return write_folder(tmp_path_factory.mktemp("small"), train())


@pytest.fixture(scope="session")
def small_tokenizer(small_folder: Path) -> ChatTokenizer:
    return ChatTokenizer.from_folder(small_folder)


@pytest.fixture(scope="session")
def make(small_folder: Path) -> MakeRenderer:
    """`make(template, **template_kwargs)` builds a renderer; the same one for the same arguments."""
    built: dict[str, ChatTemplateRenderer] = {}

    def build(name: str, **kwargs: object) -> ChatTemplateRenderer:
        key = f"{name} {kwargs}"
        if key not in built:
            config = RendererConfig(chat_template=TEMPLATES / f"{name}.jinja", template_kwargs=kwargs)
            built[key] = config.build(small_folder)
        return built[key]

    return build


@pytest.fixture(scope="session")
def qwen_folder() -> Path:
    """The folder of a real Qwen2.5 or Qwen3 tokenizer, named by UNI_AGENT_QWEN_TOKENIZER."""
    folder = os.environ.get("UNI_AGENT_QWEN_TOKENIZER")
    if not folder:
        pytest.skip("UNI_AGENT_QWEN_TOKENIZER names no folder with Qwen's tokenizer.json")
    return Path(folder)


@pytest.fixture(scope="session")
def qwen(qwen_folder: Path) -> ChatTemplateRenderer:
    """Qwen3 with its real tokenizer."""
    return RendererConfig(chat_template=TEMPLATES / "qwen3.jinja").build(qwen_folder)
