"""Byte-exact files over any SWE-ReX runtime, whose own interface knows text only."""

from __future__ import annotations

import base64
import secrets
import shlex
from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

_WRITE_CHUNK = 60 << 10
"""Bytes of one write: its base64 must stay below the 128 KiB that the kernel allows for one argument."""
_READ_CHUNK = 3 << 18

_IS_DIRECTORY, _MISSING, _DENIED, _NOT_REGULAR = 91, 92, 93, 94

RunScript = Callable[[str], Awaitable[tuple[int, str]]]
"""Runs a bash text outside the session and gives its exit code and stdout."""


@runtime_checkable
class BinaryFiles(Protocol):
    """What a runtime may offer beside SWE-ReX's interface: bytes in one step. Errors are OSErrors."""

    async def read_bytes(self, path: str) -> bytes:
        """The bytes of a regular file."""
        ...

    async def write_bytes(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write exactly `data`, parents made; `mode` None leaves the permissions."""
        ...

    async def write_tree(self, target: str, archive: bytes) -> None:
        """Unpack a tar archive at `target`; file modes and links are kept, owners are not."""
        ...


async def read_in_chunks(run: RunScript, path: str) -> bytes:
    """The bytes of `path`, base64 over `run`. Raises FileNotFoundError, IsADirectoryError, PermissionError, OSError."""
    quoted = shlex.quote(path)
    check = (
        f"if [ -d {quoted} ]; then exit {_IS_DIRECTORY}; elif [ ! -e {quoted} ]; then exit {_MISSING}; "
        f"elif [ ! -f {quoted} ]; then exit {_NOT_REGULAR}; elif [ ! -r {quoted} ]; then exit {_DENIED}; fi; "
    )
    parts: list[bytes] = []
    while True:
        block = f"dd if={quoted} bs={_READ_CHUNK} skip={len(parts)} count=1 2>/dev/null | base64"
        code, output = await run(check + block)
        _raise_for(code, path, output)
        parts.append(base64.b64decode(output))
        if len(parts[-1]) < _READ_CHUNK:
            return b"".join(parts)


async def write_in_chunks(run: RunScript, path: str, data: bytes, *, mode: int | None) -> None:
    """Write `data` to `path` as `open(path, "wb")` would, parents made. Raises OSError."""
    staged = f"/tmp/.uni-agent-{secrets.token_hex(8)}"  # noqa: S108 - a random name in the sandbox
    parent, quoted = shlex.quote(path.rpartition("/")[0] or "/"), shlex.quote(path)
    chunks = [data[i : i + _WRITE_CHUNK] for i in range(0, len(data), _WRITE_CHUNK)]
    if len(chunks) > 1:
        for chunk in chunks:
            code, output = await run(f"printf %s {_encoded(chunk)} | base64 -d >> {staged}")
            _raise_for(code, staged, output)
        source = f"cat {staged} > {quoted}; code=$?; rm -f {staged}"
    else:
        source = f"printf %s {_encoded(data)} | base64 -d > {quoted}; code=$?"
    change = f" && chmod {mode:o} {quoted}" if mode is not None else ""
    code, output = await run(
        f"if [ -d {quoted} ]; then exit {_IS_DIRECTORY}; fi; mkdir -p {parent} || exit 1; "
        f"{source}; (exit $code){change}"
    )
    _raise_for(code, path, output)


async def unpack(run: RunScript, target: str, archive: bytes) -> None:
    """Unpack the tar `archive` at `target`. Raises OSError with what tar said."""
    staged = f"/tmp/.uni-agent-{secrets.token_hex(8)}.tar"  # noqa: S108 - a random name in the sandbox
    await write_in_chunks(run, staged, archive, mode=None)
    code, output = await run(
        f"mkdir -p {shlex.quote(target)} && tar -xpf {staged} --no-same-owner -C {shlex.quote(target)}; "
        f"code=$?; rm -f {staged}; exit $code"
    )
    _raise_for(code, target, output)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode() or "''"


def _raise_for(code: int, path: str, output: str) -> None:
    if code == 0:
        return
    if code == _IS_DIRECTORY:
        raise IsADirectoryError(21, "Is a directory", path)
    if code == _MISSING:
        raise FileNotFoundError(2, "No such file or directory", path)
    if code == _DENIED or "permission denied" in output.lower():
        raise PermissionError(13, "Permission denied", path)
    if code == _NOT_REGULAR:
        raise OSError(22, "Not a regular file", path)
    raise OSError(5, f"exit code {code}: {output.strip()[-500:]}", path)
