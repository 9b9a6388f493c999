"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from uni_agent.errors import DataError, UniAgentError, boundary


@contextlib.contextmanager
def atomic_file(path: Path, error: type[UniAgentError] = DataError) -> Generator[BinaryIO]:
    """A file that appears under `path` whole when the block ends, or not at all. Raises `error` when it cannot."""
    with boundary(error, f"{path}: cannot be written"):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
