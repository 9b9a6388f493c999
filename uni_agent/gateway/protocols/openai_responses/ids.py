"""The ids that the gateway gives out, and the turn that one of them belongs to."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.canonical import call_id

_OURS = re.compile(r"(?:rs|msg|fc|ctc|call)_([0-9a-f]{24})[0-9a-f]{2,}")
_HANDLE = re.compile(rb"uni-agent:([0-9a-f]{24})")


def item_id(prefix: str, turn_id: str, number: int) -> str:
    """The id of the turn's item `number` of its kind: `rs_`, `msg_`, `fc_` or `ctc_`."""
    return call_id(prefix, turn_id, number)


def thinking_handle(turn_id: str) -> str:
    """What stands as `encrypted_content`: names the turn and holds nothing of its thinking."""
    return base64.b64encode(f"uni-agent:{turn_id}".encode()).decode()


def turn_of(item: Mapping[str, Any]) -> str:
    """The turn that gave an item of a history its ids, "" when they are not the gateway's or were left out.

    It only tells which items were said together. Whether they were is decided by their content.
    """
    for key in ("id", "call_id"):
        value = item.get(key)
        if isinstance(value, str) and (match := _OURS.fullmatch(value)):
            return match[1]
    handle = item.get("encrypted_content")
    if isinstance(handle, str) and len(handle) < 100:
        try:
            found = _HANDLE.fullmatch(base64.b64decode(handle, validate=True))
        except (binascii.Error, ValueError):
            return ""
        return found[1].decode() if found else ""
    return ""
