"""Which process owns a session."""

from __future__ import annotations

import hashlib


def owner_of(session_id: str, shards: int) -> int:
    """The number (from 0) of the process that owns a session; the same in all processes and after restarts."""
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % shards
