"""The APIs that clients speak."""

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
