"""Three clients that only write and read JSON: the history is encoded once per message, never again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

SYSTEM = "You are a software engineer. Work in small steps; call one tool at a time. " * 12


def _function(i: int) -> dict[str, Any]:
    fields = ("command", "path", "pattern", "timeout")
    properties = {name: {"type": "string", "description": f"The {name} that tool {i} works with."} for name in fields}
    return {
        "name": "execute_bash" if not i else f"tool_{i}",
        "description": f"Tool number {i}. It runs something in the sandbox and returns what was printed. " * 3,
        "parameters": {"type": "object", "properties": properties, "required": ["command"]},
    }


FUNCTIONS = [_function(i) for i in range(10)]


class Wire:
    """A conversation of one client: `body` is the next request, `take` reads an answer, `give` adds a result."""

    path = ""
    key = "messages"

    def __init__(self, question: str, *, stream: bool = False) -> None:
        head = {**self.head(), "model": "bench", "stream": stream}
        self._head = json.dumps(head)[:-1].encode() + f', "{self.key}": ['.encode()
        self._items: list[bytes] = []
        self.add({"role": "user", "content": question})

    def head(self) -> dict[str, Any]:
        """Everything but the conversation."""
        raise NotImplementedError

    def add(self, *items: dict[str, Any]) -> None:
        """Append to the conversation."""
        self._items += [json.dumps(item).encode() for item in items]

    def body(self) -> bytes:
        """The request."""
        return self._head + b",".join(self._items) + b"]}"

    def take(self, answer: dict[str, Any]) -> str:
        """Keep the assistant's turn as a client sends it back; the id of its call."""
        raise NotImplementedError

    def give(self, call_id: str, result: str) -> None:
        """Add the result of a call."""
        raise NotImplementedError


class Chat(Wire):
    """OpenAI Chat Completions."""

    path = "/v1/chat/completions"

    def head(self) -> dict[str, Any]:
        """See `Wire.head`."""
        return {"tools": [{"type": "function", "function": one} for one in FUNCTIONS]}

    def __init__(self, question: str, *, stream: bool = False) -> None:
        super().__init__(question, stream=stream)
        self._items.insert(0, json.dumps({"role": "system", "content": SYSTEM}).encode())

    def take(self, answer: dict[str, Any]) -> str:
        """See `Wire.take`."""
        said = answer["choices"][0]["message"]
        self.add({name: value for name, value in said.items() if value is not None})
        return said["tool_calls"][0]["id"] if said.get("tool_calls") else ""

    def give(self, call_id: str, result: str) -> None:
        """See `Wire.give`."""
        self.add({"role": "tool", "tool_call_id": call_id, "content": result})


class Responses(Wire):
    """OpenAI Responses, with the whole history in each request as Codex sends it."""

    path = "/v1/responses"
    key = "input"

    def head(self) -> dict[str, Any]:
        """See `Wire.head`."""
        return {"instructions": SYSTEM, "store": False, "tools": [{"type": "function", **one} for one in FUNCTIONS]}

    def take(self, answer: dict[str, Any]) -> str:
        """See `Wire.take`."""
        self.add(*answer["output"])
        return next(item["call_id"] for item in answer["output"] if item["type"] == "function_call")

    def give(self, call_id: str, result: str) -> None:
        """See `Wire.give`."""
        self.add({"type": "function_call_output", "call_id": call_id, "output": result})


class Messages(Wire):
    """Anthropic Messages."""

    path = "/v1/messages"

    def head(self) -> dict[str, Any]:
        """See `Wire.head`."""
        tools = [
            {"name": f["name"], "description": f["description"], "input_schema": f["parameters"]} for f in FUNCTIONS
        ]
        return {"system": [{"type": "text", "text": SYSTEM}], "max_tokens": 4096, "tools": tools}

    def take(self, answer: dict[str, Any]) -> str:
        """See `Wire.take`."""
        self.add({"role": "assistant", "content": answer["content"]})
        return next(block["id"] for block in answer["content"] if block["type"] == "tool_use")

    def give(self, call_id: str, result: str) -> None:
        """See `Wire.give`."""
        block = {"type": "tool_result", "tool_use_id": call_id, "content": [{"type": "text", "text": result}]}
        self.add({"role": "user", "content": [block]})


WIRES: dict[str, type[Wire]] = {"openai_chat": Chat, "openai_responses": Responses, "anthropic_messages": Messages}


def chat_from_chunks(lines: Sequence[bytes]) -> tuple[dict[str, Any], int]:
    """The message that a Chat stream said, as an answer, and how many deltas it came in."""
    content, reasoning, arguments, call, deltas = "", "", "", {}, 0
    for line in lines:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            content += delta.get("content") or ""
            reasoning += delta.get("reasoning_content") or ""
            deltas += bool(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"))
            for piece in delta.get("tool_calls") or []:
                call = {**call, **{key: piece[key] for key in ("id",) if piece.get(key)}}
                call["name"] = piece["function"].get("name") or call.get("name", "")
                arguments += piece["function"].get("arguments") or ""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if call:
        function = {"name": call["name"], "arguments": arguments}
        message["tool_calls"] = [{"id": call["id"], "type": "function", "function": function}]
    return {"choices": [{"message": message}]}, deltas
