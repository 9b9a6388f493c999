"""Keeps what looks like a secret out of what is shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

_SECRET = re.compile(
    r"(^|[_\-])(api_?key|secret|secrets|secret_?key|password|passwd|authorization|bearer|credentials?|private_?key"
    r"|(access|auth|admin|api|bearer|refresh|session|hf|github|gitlab|hub)_?token)$|^token$|^x-api-key$",
    re.IGNORECASE,
)
_ENVIRONMENT = re.compile(r"^[A-Z][A-Z0-9_]*_(TOKEN|KEY|SECRET|PASSWORD|PASS|PAT)$")
_USERINFO = re.compile(r"(?<=://)[^/@\s:]+:[^/@\s]+(?=@)")
HIDDEN = "**********"


def is_secret_key(key: str) -> bool:
    """Whether a value under this key is better not shown. `api_key_env`, which names a variable, is fine to show."""
    return bool(_SECRET.search(key) or _ENVIRONMENT.match(key))


def redact(data: Any) -> Any:
    """`data` without values of secret keys and without passwords in URLs; for showing only."""
    if isinstance(data, Mapping):
        items = cast("Mapping[str, Any]", data).items()
        return {
            key: HIDDEN if is_secret_key(key) and isinstance(item, str) and item else redact(item)
            for key, item in items
        }
    if isinstance(data, (list, tuple)):
        return [redact(item) for item in cast("Sequence[Any]", data)]
    return _USERINFO.sub(HIDDEN, data) if isinstance(data, str) else data
