"""The editor, run as the agent's shell runs it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.tools.conftest import Box

HOSTILE = "it's \"quoted\" $(touch pwned) `touch pwned` ${HOME} !! \\ \t * ? ~ # ; & | > <\n__END_OF_CALL__\nEOF\n'"


# ------------------------------------------------------------------------------------------------ view


def test_view_numbers_lines_and_keeps_tabs(box: Box) -> None:
    ran = box.edit("view", box.file("a\n\tb\n"))
    assert ran.code == 0
    assert "     1\ta\n     2\t\tb\n" in ran.out


@pytest.mark.parametrize(
    ("span", "shown", "hidden"), [([2, 3], "2 3", "1 4"), ([3, -1], "3 4 5", "2"), ([5, 99], "5", "4")]
)
def test_view_range_limits_the_lines(box: Box, span: list[int], shown: str, hidden: str) -> None:
    ran = box.edit("view", box.file("l1\nl2\nl3\nl4\nl5\n"), view_range=span)
    assert ran.code == 0
    assert all(f"\tl{n}\n" in ran.out for n in shown.split())
    assert not any(f"\tl{n}\n" in ran.out for n in hidden.split())


@pytest.mark.parametrize("span", [[0, 2], [9, 10], [3, 2], [2, -2]])
def test_view_range_outside_the_file_is_an_error(box: Box, span: list[int]) -> None:
    ran = box.edit("view", box.file("1\n2\n3\n"), view_range=span)
    assert ran.code == 1
    assert "view_range" in ran.err


def test_view_of_a_long_file_is_cut_at_a_line_with_a_notice(box: Box) -> None:
    ran = box.edit("view", box.file("".join(f"line {n}\n" for n in range(1, 10001))))
    assert len(ran.out) < 17000
    assert "of 10000 are shown" in ran.out
    assert "view_range" in ran.out


def test_view_of_one_very_long_line_is_bounded(box: Box) -> None:
    ran = box.edit("view", box.file("x" * 500_000))
    assert len(ran.out) < 3000
    assert "more characters in this line" in ran.out


def test_view_of_a_directory_goes_two_levels_deep_without_hidden_entries(box: Box) -> None:
    for name in ("a/b/c/deep.txt", "a/b/two.txt", "a/.hidden/x", ".git/config", "top.py"):
        path = box.work / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    ran = box.edit("view", box.work / "d")
    listed = [line.removeprefix(str(box.work)) for line in ran.out.splitlines()[1:]]
    assert listed == ["/d/", "/d/a/", "/d/a/b/", "/d/top.py"]
    assert box.edit("view", box.work / "d", view_range=[1, 2]).code == 1


def test_view_of_a_huge_directory_is_bounded(box: Box) -> None:
    for n in range(1500):
        (box.work / f"{n:04}").touch()
    ran = box.edit("view", box.work)
    assert "1000 of 1500 entries" in ran.out
    assert len(ran.out.splitlines()) < 1010


@pytest.mark.parametrize("data", [b"\x7fELF\0\0", "text".encode("utf-16"), b"a\0b"])
def test_binary_files_are_refused_by_every_command(box: Box, data: bytes) -> None:
    path = box.file(data)
    for call in (
        box.edit("view", path),
        box.edit("str_replace", path, old_str="a", new_str="b"),
        box.edit("insert", path, insert_line=0, new_str="b"),
    ):
        assert call.code == 1
        assert "text only" in call.err
    assert path.read_bytes() == data


def test_a_missing_path_is_an_error_that_names_its_neighbours(box: Box) -> None:
    box.file("", "settings.py")
    ran = box.edit("view", box.work / "setting.py")
    assert ran.code == 1
    assert "does not exist" in ran.err
    assert "settings.py" in ran.err


@pytest.mark.parametrize("name", ["fifo", "/dev/null"])
def test_special_files_are_refused_instead_of_hanging(box: Box, name: str) -> None:
    os.mkfifo(box.work / "fifo")
    ran = box.edit("view", box.work / name)
    assert ran.code == 1
    assert "not a regular file" in ran.err


# ------------------------------------------------------------------------------------------------ create


def test_create_writes_the_text_and_makes_parents(box: Box) -> None:
    path = box.work / "new" / "deeper" / "x.py"
    ran = box.edit("create", path, file_text="a\n\tb")
    assert ran.code == 0
    assert path.read_bytes() == b"a\n\tb"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()


def test_create_never_overwrites(box: Box) -> None:
    path = box.file("keep")
    ran = box.edit("create", path, file_text="lost")
    assert ran.code == 1
    assert "str_replace" in ran.err
    assert path.read_text() == "keep"
    assert box.edit("create", box.work, file_text="x").code == 1
    assert box.edit("create", f"{path}/below", file_text="x").code == 1


def test_create_takes_relative_paths_and_empty_text(box: Box) -> None:
    assert box.edit("create", "sub/empty.txt", file_text="").code == 0
    assert (box.work / "sub/empty.txt").read_bytes() == b""


def test_create_through_a_dangling_link_makes_its_target(box: Box) -> None:
    (box.work / "link").symlink_to("target.txt")
    assert box.edit("create", box.work / "link", file_text="x").code == 0
    assert (box.work / "link").is_symlink()
    assert (box.work / "target.txt").read_text() == "x"


def test_three_hundred_kilobytes_of_text_survive(box: Box) -> None:
    text = "".join(f"{n}: $(x) `y` 'z' \"ü\"\n" for n in range(15_000))
    assert len(text.encode()) > 300_000
    path = box.work / "big.txt"
    assert box.edit("create", path, file_text=text).code == 0
    assert path.read_bytes() == text.encode()
    ran = box.edit("str_replace", path, old_str=text, new_str=text.replace("x", "X"))
    assert ran.code == 0
    assert path.read_bytes() == text.replace("x", "X").encode()


def test_hostile_text_reaches_the_file_and_nothing_else(box: Box) -> None:
    name = 'na\'me $(touch pwned) "q" `x`\n.txt'
    path = box.work / name
    assert box.edit("create", path, file_text=HOSTILE).code == 0
    assert path.read_text() == HOSTILE
    assert box.edit("str_replace", path, old_str="$(touch pwned)", new_str="`touch pwned`").code == 0
    assert not (box.work / "pwned").exists()
    assert [each.name for each in box.work.iterdir()] == [name]


# ------------------------------------------------------------------------------------------------ str_replace


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"a\tb\n", "a", "c", b"c\tb\n"),
        (b"\tif x:\n\t\ty\n", "\t\ty", "\t\tz", b"\tif x:\n\t\tz\n"),
        (b"one\r\ntwo\r\n", "one", "1", b"1\r\ntwo\r\n"),
        (b"one\r\ntwo\r\nthree", "one\ntwo", "1\n2\n3", b"1\r\n2\r\n3\r\nthree"),
        (b"one\r\ntwo\r\n", "one", "1\n2", b"1\r\n2\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one\r\n", "1\r\n", b"1\r\ntwo\r\n"),
        (b"one\r\ntwo\r\n", "one\n", "", b"two\r\n"),
        (b"a\r\nb\nc\r\nd\n", "a\nb\nc", "a\nB\nc", b"a\r\nB\nc\r\nd\n"),
        (b"a\r\nb\nc\r\nd\n", "b\nc\n", "b\nX\nc\n", b"a\r\nb\nX\nc\r\nd\n"),
        (b"a\nb\r\n", "a\r\nb", "A\r\nb", b"A\nb\r\n"),
        (b"caf\xe9 one\n", "one", "two", b"caf\xe9 two\n"),
        (b"caf\xe9 one\n", "café", "thé", b"th\xe9 one\n"),
        (b"\xff\xc3\xa9 one\n", "one", "é", b"\xff\xc3\xa9 \xc3\xa9\n"),
        (b"\xef\xbb\xbfone\ntwo", "one", "1", b"\xef\xbb\xbf1\ntwo"),
        (b"no newline", "newline", "end", b"no end"),
        (b"a\n\n\nb", "\n\n\n", "\n", b"a\nb"),
        (b"gone", "gone", "", b""),
        (b"x\x0cy\x1b[0m\rz\n", "y", "Y", b"x\x0cY\x1b[0m\rz\n"),
        (b"a b\n", "a b", "a\u00a0b".replace("\u00a0", " \t"), b"a \tb\n"),
    ],
)
def test_str_replace_changes_only_what_was_named(box: Box, before: bytes, old: str, new: str, after: bytes) -> None:
    path = box.file(before)
    ran = box.edit("str_replace", path, old_str=old, new_str=new)
    assert ran.code == 0, ran.err
    assert path.read_bytes() == after
    assert box.edit("undo_edit", path).code == 0
    assert path.read_bytes() == before


def test_str_replace_without_new_str_deletes(box: Box) -> None:
    path = box.file("abc")
    assert box.edit("str_replace", path, old_str="b").code == 0
    assert path.read_text() == "ac"


def test_an_ambiguous_old_str_is_an_error_with_the_lines(box: Box) -> None:
    path = box.file("x = 1\ny\nx = 1\nz x = 1\n")
    ran = box.edit("str_replace", path, old_str="x = 1", new_str="q")
    assert ran.code == 1
    assert "3 times" in ran.err
    assert "1, 3, 4" in ran.err
    assert path.read_text() == "x = 1\ny\nx = 1\nz x = 1\n"


@pytest.mark.parametrize(("text", "old", "lines"), [("aaa", "aa", "1, 1"), ("a\r\nb\r\na\r\nb\r\n", "a\nb", "1, 3")])
def test_overlapping_and_crlf_matches_count(box: Box, text: str, old: str, lines: str) -> None:
    ran = box.edit("str_replace", box.file(text), old_str=old, new_str="q")
    assert ran.code == 1
    assert lines in ran.err


@pytest.mark.parametrize(
    ("text", "old", "hint"),
    [
        ("def foo():\n\treturn 1\n", "def foo():\n    return 1", "other white space starts at line 1"),
        ("alpha\nvalue = compute(x, y)\n", "value = compute(x, z)", "2\tvalue = compute(x, y)"),
        ("one\ntwo\n", "     1\tone\n     2\ttwo", "leave them out"),
        ("one\ntwo\n", "something else entirely", "does not occur"),
        ("one\n", "\n\n\n", "does not occur"),
    ],
)
def test_a_missing_old_str_is_an_error_with_a_hint(box: Box, text: str, old: str, hint: str) -> None:
    path = box.file(text)
    ran = box.edit("str_replace", path, old_str=old, new_str="q")
    assert ran.code == 1
    assert hint in ran.err
    assert path.read_text() == text


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("same", "same")])
def test_replacements_that_mean_nothing_are_errors(box: Box, old: str, new: str) -> None:
    assert box.edit("str_replace", box.file("same"), old_str=old, new_str=new).code == 1


def test_text_that_the_files_encoding_lacks_is_refused(box: Box) -> None:
    path = box.file(b"caf\xe9\n")
    ran = box.edit("str_replace", path, old_str="caf", new_str="\u2192")
    assert ran.code == 1
    assert "Latin-1" in ran.err
    assert path.read_bytes() == b"caf\xe9\n"


# ------------------------------------------------------------------------------------------------ insert


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb\n", 0, "X", b"X\na\nb\n"),
        (b"a\nb\n", 1, "X", b"a\nX\nb\n"),
        (b"a\nb\n", 2, "X", b"a\nb\nX\n"),
        (b"a\nb\n", 1, "X\n", b"a\nX\nb\n"),
        (b"a\nb\n", 1, "X\nY", b"a\nX\nY\nb\n"),
        (b"a\nb\n", 1, "", b"a\n\nb\n"),
        (b"a\nb", 2, "X", b"a\nb\nX"),
        (b"a\nb", 2, "X\n", b"a\nb\nX\n"),
        (b"a\nb", 1, "X", b"a\nX\nb"),
        (b"", 0, "X", b"X\n"),
        (b"a\r\nb\r\n", 1, "X\nY", b"a\r\nX\r\nY\r\nb\r\n"),
        (b"a\r\nb", 2, "X", b"a\r\nb\r\nX"),
        (b"a\r\nb\r\n", 0, "X", b"X\r\na\r\nb\r\n"),
        (b"a\nb\r\n", 1, "X", b"a\nX\nb\r\n"),
        (b"\xef\xbb\xbfa\n", 0, "X", b"\xef\xbb\xbfX\na\n"),
        (b"\ta\n\xff\n", 1, "\tX", b"\ta\n\tX\n\xff\n"),
    ],
)
def test_insert_goes_after_the_line(box: Box, before: bytes, line: int, new: str, after: bytes) -> None:
    path = box.file(before)
    ran = box.edit("insert", path, insert_line=line, new_str=new)
    assert ran.code == 0, ran.err
    assert path.read_bytes() == after
    assert box.edit("undo_edit", path).code == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", [-1, 3])
def test_insert_outside_the_file_is_an_error(box: Box, line: int) -> None:
    ran = box.edit("insert", box.file("a\nb\n"), insert_line=line, new_str="x")
    assert ran.code == 1
    assert "2 lines" in ran.err


def test_edits_show_the_lines_around_them(box: Box) -> None:
    path = box.file("".join(f"l{n}\n" for n in range(1, 31)))
    ran = box.edit("insert", path, insert_line=15, new_str="new")
    assert "    15\tl15\n    16\tnew\n    17\tl16\n" in ran.out
    assert "\tl1\n" not in ran.out
    assert "\tl30\n" not in ran.out


# ------------------------------------------------------------------------------------------------ undo


def test_undo_goes_back_step_by_step_and_removes_a_created_file(box: Box) -> None:
    path = box.work / "p" / "q" / "f.txt"
    box.edit("create", path, file_text="1\n")
    box.edit("str_replace", path, old_str="1", new_str="2")
    box.edit("insert", path, insert_line=1, new_str="3")
    assert path.read_text() == "2\n3\n"
    assert box.edit("undo_edit", path).code == 0
    assert path.read_text() == "2\n"
    assert box.edit("undo_edit", path).code == 0
    assert path.read_text() == "1\n"
    assert box.edit("undo_edit", path).code == 0
    assert not (box.work / "p").exists()
    ran = box.edit("undo_edit", path)
    assert ran.code == 1
    assert "No edit history" in ran.err


def test_undo_is_kept_for_each_file(box: Box) -> None:
    one, two = box.file("1", "one"), box.file("2", "two")
    box.edit("str_replace", one, old_str="1", new_str="a")
    box.edit("str_replace", two, old_str="2", new_str="b")
    assert box.edit("undo_edit", one).code == 0
    assert (one.read_text(), two.read_text()) == ("1", "b")


def test_a_refused_edit_is_no_step(box: Box) -> None:
    path = box.file("1")
    box.edit("str_replace", path, old_str="1", new_str="2")
    box.edit("str_replace", path, old_str="absent", new_str="2")
    assert box.edit("undo_edit", path).code == 0
    assert path.read_text() == "1"
    assert box.edit("undo_edit", path).code == 1


def test_undo_says_when_it_also_takes_back_a_change_from_outside(box: Box) -> None:
    path = box.file("1\n")
    box.edit("str_replace", path, old_str="1", new_str="2")
    path.write_text("outside\n")
    ran = box.edit("undo_edit", path)
    assert ran.code == 0
    assert "something else" in ran.out
    assert path.read_text() == "1\n"


def test_undo_brings_back_a_file_that_was_deleted(box: Box) -> None:
    path = box.file("1\n")
    path.chmod(0o755)
    box.edit("str_replace", path, old_str="1", new_str="2")
    path.unlink()
    assert box.edit("undo_edit", path).code == 0
    assert path.read_text() == "1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def test_history_never_shows_in_a_patch_even_when_home_is_the_repository(box: Box) -> None:
    subprocess.run(["git", "init", "-q", box.work], check=True)
    path = box.file("1\n")
    command = box.command("str_replace_editor", {"command": "create", "path": f"{path}.new", "file_text": "x"})
    assert box.bash(command, UNI_AGENT_STATE_DIR="", HOME=str(box.work)).code == 0
    assert (box.work / ".uni_agent").is_dir()
    status = subprocess.run(["git", "-C", box.work, "status", "--short"], check=True, capture_output=True, text=True)
    assert sorted(status.stdout.split()) == ["??", "??", "file.txt", "file.txt.new"]


def test_edits_work_when_no_history_can_be_kept(box: Box) -> None:
    path = box.file("1\n")
    command = box.command("str_replace_editor", {"command": "str_replace", "path": str(path), "old_str": "1"})
    ran = box.bash(command, UNI_AGENT_STATE_DIR="/proc/no", HOME="/proc/no", TMPDIR="/proc/no")
    assert ran.code == 0
    assert path.read_text() == "\n"


# ------------------------------------------------------------------------------------------------ the file itself


def test_mode_links_and_owner_survive(box: Box) -> None:
    path = box.file("#!/bin/sh\necho 1\n", "run.sh")
    path.chmod(0o755)
    (box.work / "link.sh").symlink_to("run.sh")
    hard = box.work / "hard.sh"
    assert box.edit("str_replace", box.work / "link.sh", old_str="1", new_str="2").code == 0
    assert (box.work / "link.sh").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    hard.hardlink_to(path)
    inode = path.stat().st_ino
    assert box.edit("str_replace", path, old_str="2", new_str="3").code == 0
    assert hard.read_bytes() == path.read_bytes() == b"#!/bin/sh\necho 3\n"
    assert path.stat().st_ino == inode
    assert sorted(each.name for each in box.work.iterdir()) == ["hard.sh", "link.sh", "run.sh"]


def test_a_link_and_its_target_share_their_history(box: Box) -> None:
    path = box.file("1")
    (box.work / "link").symlink_to(path)
    box.edit("str_replace", box.work / "link", old_str="1", new_str="2")
    assert box.edit("undo_edit", path).code == 0
    assert path.read_text() == "1"


def test_replacing_is_atomic(box: Box) -> None:
    path = box.file("old\n")
    with path.open("rb") as reader:
        box.edit("str_replace", path, old_str="old", new_str="new and longer")
        assert reader.read() == b"old\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to become")
def test_a_file_that_may_not_be_written_is_not_replaced(box: Box) -> None:
    command = box.command("str_replace_editor", {"command": "str_replace", "path": "f", "old_str": "1"})
    with tempfile.TemporaryDirectory() as folder:
        # The folder is open to all, so that a rename could replace the file; the file is not.
        Path(folder).chmod(0o777)
        shutil.copytree(box.root / "bin", f"{folder}/bin")
        file = Path(folder, "f")
        file.write_text("1")
        file.chmod(0o644)
        ran = subprocess.run(
            ["/usr/bin/env", f"PATH={folder}/bin:/usr/bin:/bin", "HOME=/nonexistent", "bash", "-c", command],
            user=65534,
            group=65534,
            extra_groups=[],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 1
        assert "not writable" in ran.stderr
        assert file.read_text() == "1"


# ------------------------------------------------------------------------------------------------ the program


def test_the_project_cannot_change_the_editor(box: Box) -> None:
    for name in ("json.py", "base64.py", "common.py", "sitecustomize.py"):
        (box.work / name).write_text("raise SystemExit('shadowed')\n")
    box.env = {"PYTHONPATH": str(box.work), "PYTHONHOME": "/nonexistent"}
    assert box.edit("view", box.work).code == 0


def test_a_spoilt_path_does_not_lose_the_editor(box: Box) -> None:
    command = box.command("str_replace_editor", {"command": "view", "path": str(box.work)})
    assert box.bash(command, PATH="/usr/bin:/bin").code == 127
    assert box.bash(command, PATH="/usr/bin:/bin", UNI_AGENT_TOOL_DIR=str(box.root / "bin")).code == 0


def test_a_python_that_cannot_run_it_is_passed_over(box: Box, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    box.env = {"UNI_AGENT_PYTHON": str(broken)}
    assert box.edit("view", box.work).code == 0


@pytest.mark.parametrize("argument", ["", "view", "'{}'", "bm90IGpzb24=", "a b"])
def test_a_call_by_hand_is_told_apart(box: Box, argument: str) -> None:
    assert box.bash(f"str_replace_editor {argument}").code == 2


@pytest.mark.parametrize("name", ["str_replace_editor", "search", "search_arxiv"])
def test_the_programs_are_ascii_and_fit_python_3_6(box: Box, name: str) -> None:
    import ast

    source = (box.root / "bin" / name).read_bytes()
    assert source.isascii()
    ast.parse(source, feature_version=(3, 6))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
