"""Chat models: what an episode talks to."""

from uni_agent.model.base import ChatModel, ChatSession, ModelTurn

__all__ = ["ChatModel", "ChatSession", "ModelTurn"]
