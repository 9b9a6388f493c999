"""Git repositories of tasks, cut to the history that an agent may see."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from uni_agent.errors import DataError, SandboxError

FETCH_TIMEOUT = 600.0
"""Seconds for one git command on this side."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """A `git bundle` with one branch, `main`, whose tip is `commit`.

    `shallow` holds the lines of `.git/shallow` that go with it, "" for full history.
    """

    data: bytes
    commit: str
    shallow: str = ""


def is_git_source(path: Path) -> bool:
    """Whether `path` itself (not a parent) is a work tree with `.git`, a bare repository, or a bundle."""
    if path.is_file():
        with path.open("rb") as file:
            return file.read(12) == b"# v2 git bun" or path.suffix == ".bundle"
    return (path / ".git").exists() or ((path / "objects").is_dir() and (path / "HEAD").is_file())


def bundle_of(source: str, commit: str | None, *, local: bool) -> Bundle:
    """The history of `source` up to `commit` (default its HEAD), and nothing else: no later commit, tag or remote.

    Blocking. A bundle of a full commit id is kept in memory and made once. Raises DataError for a source or commit that
    is not there, SandboxError when a remote cannot be reached.
    """
    return _CACHE.get(source, commit, local=local)


def resolve_commit(source: Path, commit: str | None) -> str:
    """The full id of `commit` in a local git folder or bundle. Raises DataError."""
    with tempfile.TemporaryDirectory(prefix="uni-agent-git-") as scratch:
        return _fetched(Path(scratch), str(source), commit, local=True)[1]


def archive_of(source: str, commit: str | None, *, local: bool) -> bytes:
    """The files of `commit` as a tar archive, without a pax header of git's own. Blocking; raises as `bundle_of`."""
    bundle = bundle_of(source, commit, local=local)
    with tempfile.TemporaryDirectory(prefix="uni-agent-git-") as scratch:
        file = Path(scratch, "repo.bundle")
        file.write_bytes(bundle.data)
        git = _Git(Path(scratch), local=True)
        git("init", "-q", "--bare", _format(bundle.commit), "repo.git")
        if bundle.shallow:
            Path(scratch, "repo.git", "shallow").write_text(bundle.shallow)
        git("--git-dir=repo.git", "fetch", "-q", "--no-tags", str(file), "main")
        # Attributes must not leave files out (export-ignore) or rewrite them (export-subst): a tree has neither.
        Path(scratch, "repo.git", "info").mkdir(exist_ok=True)
        attributes = "* -export-ignore -export-subst -text -filter -ident\n"
        Path(scratch, "repo.git", "info", "attributes").write_text(attributes)
        return git("--git-dir=repo.git", "archive", "--format=tar", f"{bundle.commit}^{{tree}}")


class _Git:
    """Runs git in `folder`, never waiting for a person; `local` also ignores the user's settings."""

    def __init__(self, folder: Path, *, local: bool) -> None:
        self._folder = folder
        self._env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_") or not local}
        for key in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
            self._env.pop(key, None)
        self._env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C"}
        if local:
            # The owner of a task's repository is often another user; nothing of it is run.
            config = folder / "gitconfig"
            config.write_text("[safe]\n\tdirectory = *\n")
            self._env |= {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1"}

    def __call__(self, *arguments: str) -> bytes:
        """Stdout. Raises DataError with git's own words."""
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=FETCH_TIMEOUT,
                check=False,
            )
        except FileNotFoundError as error:
            raise DataError("tasks with a repository need `git` on this machine") from error
        except subprocess.TimeoutExpired as error:
            raise SandboxError(f"git {arguments[0]} ran past {FETCH_TIMEOUT:.0f} s") from error
        if done.returncode:
            raise DataError(done.stderr.decode("utf-8", "replace").strip() or f"git {arguments[0]} failed")
        return done.stdout


def _fetched(scratch: Path, source: str, commit: str | None, *, local: bool) -> tuple[_Git, str]:
    """A bare repository `scratch/repo.git` that holds `commit`, and the commit's full id."""
    git = _Git(scratch, local=local)
    git("init", "-q", "--bare", _format(commit or ""), "repo.git")
    bundle = local and Path(source).is_file()
    everything = "+refs/*:refs/source/*"
    if commit is None:
        attempts = [("HEAD", ("FETCH_HEAD",)), (everything, ())]
    else:
        by_name = (commit, f"source/heads/{commit}", f"source/tags/{commit}")
        # A server may refuse a bare commit id, and a bundle only knows its refs: then all refs, and the commit in them.
        attempts = (
            [(everything, by_name), ("HEAD", by_name)] if bundle else [(commit, ("FETCH_HEAD",)), (everything, by_name)]
        )
    reason: DataError | None = None
    for refspec, names in attempts:
        try:
            git("--git-dir=repo.git", "fetch", "-q", "--no-tags", "--update-shallow", "--", source, refspec)
            return git, _find(git, names)
        except DataError as error:
            reason = reason or error
    message = f"{source}: cannot get {commit or 'HEAD'}: {reason}"
    raise DataError(message) if local else SandboxError(message)


def _find(git: _Git, names: tuple[str, ...]) -> str:
    if not names:
        listed = git("--git-dir=repo.git", "for-each-ref", "--format=%(refname)").decode().split()
        if len(listed) != 1:
            raise DataError("it has several branches and no HEAD; set repo.commit")
        names = (listed[0],)
    for name in names:
        try:
            return git("--git-dir=repo.git", "rev-parse", "--verify", "-q", f"{name}^{{commit}}").decode().strip()
        except DataError:
            continue
    raise DataError("there is no such commit")


def _format(commit: str) -> str:
    return f"--object-format={'sha256' if len(commit) == 64 else 'sha1'}"


def _make_bundle(source: str, commit: str | None, *, local: bool) -> Bundle:
    with tempfile.TemporaryDirectory(prefix="uni-agent-git-") as name:
        scratch = Path(name)
        git, found = _fetched(scratch, source, commit, local=local)
        git("--git-dir=repo.git", "update-ref", "refs/heads/main", found)
        git("--git-dir=repo.git", "bundle", "create", "-q", str(scratch / "out.bundle"), "refs/heads/main")
        shallow = scratch / "repo.git" / "shallow"
        return Bundle(
            data=(scratch / "out.bundle").read_bytes(),
            commit=found,
            shallow=shallow.read_text() if shallow.exists() else "",
        )


class _BundleCache:
    """Bundles of full commit ids, which never change; least recently used ones go when they pass `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._making: dict[tuple[str, str], threading.Lock] = {}
        self._bundles: OrderedDict[tuple[str, str], Bundle] = OrderedDict()

    def get(self, source: str, commit: str | None, *, local: bool) -> Bundle:
        if commit is None or len(commit) not in (40, 64):
            return _make_bundle(source, commit, local=local)
        key = (source, commit)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:  # a hundred samples of one task start together: one of them fetches
            with self._lock:
                if key in self._bundles:
                    self._bundles.move_to_end(key)
                    return self._bundles[key]
            bundle = _make_bundle(source, commit, local=local)
            with self._lock:
                self._bundles[key] = bundle
                while len(self._bundles) > 1 and sum(len(b.data) for b in self._bundles.values()) > self._limit:
                    self._bundles.popitem(last=False)
            return bundle


_CACHE = _BundleCache(limit=512 * 1024 * 1024)
