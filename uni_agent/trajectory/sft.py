"""Trajectories as chat messages for supervised fine-tuning."""

from __future__ import annotations

import base64
from typing import Any, Literal

from uni_agent.trajectory.trajectory import Trajectory
from uni_agent.types import Media, Message


def sft_example(trajectory: Trajectory, *, flag: Literal["train", "weight"] = "train") -> dict[str, Any]:
    """`{messages, tools, …}` in the form of OpenAI Chat Completions, thinking in `reasoning_content`.

    Each message has `train`: true for an assistant message all of whose tokens this trajectory trains, false for
    context, for turns that another trajectory trains, and for masked or cut ones. So each turn of a session is trained
    in one example. `flag="weight"` writes OpenAI's `weight` (1 or 0), on assistant messages only, instead. `tools` is
    left out when there are none; images are data URLs. The rest are facts about the trajectory.

    Raises ValueError for a trajectory that does not say which turn each message is.
    """
    t = trajectory
    if len(t.message_turns) != len(t.messages):
        raise ValueError(f"trajectory {t.id!r}: does not say which turn each message is")
    whole = _whole_turns(t)
    messages: list[dict[str, Any]] = []
    for message, turn in zip(t.messages, t.message_turns, strict=True):
        out = openai_message(message)
        trained = turn is not None and turn in whole
        if flag == "train":
            out["train"] = trained
        elif message.role == "assistant":
            out["weight"] = int(trained)
        messages.append(out)
    example: dict[str, Any] = {"messages": messages}
    if t.tools:
        example["tools"] = list(t.tools)
    facts = {"trajectory_id": t.id, "session_id": t.session_id, "scenario": t.scenario, "reward": t.reward}
    return {**example, **facts, "exit_reason": t.exit_reason}


def openai_message(message: Message) -> dict[str, Any]:
    """`Message.to_openai`, with images in their places."""
    out = message.to_openai()
    if message.parts:
        out["content"] = [_part(part) for part in message.parts]
    return out


def _part(part: str | Media) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data = base64.b64encode(part.data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:{part.media_type or 'image/png'};base64,{data}"}}


def _whole_turns(t: Trajectory) -> set[int]:
    """Turns with at least one token, all of whose tokens are here and trained."""
    half: Any = t.extra.get("cut", {}).get("turn")
    spans = (span for span in t.spans if span.kind == "sampled" and span.end > span.start)
    whole = {t.turns[span.turn] for span in spans if all(t.response_mask[span.start : span.end])}
    return whole - {half}
