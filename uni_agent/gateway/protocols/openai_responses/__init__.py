"""The OpenAI Responses API."""

from uni_agent.gateway.protocols.openai_responses.adapter import OpenAIResponsesAdapter

__all__ = ["OpenAIResponsesAdapter"]
