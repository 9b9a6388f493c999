"""How clients write a history that they were given: the same meaning in other spellings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from uni_agent.types import Message, parse_messages


@dataclass(frozen=True)
class Echo:
    """One client's habits."""

    thinking: str = "kept"  # kept · stripped · moved
    json: str = "plain"  # plain · spaced · reordered · escaped · floats
    ids: str = "kept"  # kept · renamed
    parts: bool = False
    blanks: bool = False

    def __call__(self, messages: Sequence[Message]) -> list[Message]:
        return parse_messages([self._dict(message.to_openai()) for message in messages])

    def _dict(self, raw: dict[str, Any]) -> dict[str, Any]:
        assistant = raw["role"] == "assistant"
        if assistant and self.thinking != "kept":
            thought = raw.pop("reasoning_content", "")
            if thought and self.thinking == "moved":
                raw["content"] = f"<think>\n{thought}\n</think>\n\n{raw['content']}"
        for call in raw.get("tool_calls", ()):
            function = call["function"]
            function["arguments"] = self._json(function["arguments"])
            call["id"] = self._id(call["id"])
        if raw["role"] == "tool":
            raw["tool_call_id"] = self._id(raw["tool_call_id"])
            raw.pop("name", None)
        if self.blanks:
            raw["content"] += "\n"
        if self.parts:
            half = len(raw["content"]) // 2
            pieces = [raw["content"][:half], raw["content"][half:]]
            raw["content"] = [{"type": "text", "text": piece} for piece in pieces if piece]
        elif assistant and not raw["content"]:
            raw["content"] = None
        return raw

    def _id(self, call_id: str) -> str:
        return call_id if self.ids == "kept" else f"toolu_{call_id}"

    def _json(self, text: str) -> str:
        value: dict[str, Any] = json.loads(text)
        if self.json == "spaced":
            return json.dumps(value, indent=2, ensure_ascii=False)
        if self.json == "reordered":
            return json.dumps(dict(reversed(value.items())), separators=(",", ":"), ensure_ascii=False)
        if self.json == "floats":
            value = {key: float(item) if type(item) is int else item for key, item in value.items()}
        return json.dumps(value, ensure_ascii=self.json == "escaped")


echoes = st.builds(
    Echo,
    thinking=st.sampled_from(["kept", "stripped", "moved"]),
    json=st.sampled_from(["plain", "spaced", "reordered", "escaped", "floats"]),
    ids=st.sampled_from(["kept", "renamed"]),
    parts=st.booleans(),
    blanks=st.booleans(),
)
