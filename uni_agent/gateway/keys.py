"""Session keys: capabilities that name their session, so that no process has to know them all.

A key is `<kind>-<session id in base64>.<token>`. The token is random, or an HMAC of kind and id under a shared secret:
then whoever has the secret makes keys without asking the gateway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from typing import Literal

from uni_agent.gateway.config import SESSION_ID

KeyKind = Literal["api", "reward"]
"""`api` talks to the model, `reward` writes the session's reward. Neither does the other's work."""

_PREFIX: dict[KeyKind, str] = {"api": "uak", "reward": "urk"}
_TOKEN_HEX = 48
_KEY = re.compile(r"(uak|urk)-([A-Za-z0-9_-]{1,300})\.([0-9a-f]{48})\Z")
_ID = re.compile(SESSION_ID)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as it was read; nothing is verified yet."""

    kind: KeyKind
    session_id: str
    text: str


def read_key(text: str) -> Key | None:
    """The key that `text` is in form, or None."""
    match = _KEY.match(text)
    if match is None:
        return None
    name = match[2]
    try:
        session_id = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    if _ID.fullmatch(session_id) is None or _named(session_id) != name:  # one spelling per id
        return None
    return Key("api" if match[1] == _PREFIX["api"] else "reward", session_id, text)


def signed_key(secret: bytes, kind: KeyKind, session_id: str) -> str:
    """The key of a session under a shared secret. Raises ValueError for an id that cannot be one."""
    token = hmac.new(secret, f"{kind}\0{session_id}".encode(), hashlib.sha256).hexdigest()[:_TOKEN_HEX]
    return _written(kind, session_id, token)


def random_key(kind: KeyKind, session_id: str) -> str:
    """A new key of a session: 192 random bits."""
    return _written(kind, session_id, secrets.token_hex(_TOKEN_HEX // 2))


def key_digest(text: str) -> str:
    """What is kept of a key: enough to know it again, useless to whoever reads it."""
    return hashlib.sha256(text.encode()).hexdigest()


def _written(kind: KeyKind, session_id: str, token: str) -> str:
    if _ID.fullmatch(session_id) is None:  # `match` would let a final line break through
        raise ValueError(f"{session_id!r} cannot be a session id: it must match {SESSION_ID}")
    return f"{_PREFIX[kind]}-{_named(session_id)}.{token}"


def _named(session_id: str) -> str:
    return base64.urlsafe_b64encode(session_id.encode()).decode().rstrip("=")
