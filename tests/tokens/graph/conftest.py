"""Sessions over the quickstart policy's tokenizer and the chat templates of the token tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.tokens.graph.support import Session, renderer_of
from uni_agent.tokens.graph import Matcher, SessionGraph, ThinkingPolicy

MakeSession = Callable[..., Session]


@pytest.fixture
def session() -> MakeSession:
    """`session(template, matcher=None, thinking="keep")` opens a new session."""

    def build(name: str = "qwen3", matcher: Matcher | None = None, thinking: ThinkingPolicy = "keep") -> Session:
        renderer = renderer_of(name)
        return Session(SessionGraph("s", renderer, matcher=matcher, thinking=thinking), renderer)

    return build
