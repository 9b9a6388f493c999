"""When a message that a client sends back is the turn that was sampled, though it is written in another way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from uni_agent.tokens.messages import arguments_of, thinking_apart
from uni_agent.types import Message, ToolCall


def same_turn(sampled: Message, returned: Message) -> bool:
    """Whether both say the same; then the sampled tokens stand for `returned` too.

    Arguments are compared as JSON (key order, spacing and escapes do not matter), ids of calls and whitespace around an
    assistant's content are ignored, and so is thinking when only one side has it, since most clients drop it. Other
    roles must agree in content.
    """
    if sampled.role != returned.role:
        return False
    if sampled.role != "assistant":
        return sampled.content == returned.content
    thought, text = _parts(sampled)
    other_thought, other_text = _parts(returned)
    if text != other_text or len(sampled.tool_calls) != len(returned.tool_calls):
        return False
    if thought and other_thought and thought != other_thought:
        return False
    return all(_same_call(a, b) for a, b in zip(sampled.tool_calls, returned.tool_calls, strict=True))


def same_json(a: Any, b: Any) -> bool:
    """Equality of JSON values: numbers by their double (see `as_double`), while 1 and true are different."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        left, right = cast(Mapping[str, Any], a), cast(Mapping[str, Any], b)
        return left.keys() == right.keys() and all(same_json(value, right[key]) for key, value in left.items())
    if isinstance(a, list) and isinstance(b, list):
        first, second = cast(list[Any], a), cast(list[Any], b)
        return len(first) == len(second) and all(map(same_json, first, second))
    if isinstance(a, int | float) and isinstance(b, int | float):
        first_number, second_number = as_double(a), as_double(b)
        return first_number == second_number or (math.isnan(first_number) and math.isnan(second_number))
    return bool(a == b)


def as_double(number: int | float) -> float:
    """The IEEE double that a JSON number means, as JavaScript clients read it.

    They write 12345678901234567890 as 12345678901234567000, 1e3 as 1000 and -0 as 0. What is too large is infinite.
    """
    try:
        return float(number) + 0.0
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _parts(message: Message) -> tuple[str, str]:
    reasoning, content = message.reasoning, message.content
    if not reasoning:
        reasoning, content = thinking_apart(content)
    return reasoning.strip(), content.strip()


def _same_call(a: ToolCall, b: ToolCall) -> bool:
    if a.name != b.name:
        return False
    if a.error and b.error:
        return a.raw_arguments == b.raw_arguments
    return same_json(arguments_of(a), arguments_of(b))
