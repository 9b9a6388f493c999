"""The environment that programs in a host sandbox see: nothing of this process but a short list of harmless names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

HARMLESS = ("PATH", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ")
"""Variables that are passed on when this process has them."""

SHELL_DEFAULTS: Mapping[str, str] = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_env(env: Mapping[str, str]) -> None:
    """Raise ValueError that names the first entry no program could be given."""
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of the environment variable {name!r} holds a NUL character")


def host_environment(allow: Iterable[str]) -> dict[str, str]:
    """The harmless variables of this process and those in `allow`; PATH and LANG always have a value."""
    kept = {name: os.environ[name] for name in (*HARMLESS, *allow) if name in os.environ}
    return {"PATH": _DEFAULT_PATH, "LANG": "C.UTF-8", **SHELL_DEFAULTS, **kept}
