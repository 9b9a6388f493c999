"""The items of `input` as messages: all that one turn said is one assistant message."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from uni_agent.gateway.errors import invalid, unsupported
from uni_agent.gateway.protocols.openai_responses.ids import turn_of
from uni_agent.gateway.protocols.openai_responses.tools import ToolBox, visible_name
from uni_agent.gateway.protocols.reading import Parts, call_of, image, listing, mapping, message_of, plain, text
from uni_agent.types import Message, Role, ToolCall

_TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_IMAGES = ("input_image", "image_url", "computer_screenshot")
_ROLES: dict[str, Role] = {"assistant": "assistant", "system": "system", "developer": "system", "tool": "tool"}
_HELD_ELSEWHERE = ("item_reference", "compaction", "compaction_summary", "context_compaction")


@dataclass(slots=True)
class _Turn:
    """An assistant turn in pieces. `handle` is the turn that the pieces' ids name, "" while none does."""

    handle: str = ""
    texts: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: list[ToolCall] = field(default_factory=list[ToolCall])

    def message(self) -> Message | None:
        content = "\n".join(filter(None, self.texts))
        reasoning = joined_thoughts(self.thoughts)
        if not (content or reasoning or self.calls):
            return None
        return Message("assistant", content, reasoning, tuple(self.calls))


class History:
    """Takes the items in their order; `messages` is what they say.

    - Messages of any role; `developer` is system, an unknown role user. No `type` means a message.
    - Reasoning, text, `function_call` and `custom_tool_call` that follow each other are one assistant message; where
      their ids name different turns of the gateway they are as many (Codex keeps what a failed attempt had said).
    - Other calls that the client ran (`local_shell_call`, `shell_call`, `apply_patch_call`, `computer_call`: whatever
      has a `call_id`) and their outputs are context, as calls of a tool of that name.
    - What a vendor ran on its own (`web_search_call`, `mcp_call`, …), approvals and unknown items are left out and
      named in `left_out`, as unknown roles are. Items that only refer to what is held elsewhere are refused.
    - `additional_tools` go to `tools`.
    """

    def __init__(self, tools: ToolBox) -> None:
        self.left_out: dict[str, None] = {}
        self._tools = tools
        self._out: list[Message | _Turn] = []
        self._last: _Turn | None = None  # the turn that nothing but results has followed

    @property
    def messages(self) -> list[Message]:
        """All messages so far; turns that said nothing are none."""
        found = [item.message() if isinstance(item, _Turn) else item for item in self._out]
        return [message for message in found if message is not None]

    def add(self, value: Any, at: str) -> None:
        """Read on. Raises GatewayError that names the path of what cannot be read."""
        item = mapping(value, at)
        kind = text(item.get("type"), f"{at}.type") or ("message" if "role" in item else "")
        if kind == "message":
            self._message(item, at)
        elif kind == "reasoning":
            self._turn(item).thoughts.append(_thinking(item, at))
        elif kind in ("function_call", "custom_tool_call"):
            self._turn(item).calls.append(_call(item, kind, at))
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._result(item, content_parts(item.get("output"), f"{at}.output"), at)
        elif kind == "additional_tools":
            self._tools.add(item.get("tools"), f"{at}.tools")
        elif kind in _HELD_ELSEWHERE:
            raise unsupported(f"{at}: items of type {kind!r} cannot be looked up; send the items themselves", at)
        elif not kind:
            raise invalid(f"{at}.type: an item needs a type or a role", f"{at}.type")
        else:
            self._vendor(item, kind, at)

    def _message(self, item: dict[str, Any], at: str) -> None:
        named = text(item.get("role"), f"{at}.role")
        role = _ROLES.get(named, "user")
        if named not in ("", "user", *_ROLES):
            self.left_out[f"input: role {named:.60}"] = None
        parts = content_parts(item.get("content"), f"{at}.content")
        if role == "tool":
            self._out.append(
                message_of("tool", parts, tool_call_id=text(item.get("tool_call_id"), f"{at}.tool_call_id"))
            )
        elif role != "user" and any(not isinstance(part, str) for part in parts):
            raise unsupported(f"{at}.content: images are read in user messages and results alone", f"{at}.content")
        elif role == "assistant":
            self._turn(item).texts.append("".join(part for part in parts if isinstance(part, str)))
        else:
            self._last = None
            self._out.append(message_of(role, parts))

    def _turn(self, item: dict[str, Any]) -> _Turn:
        """The turn that said `item`: the one at hand, unless ids tell that it is another."""
        handle, turn = turn_of(item), self._last
        if turn is not None and self._out[-1] is turn and "" in (handle, turn.handle):
            turn.handle = turn.handle or handle
            return turn
        if turn is not None and handle and handle == turn.handle:  # results may stand between the calls of one turn
            return turn
        turn = self._last = _Turn(handle)
        self._out.append(turn)
        return turn

    def _result(self, item: dict[str, Any], parts: Parts, at: str) -> None:
        self._out.append(message_of("tool", parts, tool_call_id=text(item.get("call_id"), f"{at}.call_id")))

    def _vendor(self, item: dict[str, Any], kind: str, at: str) -> None:
        if not isinstance(item.get("call_id"), str):
            self.left_out[f"input: {kind:.60}"] = None
        elif kind.endswith("_call"):
            keys = ("arguments", "action", "operation")
            given: Any = next((item[key] for key in keys if item.get(key) is not None), None)
            name = text(item.get("name"), f"{at}.name") or kind.removesuffix("_call")
            self._turn(item).calls.append(call_of(item["call_id"], name, plain(given, at)))
        elif kind.endswith("_call_output"):
            self._result(item, _vendor_output(item.get("output"), f"{at}.output"), at)
        else:
            self.left_out[f"input: {kind:.60}"] = None


