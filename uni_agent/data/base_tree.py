"""What a task's working directory holds before the agent starts, taken from this side."""

from __future__ import annotations

import io
import tarfile
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from uni_agent.data.git import Bundle, archive_of, bundle_of, is_git_source
from uni_agent.data.paths import resolve
from uni_agent.data.tree import pack, pick
from uni_agent.errors import DataError
from uni_agent.types import Repo, Task, TaskFile


@dataclass(frozen=True, slots=True)
class RepoPayload:
    """A repository to place: either a `bundle`, or an `archive` of plain files that become the base commit."""

    bundle: Bundle | None = None
    archive: bytes | None = None


def repo_payload(repo: Repo, base_dir: str) -> RepoPayload:
    """The repository as bytes. Blocking. Raises DataError, or SandboxError for a remote that cannot be reached."""
    if repo.url is not None:
        return RepoPayload(bundle=bundle_of(repo.url, repo.commit, local=False))
    path = resolve(base_dir, repo.path or "")
    if is_git_source(path):
        return RepoPayload(bundle=bundle_of(str(path), repo.commit, local=True))
    return RepoPayload(archive=pack(path))


def base_files(task: Task, paths: list[str]) -> bytes:
    """A tar archive of `paths` (files or folders, relative to the working directory) as they were at the start.

    From the task's repository and its `files`, so nothing that an agent did can change it. Blocking; raises DataError.
    """
    archive = _repo_files(task)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as target:
        if archive is not None:
            with tarfile.open(fileobj=io.BytesIO(pick(archive, paths))) as source:
                for member in source:
                    target.addfile(member, source.extractfile(member) if member.isreg() else None)
        for name, source_file in task.files.items():
            path = PurePosixPath(name)
            if not path.is_absolute() and any(path.is_relative_to(wanted) for wanted in paths):
                data, mode = file_content(source_file, task.base_dir)
                info = tarfile.TarInfo(str(path))
                info.size, info.mode = len(data), mode
                target.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _repo_files(task: Task) -> bytes | None:
    if task.repo is None:
        return None
    if task.repo.url is not None:
        return archive_of(task.repo.url, task.repo.commit, local=False)
    path = resolve(task.base_dir, task.repo.path or "")
    return archive_of(str(path), task.repo.commit, local=True) if is_git_source(path) else pack(path)


def file_content(source: str | TaskFile, base_dir: str) -> tuple[bytes, int]:
    """The bytes and permission bits of one task file. Raises DataError."""
    if isinstance(source, str):
        return source.encode("utf-8", "surrogatepass"), 0o644
    if source.text is not None:
        return source.text.encode("utf-8", "surrogatepass"), source.mode
    if source.base64 is not None:
        try:
            return b64decode("".join(source.base64.split()), validate=True), source.mode
        except ValueError as error:
            raise DataError(f"base64 of a task file: {error}") from error
    path = resolve(base_dir, source.path or "")
    try:
        return path.read_bytes(), source.mode
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def contents(files: Mapping[str, str | TaskFile], base_dir: str) -> dict[str, tuple[bytes, int]]:
    """Target path → bytes and permission bits. Blocking; raises DataError."""
    return {name: file_content(source, base_dir) for name, source in files.items()}
