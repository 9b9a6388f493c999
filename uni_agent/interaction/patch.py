"""The agent's change as a patch, taken in a way that nothing in the sandbox's git settings can bend.

Git runs over the work tree with a repository folder of its own: the agent's `.git` only lends its objects. So no hook,
filter, external diff, text conversion, file monitor, exclude file, replace reference or index flag of the agent's
making takes part, and neither its index nor its objects are touched.
"""

from __future__ import annotations

import logging
import shlex

from uni_agent.data.base_tree import repo_payload
from uni_agent.deployment.sandbox import CommandResult, Sandbox
from uni_agent.errors import RewardError, SandboxError
from uni_agent.types import Task

log = logging.getLogger(__name__)

MAX_PATCH_BYTES = 64 * 1024 * 1024
"""A patch past this many bytes is refused."""

_NO_REPOSITORY, _NO_BASE = 93, 94
_MARK = "UNI-AGENT-SNAPSHOT"

_START = """\
set -u
exec 2>&1
for name in $(env | sed -n 's/^\\(GIT_[A-Z0-9_]*\\)=.*/\\1/p'); do unset "$name"; done
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0 LC_ALL=C
command -v git >/dev/null || { echo 'git is not installed in the sandbox'; exit 127; }
top=$PWD
while [ ! -e "$top/.git" ] && [ "$top" != / ]; do top=$(dirname "$top"); done
store=
if [ -d "$top/.git" ]; then store=$top/.git; gitdir=$store
elif [ -f "$top/.git" ]; then
  gitdir=$(cd "$top" && git rev-parse --absolute-git-dir) &&
    store=$(cd "$top" && cd "$(git rev-parse --git-common-dir)" && pwd)
fi
[ -n "$store" ] || { [ -n "$objects" ] || exit NO_REPOSITORY; top=$PWD; gitdir=; }
"""

# `$objects`: another folder of objects to look in, or "". `$base`: commit or tree, "" for the agent's HEAD.
_OWN_REPOSITORY = """\
scratch=$(mktemp -d) || exit 1
trap 'code=$?; [ "$code" = 0 ] || rm -rf "$scratch"' EXIT
if [ -z "$base" ]; then
  base=$(GIT_DIR=$gitdir git rev-parse --verify -q 'HEAD^{commit}') || exit NO_REPOSITORY
fi
export HOME=$scratch XDG_CONFIG_HOME=$scratch
format=; [ ${#base} != 64 ] || format=--object-format=sha256
git init -q --bare --template= $format "$scratch/git" || exit 1
mkdir -p "$scratch/git/info" "$scratch/git/objects/info"
{ [ -z "$store" ] || printf '%s\\n' "$store/objects"; [ -z "$objects" ] || printf '%s\\n' "$objects"; } \\
  > "$scratch/git/objects/info/alternates"
[ -z "$store" ] || [ ! -f "$store/shallow" ] || cp "$store/shallow" "$scratch/git/shallow"
export GIT_DIR=$scratch/git GIT_WORK_TREE=$top GIT_INDEX_FILE=$scratch/index
git config core.bare false
git config core.autocrlf false
git config core.fileMode true
git config core.excludesFile /dev/null
git config advice.addEmbeddedRepo false
git cat-file -e "$base^{tree}" 2>/dev/null || exit NO_BASE
"""

