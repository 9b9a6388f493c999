"""What a message means, as short digests: each message of a request is read once."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic_core import from_json

from uni_agent.tokens.compare import as_double
from uni_agent.tokens.media import image_facts
from uni_agent.tokens.messages import arguments_of, in_call_order, thinking_apart
from uni_agent.types import Media, Message, ToolCall

Clean = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Reading:
    """One message and its digests.

    `key` is its meaning without thinking, `thought` its thinking (b"" when it has none). `spellings` are the ways to
    write it that count as written the same: as it stands, then as the wire format writes it. `answers` is the index of
    the call that a tool result answers, -1 where there is none. `media` are the identities of its images: the same
    pixels are the same image, whatever file they come in. `rescued` are the keys of what lenient clients make of it
    when its arguments are broken: none at all, or those that stand before the break.
    """

    message: Message
    key: bytes
    thought: bytes
    spellings: tuple[bytes, ...]
    answers: int = -1
    media: tuple[bytes, ...] = ()
    rescued: tuple[bytes, ...] = ()

    def reads_like(self, returned: Reading) -> bool:
        """Whether `returned` is written as this message is, call ids aside."""
        return returned.spellings[0] in self.spellings


def read_all(messages: Sequence[Message], clean: Clean) -> list[Reading]:
    """Readings of `messages`, with each run of tool results in the order of the calls that it answers.

    Call ids only say which result answers which call; results with ids that no call has take the calls left over.
    `clean` leaves out of a text what is no part of its meaning.
    """
    out: list[Reading] = []
    calls: tuple[ToolCall, ...] = ()
    run: list[Message] = []

    def flush() -> None:
        if not run:
            return
        numbers = _numbers(run, calls)
        order = sorted(range(len(run)), key=lambda i: numbers[i] if numbers[i] >= 0 else len(calls))
        out.extend(read(run[i], clean, numbers[i]) for i in order)
        run.clear()

    for message in in_call_order(messages):
        if message.role == "tool":
            run.append(message)
            continue
        flush()
        if message.role == "assistant":
            calls = message.tool_calls
        out.append(read(message, clean))
    flush()
    return out


def read(message: Message, clean: Clean, answers: int = -1) -> Reading:
    """The reading of one message."""
    if message.parts:
        return _read_parts(message, clean, answers)
    thought, text = message_parts(message)
    text = clean(text).strip()
    name = message.name if message.role in ("user", "system") else ""
    if not message.tool_calls:
        key = _digest(message.role, name, str(answers), text)
        # What is written just as it is meant needs no second digest.
        spelling = key if text == message.content and not message.reasoning else _spelling(message, ())
        return Reading(message, key, _digest(thought) if thought else b"", (spelling,), answers)
    calls = [part for call in message.tool_calls for part in (call.name, call_meaning(call))]
    key = _digest(message.role, name, str(answers), text, *calls)
    as_given = _spelling(message, [call.raw_arguments or _dumps(call) for call in message.tool_calls])
    as_sent = _spelling(message, [_dumps(call) for call in message.tool_calls])
    rescued: tuple[bytes, ...] = ()
    if any(call.error for call in message.tool_calls):
        ways = ([part for call in message.tool_calls for part in (call.name, way(call))] for way in (_emptied, _begun))
        rescued = tuple(_digest(message.role, name, str(answers), text, *calls) for calls in ways)
    return Reading(message, key, _digest(thought) if thought else b"", (as_given, as_sent), answers, rescued=rescued)


def text_runs(message: Message, clean: Clean) -> list[str]:
    """The texts before, between and behind the images, cleaned, without whitespace at the message's ends."""
    runs = [""]
    for part in message.parts:
        if isinstance(part, str):
            runs[-1] += part
        else:
            runs.append("")
    runs = [clean(run) for run in runs]
    runs[0], runs[-1] = runs[0].lstrip(), runs[-1].rstrip()
    return runs


