"""A new file in the place of an old one, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class NewFile:
    """The new file, open for reading and writing, and its size in bytes."""

    fd: int
    size: int


def replace_file(path: Path, lines: Iterable[bytes]) -> NewFile:
    """Write `lines`, sync them, and put them in the place of `path`. Call `sync_folder` once the new file is in use.

    A crash at any point leaves the old file or the new one. An error leaves the old one and no trace; the lines may
    come from it.
    """
    new = path.with_name(f"{path.name}.new")
    fd = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.writelines(lines)
        size = os.fstat(fd).st_size
        os.fsync(fd)
        new.replace(path)
    except BaseException:
        os.close(fd)
        with suppress(FileNotFoundError):
            new.unlink()
        raise
    return NewFile(fd, size)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
