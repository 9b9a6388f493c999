"""Preparation: repository, files, setup; and what must not come along (RWD-13)."""

import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from uni_agent.data import task_hash
from uni_agent.errors import DataError, SandboxError, SandboxLostError
from uni_agent.interaction.prepare import base_commit, prepare
from uni_agent.types import Repo, Task, TaskFile


def git(folder: Path, *arguments: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"]
    done = subprocess.run(["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def history(tmp_path: Path) -> tuple[Path, list[str]]:
    """A repository with three commits, a branch, a tag and a remote."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    commits: list[str] = []
    for number in (1, 2, 3):
        (folder / "code.py").write_text(f"version = {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", f"secret fix {number}")
        commits.append(git(folder, "rev-parse", "HEAD"))
    git(folder, "tag", "-a", "v3", "-m", "release")
    git(folder, "branch", "later")
    git(folder, "remote", "add", "origin", "https://example.invalid/x.git")
    return folder, commits


def forms(folder: Path, commits: list[str]) -> dict[str, Repo]:
    git(folder, "bundle", "create", "-q", str(folder.parent / "all.bundle"), "--all")
    git(folder, "bundle", "create", "-q", str(folder.parent / "head.bundle"), "HEAD")
    git(folder.parent, "clone", "-q", "--bare", str(folder), "bare.git")
    return {
        "folder": Repo(path=str(folder), commit=commits[1]),
        "short": Repo(path=str(folder), commit=commits[1][:8]),
        "bare": Repo(path=str(folder.parent / "bare.git"), commit=commits[1]),
        "bundle": Repo(path=str(folder.parent / "all.bundle"), commit=commits[1]),
        "head bundle": Repo(path=str(folder.parent / "head.bundle"), commit=commits[1]),
        "url": Repo(url=folder.as_uri(), commit=commits[1]),
    }


@pytest.mark.parametrize("form", ["folder", "short", "bare", "bundle", "head bundle", "url"])
async def test_rwd_13_only_history_up_to_the_commit_comes_along(
    sandbox: Any, history: tuple[Path, list[str]], form: str
) -> None:
    folder, commits = history
    await prepare(sandbox, Task(id="t", prompt="p", repo=forms(folder, commits)[form]))
    assert await base_commit(sandbox) == commits[1]
    box = sandbox.folder
    assert (box / "code.py").read_text() == "version = 2\n"
    assert git(box, "rev-list", "--all", "--count") == "2"
    assert git(box, "log", "--all", "--format=%s") == "secret fix 2\nsecret fix 1"
    assert git(box, "tag") == git(box, "remote") == git(box, "reflog") == ""
    assert git(box, "fsck", "--lost-found", "--unreachable") == ""
    assert git(box, "status", "--porcelain", "--ignored") == ""
    assert commits[2] not in git(box, "cat-file", "--batch-all-objects", "--batch-check")
    leftovers = [path.name for path in (box / ".git").iterdir()]
    assert not {"FETCH_HEAD", "ORIG_HEAD", "base.bundle", "logs", "packed-refs"} & set(leftovers)
    found = await sandbox.execute("grep -rl upstream .", timeout=30)
    assert found.output == ""


async def test_head_is_the_default_and_names_work(make_sandbox: Callable[[str], Awaitable[Any]], history: Any) -> None:
    folder, commits = history
    for number, commit in enumerate([None, "trunk", "v3", "later"]):
        box = await make_sandbox(f"box{number}")
        await prepare(box, Task(id="t", prompt="p", repo=Repo(path=str(folder), commit=commit)))
        assert await base_commit(box) == commits[2]


async def test_a_shallow_source_keeps_its_commit_id(sandbox: Any, history: Any, tmp_path: Path) -> None:
    folder, commits = history
    git(tmp_path, "clone", "-q", "--depth=1", folder.as_uri(), "shallow")
    await prepare(sandbox, Task(id="t", prompt="p", repo=Repo(path=str(tmp_path / "shallow"))))
    assert await base_commit(sandbox) == commits[2]
    assert git(sandbox.folder, "rev-list", "--all", "--count") == "1"


async def test_a_commit_that_is_not_there_is_named(sandbox: Any, history: Any) -> None:
    folder, _ = history
    with pytest.raises(DataError, match="upstream: cannot get 0123456"):
        await prepare(sandbox, Task(id="t", prompt="p", repo=Repo(path=str(folder), commit="0123456")))
    gone = Repo(url=(folder.parent / "nowhere").as_uri(), commit="0" * 40)
    with pytest.raises(SandboxError, match="nowhere: cannot get"):
        await prepare(sandbox, Task(id="t", prompt="p", repo=gone))
    with pytest.raises(DataError, match="cannot get --upload-pack"):
        await prepare(sandbox, Task(id="t", prompt="p", repo=Repo(path=str(folder), commit="--upload-pack=touch x")))


async def test_a_plain_folder_gives_the_same_commit_everywhere(
    make_sandbox: Callable[[str], Awaitable[Any]], tmp_path: Path
) -> None:
    source = tmp_path / "plain"
    (source / "empty").mkdir(parents=True)
    (source / ".gitignore").write_text("data/\n")
    (source / "data").mkdir()
    (source / "data" / "x.bin").write_bytes(b"\x00\r\n")
    (source / "run.sh").write_text("true\n")
    (source / "run.sh").chmod(0o775)
    (source / "link").symlink_to("run.sh")
    task = Task(id="t", prompt="p", repo=Repo(path="plain"), base_dir=str(tmp_path))
    one, two = await make_sandbox("one"), await make_sandbox("two")
    await prepare(one, task)
    (source / "run.sh").touch()
    (source / "__pycache__").mkdir()
    (source / "__pycache__" / "x.pyc").write_text("x")
    await prepare(two, task)
    assert await base_commit(one) == await base_commit(two)
    assert git(one.folder, "status", "--porcelain") == ""
    assert git(one.folder, "log", "--format=%an %ad %s", "--date=iso") == "base 2020-01-01 00:00:00 +0000 base"
    assert (one.folder / "data/x.bin").read_bytes() == b"\x00\r\n"
    assert (one.folder / "run.sh").stat().st_mode & 0o111 and (one.folder / "link").is_symlink()
    assert (one.folder / "empty").is_dir()
    assert "data/x.bin" in git(one.folder, "ls-files")


async def test_repo_then_files_then_setup(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.txt").write_text("repo")
    (tmp_path / "local.bin").write_bytes(b"\x00\xff\r\n")
    task = Task(
        id="t",
        prompt="p",
        base_dir=str(tmp_path),
        repo=Repo(path="plain"),
        files={
            "a.txt": "file",
            "sub/é b.bin": TaskFile(base64="AP8NCg=="),
            "c.bin": TaskFile(path="local.bin", mode=0o600),
            str(tmp_path / "abs.sh"): TaskFile(text="echo hi", mode=0o755),
        },
        setup=["cd sub", "cat ../a.txt > seen", "export X=$GREETING", 'echo "$X" >> seen  # note'],
        env={"GREETING": "hello"},
    )
    await prepare(sandbox, task)
    box = sandbox.folder
    assert (box / "a.txt").read_text() == "file"
    assert (box / "sub/é b.bin").read_bytes() == (box / "c.bin").read_bytes() == b"\x00\xff\r\n"
    assert (box / "c.bin").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "abs.sh").stat().st_mode & 0o777 == 0o755
    assert (box / "sub/seen").read_text() == "filehello\n"


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (["true", "echo out; false"], r"exit code 1: out\nsetup command 2 of 2 failed"),
        ("exit 7", "exit code 7"),
        ("no-such-program-x", "exit code 127"),
        (["if"], "exit code 2"),
    ],
)
async def test_a_failing_setup_is_a_sandbox_error(sandbox: Any, setup: str | list[str], message: str) -> None:
    with pytest.raises(SandboxError, match=message):
        await prepare(sandbox, Task(id="t", prompt="p", setup=setup))


async def test_setup_has_one_deadline(sandbox: Any) -> None:
    with pytest.raises(SandboxError, match=r"setup ran past its 0\.5 s"):
        await prepare(sandbox, Task(id="t", prompt="p", setup=["sleep 0.3", "sleep 5"], setup_timeout=0.5))


async def test_faults_are_told_apart(sandbox: Any) -> None:
    with pytest.raises(DataError, match="base64"):
        await prepare(sandbox, Task(id="t", prompt="p", files={"a": TaskFile(base64="%%%")}))
    await sandbox.stop()
    with pytest.raises(SandboxLostError):
        await prepare(sandbox, Task(id="t", prompt="p", setup="true"))


def test_hash_of_a_git_source_is_its_commit(history: Any) -> None:
    folder, commits = history

    def digest(commit: str | None) -> str:
        return task_hash(Task(id="t", prompt="p", repo=Repo(path=str(folder), commit=commit)))

    before = digest(None)
    assert digest(None) == before != digest(commits[0])
    (folder / "code.py").write_text("dirty\n")
    assert digest(None) == before
    git(folder, "commit", "-qam", "four")
    assert digest(None) != before