def content_parts(value: Any, param: str) -> Parts:
    """Text and images of a content: a string, null, or a list of parts. Raises GatewayError for files and audio."""
    if isinstance(value, str):
        return [value]
    parts: Parts = []
    for i, part in enumerate(listing(value, param)):
        at = f"{param}[{i}]"
        if isinstance(part, str):
            parts.append(part)
            continue
        fields = mapping(part, at)
        kind = fields.get("type") or "text"
        if kind in _TEXTS:
            parts.append(text(fields.get("text"), f"{at}.text"))
        elif kind == "refusal":
            parts.append(text(fields.get("refusal"), f"{at}.refusal"))
        elif kind in _IMAGES:
            parts.append(_image(fields, at))
        else:
            raise unsupported(f"{at}: content of type {kind!r:.60} cannot be read; text and images can", at)
    return parts


def joined_thoughts(pieces: list[str]) -> str:
    """Thinking that was said in several pieces: each on a line of its own."""
    out = ""
    for piece in filter(None, pieces):
        out += ("" if not out or out.endswith("\n") else "\n") + piece
    return out


def _image(fields: dict[str, Any], at: str) -> Any:
    url = fields.get("image_url")
    if isinstance(url, dict):
        url = cast("dict[str, Any]", url).get("url")
    if url is None:
        raise unsupported(f"{at}: an image can only be read from a data: URL in image_url", at)
    return image(url, f"{at}.image_url")


def _thinking(item: dict[str, Any], at: str) -> str:
    """The thinking itself where the item has it, else its summary."""
    for key in ("content", "summary"):
        parts = content_parts(item.get(key), f"{at}.{key}")
        said = joined_thoughts([part for part in parts if isinstance(part, str)])
        if said:
            return said
    return ""


def _call(item: dict[str, Any], kind: str, at: str) -> ToolCall:
    name = visible_name(text(item.get("namespace"), f"{at}.namespace"), text(item.get("name"), f"{at}.name"))
    if kind == "function_call":
        return call_of(item.get("call_id"), name, plain(item.get("arguments"), f"{at}.arguments"))
    given = {"input": text(item.get("input"), f"{at}.input")}
    return ToolCall(text(item.get("call_id"), f"{at}.call_id"), name, given, json.dumps(given, ensure_ascii=False))


def _vendor_output(value: Any, param: str) -> Parts:
    """An output of a vendor's form: content where it is one, otherwise its JSON."""
    if isinstance(value, dict) and cast("dict[str, Any]", value).get("type") in _IMAGES:
        value = [value]
    parts = cast("list[Any]", value) if isinstance(value, list) else []
    known = all(isinstance(p, dict) and cast("dict[str, Any]", p).get("type") in _TEXTS + _IMAGES for p in parts)
    if value is None or isinstance(value, str) or (parts and known):
        return content_parts(value, param)
    return [json.dumps(plain(value, param), ensure_ascii=False)]
