"""Anthropic's Messages API."""

from uni_agent.gateway.protocols.anthropic_messages.adapter import AnthropicMessagesAdapter

__all__ = ["AnthropicMessagesAdapter"]
