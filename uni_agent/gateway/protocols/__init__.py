"""The APIs that clients speak, one folder each, behind the seam in `base`.

In each folder `request`, with `history` and `tools`, reads; `response`, `stream` and `errors` write; `adapter` is the
`ProtocolAdapter`. What they share is in `reading` (JSON values, messages, images), `parameters` (sampling) and `sse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from uni_agent.gateway.canonical import ProtocolName
from uni_agent.gateway.protocols.base import ProtocolAdapter


@cache
def adapters() -> Mapping[ProtocolName, ProtocolAdapter]:
    """One adapter per protocol; they are stateless."""
    from uni_agent.gateway.protocols.anthropic_messages import AnthropicMessagesAdapter
    from uni_agent.gateway.protocols.openai_chat import OpenAIChatAdapter
    from uni_agent.gateway.protocols.openai_responses import OpenAIResponsesAdapter

    return {
        "openai_chat": OpenAIChatAdapter(),
        "openai_responses": OpenAIResponsesAdapter(),
        "anthropic_messages": AnthropicMessagesAdapter(),
    }
