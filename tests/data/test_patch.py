"""The agent's patch: taken from a hostile repository, it applies to a fresh copy with an equal tree (RWD-11)."""

# ruff: noqa: E501 - one shell line each

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from uni_agent.errors import RewardError, SandboxError
from uni_agent.interaction.prepare import apply_patch, base_commit, prepare, snapshot_patch
from uni_agent.types import Repo, Task

pytestmark = pytest.mark.filterwarnings("error")

PNG = bytes(range(256)) * 3


@pytest.fixture
def task(tmp_path: Path) -> Task:
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / ".gitignore").write_text("*.log\nbuild/\n")
    (source / "pkg" / "code.py").write_text("a = 1\nb = 2\nc = 3\n \n")
    (source / "crlf.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    (source / "image.png").write_bytes(PNG)
    (source / "run.sh").write_text("echo hi\n")
    (source / "gone.txt").write_text("going\n")
    return Task(id="t", prompt="p", repo=Repo(path="source"), base_dir=str(tmp_path))


def tree(folder: Path, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if ".git" in path.relative_to(folder).parts or path.suffix == ".log" or name.startswith(without or "\0"):
            continue
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()))
        elif path.is_file():
            found[name] = (bool(path.stat().st_mode & 0o100), path.read_bytes())
    return found


CHANGES = {
    "untracked file": "printf 'new\\n' > pkg/new.py",
    "agent committed": "echo 'a = 9' > pkg/code.py && printf x > n.txt && git add -A && git commit -qm work && echo y >> n.txt",
    "trailing space context": "sed -i 's/b = 2/b = 20/' pkg/code.py",
    "no final newline": "printf 'a = 1\\nb = 5' > pkg/code.py; printf 'no newline' > other.txt",
    "binary changed": "printf '\\001\\000\\377\\n' >> image.png; printf '\\000\\001' > new.bin",
    "crlf": "printf 'one\\r\\n2\\r\\nthree\\r\\n' > crlf.txt; printf 'new\\r\\n' > new-crlf.txt",
    "mode": "chmod +x run.sh",
    "name with space and é": "mkdir 'a dir'; echo 1 > 'a dir/naïve é.txt'; printf 2 > $'tab\\tquote\"\\n.txt'",
    "deleted and moved": "rm gone.txt && git mv pkg/code.py pkg/moved.py && git commit -qm mv",
    "symlink": "ln -s pkg/code.py link && rm crlf.txt && ln -s nowhere crlf.txt",
    "ignored but tracked by the agent": "mkdir build && echo 1 > build/out.txt && git add -f build && git commit -qm f",
    "repository inside": "mkdir sub && cd sub && git init -q && echo 1 > in.txt && git add . && git -c user.name=a -c user.email=a@b commit -qm s",
    "repository inside without commit": "mkdir sub && cd sub && git init -q && echo 1 > in.txt",
    "repository in a repository inside": "git init -q s && cd s && echo 1 > a && git init -q t && echo 2 > 't/b c'",
    "file becomes folder": "rm gone.txt && mkdir gone.txt && echo 1 > gone.txt/inner",
    "history rewritten": "git checkout -q --orphan other && git commit -qam o && git branch -D main -q && echo 1 > z",
    "nothing": "true",
    "empty file": ": > empty.txt",
}
HOSTILE = {
    "external diff": "git config diff.external /bin/true; echo z >> pkg/code.py",
    "textconv": "printf '* diff=x\\n' > .gitattributes; git config diff.x.textconv 'echo forged #'; echo z >> pkg/code.py",
    "clean filter": "printf '* filter=x\\n' > .gitattributes; git config filter.x.clean 'echo forged'; echo z >> pkg/code.py",
    "required filter": "printf '* filter=x\\n' > .gitattributes; git config filter.x.required true; echo z >> pkg/code.py",
    "normalising attributes": "printf '* text=auto eol=lf\\n' > .gitattributes; printf 'q\\r\\n' > new.txt",
    "bad encoding attribute": "printf '* working-tree-encoding=UTF-16\\n' > .gitattributes; echo z >> pkg/code.py",
    "autocrlf": "git config core.autocrlf true; printf 'q\\r\\n' > new.txt",
    "fsmonitor": "printf '#!/bin/sh\\nexit 0\\n' > .git/m; chmod +x .git/m; git config core.fsmonitor .git/m; echo 1 > n",
    "exclude file": "echo '*' > .git/info/exclude; echo 1 > seen.txt",
    "skip-worktree": "git update-index --skip-worktree pkg/code.py --assume-unchanged crlf.txt; echo z > pkg/code.py; echo q > crlf.txt",
    "file mode off": "git config core.fileMode false; chmod +x run.sh",
    "replace": "git replace -f $(git rev-parse HEAD:pkg/code.py) $(echo other | git hash-object -w --stdin); echo 1 > n",
    "index broken": "echo junk > .git/index; echo 1 > n",
    "config broken": "echo '[[[' > .git/config; echo 1 > n",
    "environment": "export GIT_EXTERNAL_DIFF=/bin/true; echo 1 > n",
    "worktree elsewhere": "git config core.worktree /nonexistent; echo 1 > n",
}


@pytest.mark.parametrize("change", [*CHANGES.values(), *HOSTILE.values()], ids=[*CHANGES, *HOSTILE])
async def test_rwd_11_patch_applies_to_a_fresh_copy_with_an_equal_tree(
    make_sandbox: Callable[[str], Awaitable[Any]], task: Task, change: str
) -> None:
    agent, fresh = await make_sandbox("agent"), await make_sandbox("fresh")
    await prepare(agent, task)
    base = await base_commit(agent)
    assert base is not None
    done = await agent.execute(change, timeout=30)
    assert done.exit_code == 0, done.output
    index = (agent.folder / ".git/index").read_bytes()
    patch = await snapshot_patch(agent, base)
    assert (agent.folder / ".git/index").read_bytes() == index, "the agent's index was touched"
    await prepare(fresh, task)
    assert await base_commit(fresh) == base
    await apply_patch(fresh, patch)
    assert tree(fresh.folder) == tree(agent.folder)
    assert (patch == b"") == (change == "true")
    assert patch == await snapshot_patch(agent, base), "a second look gives other bytes"
    assert patch[-1:] in (b"\n", b"")


