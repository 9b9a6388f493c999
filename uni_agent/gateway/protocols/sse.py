"""Server-sent events."""

from __future__ import annotations

import json
from typing import Any

_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}
"""Line breaks of Unicode, at which some clients would split."""

DONE = b"data: [DONE]\n\n"


def frame(data: dict[str, Any], event: str = "") -> bytes:
    """One event. JSON has no raw line breaks, so its text is always one `data:` line."""
    # Lone surrogates have no UTF-8 form; as an escape they are still the same string to the client.
    body = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(_BREAKS)
    try:
        line = body.encode()
    except UnicodeEncodeError:
        line = json.dumps(data, separators=(",", ":")).encode()
    return (b"event: " + event.encode() + b"\n" if event else b"") + b"data: " + line + b"\n\n"


def comment(text: str = "") -> bytes:
    """A line that carries no event."""
    return f": {text}\n\n".encode()
