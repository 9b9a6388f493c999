"""Folders as deterministic tar archives."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from uni_agent.errors import DataError

# Compiled leftovers of a run on this side: they would make the archive depend on who tested the folder last.
LEFT_OUT = frozenset({".git", "__pycache__"})
_MTIME = 1_577_836_800  # 2020-01-01: fixed, and late enough for tools that refuse 1970 (zip)


def entries(folder: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Every entry below `folder` as (relative, local) in byte order of the names, folders before what they hold."""
    try:
        names = sorted((path.name for path in folder.iterdir()), key=os.fsencode)
    except OSError as error:
        raise DataError(f"{folder}: cannot be read: {error.strerror or error}") from error
    for name in names:
        if name in LEFT_OUT:
            continue
        local = folder / name
        yield PurePosixPath(name), local
        if local.is_dir() and not local.is_symlink():
            for inner, path in entries(local):
                yield PurePosixPath(name) / inner, path


def pack(folder: Path) -> bytes:
    """`folder`'s content as a tar archive: same content, same bytes. Without `.git` and `__pycache__`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for relative, local in entries(folder):
            _add(archive, str(relative), local)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, local: Path) -> None:
    status = local.lstat()
    info = tarfile.TarInfo(name)
    info.mtime = _MTIME
    info.mode = 0o755 if status.st_mode & 0o111 else 0o644
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(local.readlink()), 0o777
        archive.addfile(info)
    elif stat.S_ISDIR(status.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(info)
    elif stat.S_ISREG(status.st_mode):
        data = local.read_bytes()
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    else:
        raise DataError(f"{local}: neither a file, a folder nor a link; a task's repository cannot hold it")


def pick(archive: bytes, paths: Iterable[str]) -> bytes:
    """The members of a tar archive that are one of `paths` or lie below one; an empty archive when none does."""
    wanted = [PurePosixPath(path) for path in paths]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as source, tarfile.open(fileobj=buffer, mode="w") as target:
        for member in source:
            name = PurePosixPath(member.name)
            if any(name == path or path in name.parents for path in wanted):
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    return buffer.getvalue()