# Where the base has no .gitattributes, bytes are taken as they are: what the agent adds to that file changes nothing.
# Where it has some, its line-ending rules hold (blobs and work tree differ by design); filters never do.
_STAGE = """\
cd "$top" || exit 1
# Repositories that the agent made inside this one: their files are part of the change, a link to nowhere is not.
nested=() apart=()
while IFS= read -r -d '' path; do
  path=${path#./}; path=${path%/.git}
  [ -z "$(git ls-tree "$base" -- "$path")" ] && ! git check-ignore -q -- "$path" || continue
  nested+=("$path") apart+=(":(top,exclude,literal)$path")
done < <(find . -mindepth 2 -name .git -prune -print0)
exact='* -text !eol !filter !ident !working-tree-encoding'
stage() {
  printf '%s\\n' "$1" > "$GIT_DIR/info/attributes"
  git read-tree "$base" && git add -A "${@:2}" -- . ${apart[@]+"${apart[@]}"}
}
if git ls-tree -r -z --name-only "$base" | tr '\\0' '\\n' | grep -qE '(^|/)\\.gitattributes$'; then
  stage '* !filter' || stage "$exact" || stage "$exact" --ignore-errors || echo 'some files could not be read'
else
  stage "$exact" || stage "$exact" --ignore-errors || echo 'some files could not be read'
fi
# Ignored files that the agent tracks on purpose (`git add -f`).
if [ -n "$gitdir" ] && [ -f "$gitdir/index" ]; then
  GIT_INDEX_FILE=$gitdir/index git ls-files -z -i -c --exclude-standard 2>/dev/null |
    git update-index --add --remove -z --stdin || echo 'tracked ignored files could not be read'
fi
for path in ${nested[@]+"${nested[@]}"}; do
  GIT_WORK_TREE=$top/$path GIT_INDEX_FILE=$scratch/none git ls-files -z -o --exclude-standard |
    while IFS= read -r -d '' inner; do case $inner in */) ;; *) printf '%s\\0' "$path/$inner" ;; esac; done |
    git update-index --add -z --stdin || echo "the files of $path could not be read"
done
"""

_DIFF = """\
git diff --cached --binary --full-index --no-ext-diff --no-textconv --no-color --no-renames \\
  --src-prefix=a/ --dst-prefix=b/ --submodule=short "$base" -- > "$scratch/patch" || exit 1
printf '\\nMARK %s %s\\n' "$(wc -c < "$scratch/patch" | tr -d ' ')" "$scratch"
"""

# The commit id of HEAD when the work tree is as HEAD says; else of a commit that holds the work tree as it is.
_KEEP = """\
export GIT_OBJECT_DIRECTORY=$store/objects
"""
_BASE = """\
tree=$(git write-tree) || exit 1
if [ "$tree" != "$(git rev-parse "$base^{tree}")" ]; then
  export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE='2020-01-01T00:00:00Z'
  export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE='2020-01-01T00:00:00Z'
  base=$(git commit-tree -m base -p "$base" "$tree") || exit 1
  GIT_DIR=$gitdir git update-ref refs/uni-agent/base "$base" || exit 1
fi
rm -rf "$scratch"
printf '\\nMARK %s -\\n' "$base"
"""


def _script(*parts: str, base: str, objects: str) -> str:
    text = "".join(parts).replace("NO_REPOSITORY", str(_NO_REPOSITORY)).replace("NO_BASE", str(_NO_BASE))
    return f"base={shlex.quote(base)}\nobjects={shlex.quote(objects)}\n" + text.replace("MARK", _MARK)


async def base_commit(sandbox: Sandbox, *, timeout: float = 300.0) -> str | None:
    """What the agent's change is measured against; call it after `prepare`, before the agent starts.

    HEAD's commit id when nothing differs from it; otherwise the id of a commit, kept by `refs/uni-agent/base`, that
    also holds the task's files and what setup changed (ignored files left out). None when the working directory is in
    no git repository. Raises SandboxError when git fails.
    """
    script = _script(_START, _OWN_REPOSITORY, _KEEP, _STAGE, _BASE, base="", objects="")
    result = await sandbox.execute(script, timeout=timeout)
    if result.exit_code == _NO_REPOSITORY:
        return None
    return _marked(result, "reading the base commit")[0]


