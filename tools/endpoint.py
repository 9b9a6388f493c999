"""How the search programs talk to their server."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """Limits of one search call: seconds for one try, number of tries, seconds for all of them; the output's form.

    `json` prints `{"result": ...}` on one line, `text` something to read. `max_chars` bounds the output and
    `max_document_chars` each document in it, both in characters.
    """

    timeout: float = 30.0
    tries: int = 5
    deadline: float = 120.0
    format: Literal["json", "text"] = "json"
    max_chars: int = 30_000
    max_document_chars: int = 4_000

    def to_dict(self) -> dict[str, Any]:
        """The options as plain data."""
        return asdict(self)


def origin(url: str) -> str:
    """`scheme://host:port` of an address, the port always written. Raises ValueError for what is not http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is not an http or https address")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
