"""Whether a run may be resumed: what of its configuration changed, told without telling secrets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator
from typing import Any, cast

from uni_agent.errors import ConfigError
from uni_agent.store.text import dumps, plain
from uni_agent.types import Task

_SECRET = re.compile(
    r"(?i)(^|[_\-.])(api[_\-]?key|access[_\-]?key|secret([_\-]?key)?|private[_\-]?key|password|passwd|token|credentials?"
    r"|authorization)$"
)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
_REDACTED = "(redacted)"
_ABSENT = object()
_SHOWN = 8


def redact(value: Any, key: str = "") -> Any:
    """Plain data with the text under keys such as `api_key`, `token` or `password`, and logins in URLs, replaced."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {name: redact(item, name) for name, item in items.items()}
    if isinstance(value, list):
        return [redact(item, key) for item in cast("list[Any]", value)]
    if not isinstance(value, str) or not value:
        return value
    return _REDACTED if _SECRET.search(key) else _LOGIN.sub(_REDACTED, value)


def stored_config(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as the store keeps it."""
    return redact(plain(config))


def refuse_changes(
    old: dict[str, Any], new: dict[str, Any], *, old_digest: str, new_digest: str, ignore: Collection[str]
) -> None:
    """Raises ConfigError naming each dotted key whose value differs, unless it lies under one of `ignore`.

    Equal digests settle it. Differing digests with nothing to show for it mean that a secret changed, which is allowed.
    """
    if old_digest == new_digest:
        return
    changes = [(path, a, b) for path, a, b in differences(old, new) if not _covered(path, ignore)]
    if not changes:
        return
    lines = [f"  {path}: was {_shown(a)}, is now {_shown(b)}" for path, a, b in changes[:_SHOWN]]
    if len(changes) > _SHOWN:
        lines.append(f"  and {len(changes) - _SHOWN} more")
    raise ConfigError(
        "the configuration is not the one this run was started with; restore it, or start a new run:\n"
        + "\n".join(lines)
    )


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Dotted path, old and new value of everything that differs; an absent side is a sentinel shown as `(absent)`."""
    if isinstance(old, dict) and isinstance(new, dict):
        olds, news = cast("dict[str, Any]", old), cast("dict[str, Any]", new)
        for key in sorted({*olds, *news}):
            below = f"{path}.{key}" if path else key
            yield from differences(olds.get(key, _ABSENT), news.get(key, _ABSENT), below)
    elif (isinstance(old, bool) is not isinstance(new, bool)) or old != new:
        yield path, old, new


def content_hash(task: Task) -> str:
    """A digest of everything in the task that can change what happens; where its file lies is left out."""
    text = dumps(task.model_dump(exclude={"base_dir"}))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _covered(path: str, prefixes: Collection[str]) -> bool:
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "(absent)"
    text = dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
