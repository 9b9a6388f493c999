"""The real Qwen tokenizer, where one is at hand."""

from __future__ import annotations

from tests.tokens.conftest import qwen_folder

__all__ = ["qwen_folder"]
