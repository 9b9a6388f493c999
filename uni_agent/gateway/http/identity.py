"""Who asks: the session of a request, the reward's writer, the administrator."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from uni_agent.gateway.errors import ErrorKind, GatewayError
from uni_agent.gateway.keys import read_key
from uni_agent.gateway.session import Session
from uni_agent.gateway.sessions import Sessions


def credentials(headers: Mapping[str, str]) -> list[str]:
    """What the client shows: bearer token and `x-api-key`, those in the form of our keys first."""
    found: list[str] = []
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        found.append(token.strip())
    if key := headers.get("x-api-key", "").strip():
        found.append(key)
    return sorted(found, key=lambda text: read_key(text) is None)


def session_of(sessions: Sessions, headers: Mapping[str, str], session_id: str | None) -> Session:
    """The session that a model request belongs to, by its path, its key, or both. Raises GatewayError.

    An id that the gateway minted is as hard to guess as a key, so the path alone is enough, and a text that is no
    session key (clients insist on sending one) does not matter. An id of the caller's own choice needs its key. A
    session key that is shown must fit.
    """
    shown = credentials(headers)
    key = next((text for text in shown if read_key(text) is not None), None)
    if session_id is None:
        if key is None:
            what = "the API key is no session key of this gateway" if shown else "an API key is needed"
            raise GatewayError(ErrorKind.AUTHENTICATION, f"{what}: create a session, and use its api_key")
        return sessions.by_key(key)
    if key is not None:
        _check_named(key, session_id)
        return sessions.by_key(key)
    session = sessions.get(session_id)
    if not session.minted:
        raise GatewayError(ErrorKind.AUTHENTICATION, f"session {session_id!r:.80} needs its API key")
    return session


def check_admin(headers: Mapping[str, str], token: str) -> None:
    """Raises GatewayError unless the administrator's token is shown."""
    if not is_admin(headers, token):
        shown = credentials(headers)
        kind = ErrorKind.PERMISSION if any(read_key(text) for text in shown) else ErrorKind.AUTHENTICATION
        raise GatewayError(kind, "this needs the administrator's token (Authorization: Bearer …)")


def is_admin(headers: Mapping[str, str], token: str) -> bool:
    """Whether the administrator's token is shown."""
    # Header bytes that are no UTF-8 come as lone surrogates.
    shown = (text.encode("utf-8", "surrogateescape") for text in credentials(headers))
    return any(hmac.compare_digest(text, token.encode()) for text in shown)


def reward_session(sessions: Sessions, headers: Mapping[str, str], session_id: str, token: str) -> Session:
    """The session whose reward may be written with what is shown: its reward key, or the token. Raises GatewayError."""
    if is_admin(headers, token):
        return sessions.get(session_id)
    shown = credentials(headers)
    if not shown:
        raise GatewayError(ErrorKind.AUTHENTICATION, "the session's reward key is needed (Authorization: Bearer …)")
    _check_named(shown[0], session_id)
    return sessions.by_key(shown[0], "reward")


def _check_named(text: str, session_id: str) -> None:
    """Raises GatewayError for the key of another session: it is not even looked up, since that may open a session."""
    key = read_key(text)
    if key is not None and key.session_id != session_id:
        raise GatewayError(ErrorKind.PERMISSION, f"this key is not that of session {session_id!r:.80}")