def _read_parts(message: Message, clean: Clean, answers: int) -> Reading:
    """The reading of a message with images."""
    facts = [image_facts(part) for part in message.parts if isinstance(part, Media)]
    name = message.name if message.role in ("user", "system") else ""
    thought = message.reasoning.strip()
    calls = [part for call in message.tool_calls for part in (call.name, call_meaning(call))]
    seen = [fact.identity.hex() for fact in facts]
    # No role is called so, and the number of images is in it: no other message has this digest.
    key = _digest("images", str(len(seen)), message.role, name, str(answers), *text_runs(message, clean), *seen, *calls)
    arguments = [call.raw_arguments or _dumps(call) for call in message.tool_calls]
    files = [fact.file.hex() for fact in facts]
    spelling = _digest(_spelling(message, arguments).hex(), *text_runs(message, str), *files)
    identities = tuple(fact.identity for fact in facts)
    return Reading(message, key, _digest(thought) if thought else b"", (spelling,), answers, identities)


def message_parts(message: Message) -> tuple[str, str]:
    """Thinking and text, both without whitespace at their ends, wherever the client put the thinking."""
    reasoning, content = message.reasoning, message.content
    if message.role == "assistant" and not reasoning.strip():
        reasoning, content = thinking_apart(content)
    return reasoning.strip(), content.strip()


def call_meaning(call: ToolCall) -> str:
    """Arguments as JSON that is the same for equal values; what is no JSON object stands for itself."""
    arguments = arguments_of(call)
    if not arguments and call.error and call.raw_arguments.strip().replace(" ", "") not in ("", "{}", "null"):
        return f"raw {call.raw_arguments.strip()}"
    return json_meaning(arguments) or f"raw {call.raw_arguments.strip()}"


def _emptied(call: ToolCall) -> str:
    return json_meaning({}) if call.error else call_meaning(call)


def _begun(call: ToolCall) -> str:
    """The meaning of what stands before the break, as the streaming SDKs read it."""
    if not call.error:
        return call_meaning(call)
    try:
        begun: Any = from_json(call.raw_arguments.encode("utf-8", "replace"), allow_partial=True)
    except ValueError:
        return json_meaning({})
    return json_meaning(begun if isinstance(begun, dict) else {})


def json_meaning(value: Any) -> str:
    """JSON text that is the same for equal values: keys sorted, numbers as doubles. "" for a value too deep to walk."""
    try:
        return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=repr)
    except RecursionError:
        return ""


def text_digest(value: Any) -> bytes:
    """The same for JSON values that are written the same; b"" for what is no JSON data."""
    try:
        return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError):
        return b""


def _plain(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return as_double(value)
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast(dict[Any, Any], value).items()}
    if isinstance(value, list):
        return [_plain(item) for item in cast(list[Any], value)]
    return value


def _numbers(run: Sequence[Message], calls: Sequence[ToolCall]) -> list[int]:
    """For each result of `run` the index of the call it answers; -1 for those beyond the calls."""
    by_id: dict[str, deque[int]] = {}
    for i, call in enumerate(calls):
        by_id.setdefault(call.id, deque()).append(i)
    numbers = [by_id[m.tool_call_id].popleft() if by_id.get(m.tool_call_id) else -1 for m in run]
    taken = set(numbers)
    left = iter([i for i in range(len(calls)) if i not in taken])
    return [number if number >= 0 else next(left, -1) for number in numbers]


def _dumps(call: ToolCall) -> str:
    if call.error:
        return call.raw_arguments
    try:
        return json.dumps(call.arguments, ensure_ascii=False, default=repr)
    except RecursionError:
        return call.raw_arguments


def _spelling(message: Message, arguments: Sequence[str]) -> bytes:
    calls = [part for call, text in zip(message.tool_calls, arguments, strict=True) for part in (call.name, text)]
    return _digest(message.role, message.content, message.reasoning, *calls)


def _digest(*parts: str) -> bytes:
    framed = "".join([f"{len(part)}:{part}" for part in parts])
    return hashlib.blake2b(framed.encode("utf-8", "surrogatepass"), digest_size=16).digest()
