"""A sandbox made ready for a task: repository, then files, then setup commands."""

from __future__ import annotations

import asyncio
import shlex

from uni_agent.data.base_tree import RepoPayload, contents, repo_payload
from uni_agent.data.git import Bundle
from uni_agent.deployment.sandbox import CommandResult, Sandbox
from uni_agent.errors import SandboxError
from uni_agent.interaction.patch import apply_patch, base_commit, snapshot_patch
from uni_agent.types import Task

__all__ = ["apply_patch", "base_commit", "place_repo", "prepare", "snapshot_patch"]

REPO_TIMEOUT = 300.0
"""Seconds for placing a repository."""

# The user's and the machine's git settings stay out, so that the same task gives the same commit everywhere.
_QUIET = """\
set -eu
exec 2>&1
command -v git >/dev/null || { echo 'git is not installed in the sandbox'; exit 127; }
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 LC_ALL=C
export GIT_CONFIG_COUNT=2 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=core.logAllRefUpdates GIT_CONFIG_VALUE_1=false
export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE='2020-01-01T00:00:00Z'
export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
"""
_INIT = """\
rm -rf .git
git init -q --template= {options} .
git symbolic-ref HEAD refs/heads/main
git config core.autocrlf false
git config core.fileMode true
git config gc.auto 0
git config user.name agent
git config user.email agent@localhost
mkdir -p .git/info
"""
# Everything of a plain folder belongs to the base, also what its own .gitignore names.
_COMMIT = """\
git add -A -f .
git commit -q --allow-empty --no-verify --no-gpg-sign -m base
"""
# Nothing may be left that says where the repository came from or what came later.
_FETCH = """\
git fetch -q --no-tags .git/base.bundle refs/heads/main
git reset -q --hard FETCH_HEAD
rm -f .git/base.bundle .git/FETCH_HEAD .git/ORIG_HEAD
"""


async def prepare(sandbox: Sandbox, task: Task) -> None:
    """Put the task's repository, files and the results of its setup commands into the sandbox.

    Needs no open shell session. Raises DataError for what the task names and is not there, SandboxError (with the end
    of the output) when git or a setup command fails or runs past its time, SandboxLostError when the sandbox is gone.
    """
    if sandbox.workdir:  # an image need not have it, and nothing can run in a folder that is not there
        await sandbox.execute(["mkdir", "-p", "--", sandbox.workdir], timeout=60.0, cwd="/")
    if task.repo is not None:
        payload = await asyncio.to_thread(repo_payload, task.repo, task.base_dir)
        await place_repo(sandbox, payload)
    for path, (data, mode) in (await asyncio.to_thread(contents, task.files, task.base_dir)).items():
        try:
            await sandbox.write_bytes(path, data, mode=mode)
        except OSError as error:
            raise SandboxError(f"cannot write the task's file {path!r}: {error}") from error
    if commands := [task.setup] if isinstance(task.setup, str) else task.setup:
        result = await sandbox.execute(_setup_script(commands), timeout=task.setup_timeout, env=dict(task.env))
        if result.timed_out:
            raise SandboxError(f"setup ran past its {task.setup_timeout:g} s{_tail(result)}")
        if result.exit_code:
            raise SandboxError(f"setup ended with exit code {result.exit_code}{_tail(result)}")


async def place_repo(sandbox: Sandbox, payload: RepoPayload, target: str = ".") -> None:
    """Make `target` (a folder, relative to the working directory) a git repository at the payload's base commit.

    The base commit of an archive depends on nothing but its content. Raises SandboxError.
    """
    if payload.bundle is None:
        await sandbox.write_tree(_at(sandbox, target), payload.archive or b"", timeout=REPO_TIMEOUT)
        await _git(sandbox, target, _INIT.format(options="") + _COMMIT)
        return
    await _git(sandbox, target, _INIT.format(options=_format(payload.bundle)))
    prefix = "" if target == "." else f"{target}/"
    if payload.bundle.shallow:
        await sandbox.write_bytes(f"{prefix}.git/shallow", payload.bundle.shallow.encode())
    await sandbox.write_bytes(f"{prefix}.git/base.bundle", payload.bundle.data, timeout=REPO_TIMEOUT)
    await _git(sandbox, target, _FETCH)


def _format(bundle: Bundle) -> str:
    return "--object-format=sha256" if len(bundle.commit) == 64 else ""


def _at(sandbox: Sandbox, target: str) -> str:
    return sandbox.workdir or "." if target == "." else target


async def _git(sandbox: Sandbox, target: str, script: str) -> None:
    enter = f"mkdir -p {shlex.quote(target)}\ncd {shlex.quote(target)}\n"
    result = await sandbox.execute(f"{_QUIET}{enter}{script}", timeout=REPO_TIMEOUT)
    if result.timed_out or result.exit_code:
        ending = f"ran past {REPO_TIMEOUT:g} s" if result.timed_out else f"failed with exit code {result.exit_code}"
        raise SandboxError(f"placing the task's repository {ending}{_tail(result)}")


def _setup_script(commands: list[str]) -> str:
    # One shell for all of them: a `cd` or an `export` of the first counts for the second, as in a terminal.
    lines: list[str] = []
    for number, command in enumerate(commands, start=1):
        failed = f'echo "setup command {number} of {len(commands)} failed" >&2; exit $__setup_code'
        lines += [command, f"__setup_code=$?; [ $__setup_code = 0 ] || {{ {failed}; }}"]
    return "\n".join(lines) + "\n"


def _tail(result: CommandResult, limit: int = 2000) -> str:
    text = result.output.strip()
    return f": …{text[-limit:]}" if len(text) > limit else f": {text}" if text else ""
