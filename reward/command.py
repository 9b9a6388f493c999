"""Grading by a command in the sandbox."""

from __future__ import annotations

import asyncio
import json
import math
import posixpath
import re
import secrets
from pathlib import Path, PurePosixPath
from typing import Any, cast

from uni_agent.data.base_tree import base_files, file_content
from uni_agent.deployment.sandbox import CommandResult, Sandbox
from uni_agent.errors import DataError, RewardError, SandboxError
from uni_agent.reward.base import AbstractRewardSpec, RewardContext
from uni_agent.reward.config import CommandRewardConfig, GradingFile, JsonScore, RegexScore
from uni_agent.types import RewardResult, Task, TaskFile

ANSWER_BYTES = 96 * 1024
"""Most bytes of the answer in the environment: Linux refuses a variable of 128 KiB."""
_OVERHEAD = 300.0  # seconds for what surrounds the command: restoring, uploading, reading the result


# For a repository that came with the image. Git runs with a folder of its own over the image's objects: hooks, filters,
# replace references and settings that the agent made take no part.
_CHECKOUT = """\
set -eu
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1
scratch=$(mktemp -d); trap 'rm -rf "$scratch"' EXIT
git init -q --bare --template= "$scratch/git"
mkdir -p "$scratch/git/objects/info"
printf '%s\\n' "$PWD/.git/objects" > "$scratch/git/objects/info/alternates"
export GIT_DIR=$scratch/git GIT_WORK_TREE=$PWD GIT_INDEX_FILE=$scratch/index
git config core.bare false
git cat-file -e "$UNI_AGENT_BASE^{tree}"
for path; do
  rm -rf -- "./$path"
  [ -z "$(git ls-tree "$UNI_AGENT_BASE" -- "$path")" ] || git checkout -q "$UNI_AGENT_BASE" -- ":(top,literal)$path"
done
"""


class CommandReward(AbstractRewardSpec):
    """Restores, uploads, runs, reads the score. See `CommandRewardConfig`."""

    def __init__(self, config: CommandRewardConfig) -> None:
        self.config = config
        self.timeout = config.timeout + _OVERHEAD

    async def compute_reward(self, context: RewardContext) -> RewardResult:
        """The verdict. Raises RewardError when the sandbox is lost or what grading needs cannot be had."""
        if context.sandbox is None:
            raise RewardError("a command needs a sandbox to run in")
        try:
            return await self._graded(context.sandbox, context)
        except (SandboxError, DataError) as error:
            raise RewardError(f"{type(error).__name__}: {error}") from error
        except OSError as error:
            raise RewardError(f"cannot write the grading files: {error}") from error

    async def _graded(self, sandbox: Sandbox, context: RewardContext) -> RewardResult:
        config, nonce = self.config, secrets.token_hex(16)
        await self._restore(sandbox, context.task)
        await self._upload(sandbox, context.task)
        if isinstance(config.score, JsonScore):
            await _shell(sandbox, ["rm", "-rf", "--", _json_path(config.score, config.cwd)])
        folder = await _scratch(sandbox)
        try:
            answer = context.result.answer.encode("utf-8", "backslashreplace")
            await sandbox.write_bytes(f"{folder}/answer", answer)
            result = await sandbox.execute(
                f"set -o pipefail\n{config.command}\n",
                timeout=config.timeout,
                cwd=_inside(sandbox, config.cwd),
                env={
                    **context.task.env,
                    **config.env,
                    "UNI_AGENT_ANSWER": _for_environment(answer),
                    "UNI_AGENT_ANSWER_FILE": f"{folder}/answer",
                    "UNI_AGENT_NONCE": nonce,
                },
            )
            return await self._verdict(sandbox, result, nonce)
        finally:
            await sandbox.execute(["rm", "-rf", "--", folder], timeout=60.0)

    async def _restore(self, sandbox: Sandbox, task: Task) -> None:
        if not (paths := self.config.restore):
            return
        # From this side, not from the sandbox's git: its objects, references and settings are the agent's to change.
        base = task.metadata.get("base_commit")
        if task.repo is None and not task.files:
            if not isinstance(base, str):
                raise RewardError("`restore` needs the task's repo or files, or metadata.base_commit")
            await _shell(sandbox, ["bash", "-c", _CHECKOUT, "restore", *paths], env={"UNI_AGENT_BASE": base})
            return
        archive = await asyncio.to_thread(base_files, task, paths)
        await _shell(sandbox, ["rm", "-rf", "--", *(f"./{path}" for path in paths)])
        await sandbox.write_tree(sandbox.workdir or ".", archive)

    async def _upload(self, sandbox: Sandbox, task: Task) -> None:
        for path, source in self.config.files.items():
            data, mode = await asyncio.to_thread(_content, source, task.base_dir)
            # A link or folder that the agent left at this place must not decide where the file goes.
            await _shell(sandbox, ["rm", "-rf", "--", path])
            await sandbox.write_bytes(path, data, mode=mode)

    async def _verdict(self, sandbox: Sandbox, result: CommandResult, nonce: str) -> RewardResult:
        config, log = self.config, bounded(result.output, self.config.log_bytes, result.omitted)
        if result.timed_out:
            if config.timeout_score is not None:
                return self._scored(config.timeout_score, log, 124)
            return RewardResult.failed(f"the command ran past {config.timeout:g} s", log)
        if result.exit_code in config.error_exit_codes:
            return RewardResult.failed(f"the command ended with exit code {result.exit_code}", log)
        if config.score == "exit_code":
            return self._scored(1.0 if result.exit_code == 0 else 0.0, log, result.exit_code)
        found = (
            _by_regex(config.score, result, nonce)
            if isinstance(config.score, RegexScore)
            else await _by_json(config.score, sandbox, config.cwd)
        )
        if isinstance(found, str):
            return RewardResult.failed(f"{found} (exit code {result.exit_code})", log)
        return self._scored(found * config.score.scale, log, result.exit_code)

    def _scored(self, score: float, log: str, exit_code: int) -> RewardResult:
        if not math.isfinite(score):
            return RewardResult.failed(f"the score {score} is no finite number", log)
        resolved = score >= self.config.resolved_at
        return RewardResult(score=score, resolved=resolved, breakdown={"exit_code": float(exit_code)}, log=log)