async def test_rwd_11_patch_is_what_git_diff_binary_writes(sandbox: Any, task: Task) -> None:
    await prepare(sandbox, task)
    base = await base_commit(sandbox)
    assert base
    await sandbox.execute("sed -i s/2/3/ pkg/code.py; printf new > n.txt; printf '\\000' >> image.png", timeout=30)
    await sandbox.execute(
        "cp -r . ../ref && cd ../ref && git add -A && git diff --binary --full-index HEAD > ../p", timeout=30
    )
    assert await snapshot_patch(sandbox, base) == (sandbox.folder.parent / "p").read_bytes()


async def test_rwd_11_dirty_submodule_does_not_spoil_the_rest(
    make_sandbox: Callable[[str], Awaitable[Any]], tmp_path: Path
) -> None:
    maker = await make_sandbox("maker")
    script = """
    export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
    git init -q inner && (cd inner && echo 1 > f && git add . && git commit -qm i)
    git init -q outer && cd outer && git -c protocol.file.allow=always submodule --quiet add "$PWD/../inner" sub
    echo 1 > top.txt && git add . && git commit -qm o"""
    assert (await maker.execute(script, timeout=30)).exit_code == 0
    task = Task(id="t", prompt="p", repo=Repo(path=str(maker.folder / "outer")))
    agent, fresh = await make_sandbox("agent"), await make_sandbox("fresh")
    await prepare(agent, task)
    base = await base_commit(agent)
    assert base
    change = f"rmdir sub; git clone -q {maker.folder}/inner sub && echo dirty >> sub/f && echo 2 > top.txt"
    assert (await agent.execute(change, timeout=30)).exit_code == 0
    await prepare(fresh, task)
    patch = await snapshot_patch(agent, base)
    assert b"-dirty" not in patch
    await apply_patch(fresh, patch)
    assert (fresh.folder / "top.txt").read_text() == "2\n"


async def test_line_ending_rules_of_the_base_hold(
    make_sandbox: Callable[[str], Awaitable[Any]], tmp_path: Path
) -> None:
    source = tmp_path / "eol"
    source.mkdir()
    (source / ".gitattributes").write_text("*.txt text eol=crlf\n")
    (source / "a.txt").write_bytes(b"1\r\n2\r\n")
    task = Task(id="t", prompt="p", repo=Repo(path="eol"), base_dir=str(tmp_path))
    agent, fresh = await make_sandbox("agent"), await make_sandbox("fresh")
    await prepare(agent, task)
    base = await base_commit(agent)
    assert base and await snapshot_patch(agent, base) == b""
    (agent.folder / "a.txt").write_bytes(b"1\r\n3\r\n")
    await prepare(fresh, task)
    await apply_patch(fresh, await snapshot_patch(agent, base))
    assert (fresh.folder / "a.txt").read_bytes() == b"1\r\n3\r\n"


async def test_files_and_setup_belong_to_the_base(make_sandbox: Callable[[str], Awaitable[Any]], task: Task) -> None:
    full = task.model_copy(update={"files": {"NOTE.md": "read me\n"}, "setup": ["echo set >> run.sh"]})
    agent, fresh = await make_sandbox("agent"), await make_sandbox("fresh")
    await prepare(agent, full)
    base = await base_commit(agent)
    assert base and await snapshot_patch(agent, base) == b""
    await agent.execute("git gc -q --prune=now; git reflog expire --all --expire=now; echo more >> NOTE.md", timeout=60)
    await prepare(fresh, full)
    await apply_patch(fresh, await snapshot_patch(agent, base))
    assert (fresh.folder / "NOTE.md").read_text() == "read me\nmore\n"


@pytest.mark.parametrize("damage", ["rm -rf .git", "rm -rf .git/objects", "rm -rf .git && git init -q"])
async def test_a_destroyed_repository_is_made_again_from_the_task(sandbox: Any, task: Task, damage: str) -> None:
    await prepare(sandbox, task)
    base = await base_commit(sandbox)
    assert base
    await sandbox.execute(f"echo z >> pkg/code.py; {damage}", timeout=30)
    with pytest.raises(SandboxError):
        await snapshot_patch(sandbox, base)
    assert b"\n+z\n" in await snapshot_patch(sandbox, base, task=task)


async def test_no_repository_means_no_base(sandbox: Any) -> None:
    assert await base_commit(sandbox) is None


async def test_a_patch_past_the_limit_is_an_error_not_a_cut(sandbox: Any, task: Task) -> None:
    await prepare(sandbox, task)
    base = await base_commit(sandbox)
    assert base
    await sandbox.execute("head -c 100000 /dev/urandom > big", timeout=30)
    with pytest.raises(RewardError, match="more than 1000"):
        await snapshot_patch(sandbox, base, max_bytes=1000)


async def test_nothing_is_left_in_the_temporary_folder(
    sandbox: Any, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    await prepare(sandbox, task)
    base = await base_commit(sandbox)
    assert base
    await sandbox.execute("echo 1 > n", timeout=30)
    patch = await snapshot_patch(sandbox, base)
    await sandbox.execute("rm n", timeout=30)
    await apply_patch(sandbox, patch)
    assert list((tmp_path / "tmp").iterdir()) == []
