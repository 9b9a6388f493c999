"""JSON as it goes to clients, alone and in server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Line breaks of Unicode, at which some clients would split."""

DONE = b"data: [DONE]\n\n"


def json_bytes(value: Any, escapes: Mapping[int, str] | None = None) -> bytes:
    """`value` as compact JSON in UTF-8. `escapes`: JSON escapes for characters that may not stand as they are."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    try:
        return (text if escapes is None else text.translate(escapes)).encode()
    except UnicodeEncodeError:
        # Lone surrogates have no UTF-8 form; as an escape they are still the same string to the client.
        return json.dumps(value, separators=(",", ":")).encode()


def frame(data: dict[str, Any], event: str = "") -> bytes:
    """One event. JSON has no raw line breaks, so its text is always one `data:` line."""
    return (b"event: " + event.encode() + b"\n" if event else b"") + b"data: " + json_bytes(data, _BREAKS) + b"\n\n"


def comment(text: str = "") -> bytes:
    """A line that carries no event."""
    return f": {text}\n\n".encode()
