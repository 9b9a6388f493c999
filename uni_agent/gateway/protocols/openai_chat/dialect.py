"""What of a Chat request decides the form of its answer."""

from __future__ import annotations

from dataclasses import dataclass

from uni_agent.gateway.canonical import ModelRequest


@dataclass(frozen=True, slots=True)
class ChatDialect:
    """`custom` are the names of custom tools, `legacy` says that the client uses `functions`, the older form of tools.

    `usage`: the stream ends with a usage chunk. `logprobs` and `token_ids`: the answer holds them.
    """

    custom: frozenset[str] = frozenset()
    legacy: bool = False
    usage: bool = False
    logprobs: bool = False
    token_ids: bool = False


def dialect_of(request: ModelRequest) -> ChatDialect:
    """The dialect of a request that this adapter read."""
    return request.dialect if isinstance(request.dialect, ChatDialect) else ChatDialect()
