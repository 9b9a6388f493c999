"""What happens to the thinking of earlier turns."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal

from uni_agent.tokens.base import Renderer
from uni_agent.tokens.graph.nodes import Context, Turn
from uni_agent.tokens.graph.reading import Reading, message_parts

ThinkingPolicy = Literal["keep", "template"]
"""`keep`: sampled ids stay in every later prompt. `template`: where the template leaves the thinking of earlier turns
out, the next prompt is its full render, in a tree of its own."""

DROPPED = "the template leaves out the thinking of earlier turns here"


def mark_thinking(turn: Turn) -> None:
    """Set whether the chain up to `turn` shows thinking: the cost is that of the turn and its context."""
    context, renderer = turn.context, turn.context.scope.renderer
    if not context.turns:
        context.thinks = _shown(context, renderer)
    before = context.thinks or (context.parent is not None and context.parent.thinks)
    turn.thinks = before or bool(turn.reading.thought) or renderer.shows_thinking(turn.ids)


def loses_thinking(turn: Turn, new: Sequence[Reading]) -> bool:
    """Whether the chain up to `turn` shows thinking that a full render with `new` behind it would not."""
    if not turn.thinks:
        return False
    scope = turn.context.scope
    return scope.renderer.drops_thinking(turn.message.tool_calls, [reading.message for reading in new], scope.tools)


def _shown(context: Context, renderer: Renderer) -> bool:
    """Whether thinking of assistant messages, or an empty block of it, is in a context (it may be left out)."""
    said = [reading.message for reading in context.readings if reading.message.role == "assistant"]
    if not said:
        return False
    if renderer.shows_thinking(context.ids):
        return True
    thoughts = [thought for thought, _ in map(message_parts, said) if thought]
    text = renderer.decode(context.ids) if thoughts else ""
    return any(thought in text or unicodedata.normalize("NFC", thought) in text for thought in thoughts)
