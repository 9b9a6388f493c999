"""Renderers and gateways for the tests of this folder."""

from __future__ import annotations

from tests.tokens.conftest import make, qwen, qwen_folder, small_folder, small_tokenizer

__all__ = ["make", "qwen", "qwen_folder", "small_folder", "small_tokenizer"]