async def snapshot_patch(
    sandbox: Sandbox,
    base: str,
    *,
    task: Task | None = None,
    timeout: float = 300.0,
    max_bytes: int = MAX_PATCH_BYTES,
) -> bytes:
    """Everything that changed since `base`, byte for byte as `git diff --binary` writes it; b"" for no change.

    Holds new files, committed or not, except ignored ones, and never depends on the agent's git settings. With `task`,
    a repository that the agent destroyed is made again from the task, so the patch can still be had. Raises
    SandboxError when git fails or the base is gone, RewardError for a patch of more than `max_bytes`.
    """
    result = await _snapshot(sandbox, base, "", timeout)
    if result.exit_code in (_NO_REPOSITORY, _NO_BASE) and task is not None and task.repo is not None:
        result = await _snapshot_with_task(sandbox, base, task, timeout)
    size, scratch = _marked(result, "taking the agent's patch")
    try:
        if int(size) > max_bytes:
            raise RewardError(f"the agent's patch has {size} bytes, more than {max_bytes}")
        if notes := result.output.partition(f"\n{_MARK} ")[0].strip():
            log.warning("the agent's patch may lack files: %s", notes[-500:])
        return await sandbox.read_bytes(f"{scratch}/patch", timeout=timeout)
    finally:
        await sandbox.execute(["rm", "-rf", "--", scratch], timeout=60.0)


async def _snapshot(sandbox: Sandbox, base: str, objects: str, timeout: float) -> CommandResult:
    script = _script(_START, _OWN_REPOSITORY, _STAGE, _DIFF, base=base, objects=objects)
    return await sandbox.execute(script, timeout=timeout)


async def _snapshot_with_task(sandbox: Sandbox, base: str, task: Task, timeout: float) -> CommandResult:
    import asyncio

    from uni_agent.interaction.prepare import place_repo

    assert task.repo is not None  # noqa: S101 - the caller's condition
    payload = await asyncio.to_thread(repo_payload, task.repo, task.base_dir)
    made = await sandbox.execute("mktemp -d", timeout=60.0)
    folder = made.output.strip()
    if made.exit_code or not folder.startswith("/"):
        raise SandboxError(f"cannot make a folder in the sandbox: {made.output[-500:]}")
    try:
        await place_repo(sandbox, payload, folder)
        return await _snapshot(sandbox, base, f"{folder}/.git/objects", timeout)
    finally:
        await sandbox.execute(["rm", "-rf", "--", folder], timeout=60.0)


async def apply_patch(sandbox: Sandbox, patch: bytes, *, timeout: float = 300.0) -> None:
    """Apply what `snapshot_patch` gave to a freshly prepared sandbox. Raises SandboxError when it does not apply."""
    if not patch:
        return
    name = (await sandbox.execute("mktemp", timeout=60.0)).output.strip()
    try:
        await sandbox.write_bytes(name, patch, timeout=timeout)
        command = ["git", "-c", "safe.directory=*", "apply", "--binary", "--whitespace=nowarn", name]
        result = await sandbox.execute(command, timeout=timeout)
    finally:
        await sandbox.execute(["rm", "-f", "--", name], timeout=60.0)
    if result.exit_code:
        raise SandboxError(f"the agent's patch does not apply to a fresh copy: {result.output.strip()[-2000:]}")


def _marked(result: CommandResult, what: str) -> tuple[str, str]:
    if result.timed_out:
        raise SandboxError(f"{what} ran past its time")
    if result.exit_code == _NO_REPOSITORY:
        raise SandboxError(f"{what}: the working directory is in no git repository")
    if result.exit_code == _NO_BASE:
        raise SandboxError(f"{what}: the base commit is gone from the repository")
    # The last marker counts: what git printed before it names files of the agent's making.
    fields = result.output.rpartition(f"\n{_MARK} ")[2].partition("\n")[0].split(" ", 1)
    if result.exit_code or len(fields) != 2:
        raise SandboxError(f"{what} failed with exit code {result.exit_code}: {result.output.strip()[-2000:]}")
    return fields[0], fields[1]
