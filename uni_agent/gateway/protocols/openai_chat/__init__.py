"""OpenAI Chat Completions, with the extensions of vLLM that clients use."""

from uni_agent.gateway.protocols.openai_chat.adapter import OpenAIChatAdapter

__all__ = ["OpenAIChatAdapter"]