def _by_regex(score: RegexScore, result: CommandResult, nonce: str) -> float | str:
    pattern = re.compile(score.regex.replace("{nonce}", re.escape(nonce)), re.MULTILINE)
    last: re.Match[str] | None = None
    for last in pattern.finditer(result.output):  # noqa: B007 - the last one is what is wanted
        pass
    if last is None:
        cut = f"; {result.omitted} bytes of it were cut" if result.omitted else ""
        return f"the output holds nothing that matches {score.regex!r}{cut}"
    text = last.group(1) if pattern.groups else last.group()
    try:
        return float(text)
    except (TypeError, ValueError):
        return f"{text!r}, found by {score.regex!r}, is no number"


def _json_path(score: JsonScore, cwd: str | None) -> str:
    return str(PurePosixPath(cwd or "", score.json_file))


async def _by_json(score: JsonScore, sandbox: Sandbox, cwd: str | None) -> float | str:
    try:
        value: Any = json.loads(await sandbox.read_bytes(_json_path(score, cwd)))
    except OSError as error:
        return f"the command left no {score.json_file}: {type(error).__name__}"
    except (ValueError, RecursionError) as error:
        return f"{score.json_file} is not JSON: {error}"
    if isinstance(value, dict):
        for key in score.key.split("."):
            value = cast("dict[str, Any]", value).get(key) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{score.json_file} holds no number at {score.key!r}"
    return float(value)


def _content(source: str | GradingFile, base_dir: str) -> tuple[bytes, int]:
    if isinstance(source, str):
        return file_content(source, base_dir)
    path = None if source.path is None else str(Path(base_dir) / source.path)
    return file_content(TaskFile(text=source.text, base64=source.base64, path=path, mode=source.mode), base_dir)


def _inside(sandbox: Sandbox, cwd: str | None) -> str | None:
    return posixpath.join(sandbox.workdir, cwd) if cwd and sandbox.workdir else cwd


def _for_environment(answer: bytes) -> str:
    return answer[:ANSWER_BYTES].replace(b"\0", b"").decode("utf-8", "ignore")


async def _scratch(sandbox: Sandbox) -> str:
    folder = (await _shell(sandbox, ["mktemp", "-d"])).output.strip()
    if not folder.startswith("/"):
        raise RewardError(f"cannot make a folder for grading: {folder[-500:]}")
    return folder


async def _shell(sandbox: Sandbox, argv: list[str], env: dict[str, str] | None = None) -> CommandResult:
    result = await sandbox.execute(argv, timeout=60.0, env=env)
    if result.exit_code or result.timed_out:
        raise RewardError(f"`{argv[0]}` failed before grading: {result.output.strip()[-500:]}")
    return result


def bounded(text: str, limit: int, omitted: int = 0) -> str:
    """At most about `limit` bytes of `text`: its head and its tail, with a line that says how much is left out."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= limit:
        return data.decode("utf-8")
    half = limit // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[… {len(data) - 2 * half + omitted} bytes left out …]\n{tail}"
