"""The editor's edits against plain bytes operations, over random files."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from uni_agent.tools.str_replace_editor import StrReplaceEditor

PIECES = st.sampled_from(
    [b"a", b"b", b"ab", b"\n", b"\r\n", b"\r", b"\t", b"  ", b"\xe9", b"\xc3\xa9", b"\xff", b"\x1b"]
)
FILES = st.one_of(
    st.lists(PIECES, max_size=30).map(b"".join), st.binary(max_size=200).map(lambda b: b.replace(b"\0", b""))
)
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
PLAIN = st.text("abc\t .$`'\"\\", max_size=12)
LINES = st.text("ab\n\t ", max_size=12)


class Program:
    """The installed program's own code, loaded once: 200 edits take a second instead of a minute."""

    def __init__(self) -> None:
        (script,) = StrReplaceEditor().scripts()
        self.code: dict[str, Any] = {"__name__": "editor"}
        exec(compile(script.content, script.name, "exec"), self.code)

    def edit(self, path: Path, command: str, **arguments: Any) -> bool:
        """Whether the edit was made."""
        try:
            self.code["run"]({"command": command, "path": str(path), **arguments})
        except self.code["Failure"]:
            return False
        return True


PROGRAM = Program()


@contextmanager
def stored(data: bytes) -> Generator[Path]:
    with TemporaryDirectory() as folder:
        before = os.environ.get("UNI_AGENT_STATE_DIR")
        os.environ["UNI_AGENT_STATE_DIR"] = f"{folder}/state"
        path = Path(folder, "file")
        path.write_bytes(data)
        try:
            yield path
        finally:
            del os.environ["UNI_AGENT_STATE_DIR"]
            if before is not None:
                os.environ["UNI_AGENT_STATE_DIR"] = before


def places(data: bytes, old: bytes) -> int:
    return sum(data.startswith(old, at) for at in range(len(data)))


def text_of(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def unix(raw: bytes) -> bytes:
    return raw.replace(b"\r\n", b"\n")


quick = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(data=FILES, span=st.tuples(st.integers(0, 200), st.integers(1, 20)), new=PLAIN)
def test_replacing_a_unique_slice_equals_bytes_replace(data: bytes, span: tuple[int, int], new: str) -> None:
    assume(not data.startswith(UTF16_MARKS))
    old = data[span[0] % (len(data) + 1) :][: span[1]]
    assume(old and old != new.encode())
    assume(not (old.startswith(b"\n") and b"\r\n" in data))  # the next property's matter
    with stored(data) as path:
        made = PROGRAM.edit(path, "str_replace", old_str=text_of(old), new_str=new)
        if places(data, old) == 1:
            assert made
            assert path.read_bytes() == data.replace(old, new.encode(), 1)
            assert PROGRAM.edit(path, "undo_edit")
        else:
            assert not made
        assert path.read_bytes() == data


@quick
@given(data=FILES, span=st.tuples(st.integers(0, 200), st.integers(1, 20)), new=LINES)
def test_a_model_that_writes_only_newlines_edits_any_line_ending(data: bytes, span: tuple[int, int], new: str) -> None:
    """What an edit means is what it means on the file with plain newlines; all else stays as it is."""
    data = data.replace(b"\r\r", b"\r")
    assume(not data.startswith(UTF16_MARKS))
    lined = unix(data)
    assume(b"\r" not in lined)
    old = lined[span[0] % (len(lined) + 1) :][: span[1]]
    assume(old and old != new.encode() and places(lined, old) == 1)
    with stored(data) as path:
        made = PROGRAM.edit(path, "str_replace", old_str=text_of(old), new_str=new)
        after = path.read_bytes()
        assert made
        assert unix(after) == lined.replace(old, new.encode(), 1)
        if b"\n" not in data.replace(b"\r\n", b""):
            assert b"\n" not in after.replace(b"\r\n", b"") or b"\n" not in data
        head, _, tail = lined.partition(old)
        assert after.startswith(_real(data, len(head), 0))
        assert after.endswith(_real(data, 0, len(tail)))
        assert PROGRAM.edit(path, "undo_edit")
        assert path.read_bytes() == data


@quick
@given(data=FILES, new=LINES, line=st.integers(0, 40))
def test_insert_keeps_every_other_line(data: bytes, new: str, line: int) -> None:
    assume(not data.startswith((*UTF16_MARKS, b"\xef\xbb\xbf")))
    lines = data.split(b"\n")
    whole = [each + b"\n" for each in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    with stored(data) as path:
        made = PROGRAM.edit(path, "insert", insert_line=line, new_str=new)
        assert made == (line <= len(whole))
        if made:
            after = path.read_bytes()
            head, tail = b"".join(whole[:line]), b"".join(whole[line:])
            assert after.startswith(head)
            assert after.endswith(tail)
            middle = unix(after[len(head) : len(after) - len(tail)])
            if head and not head.endswith(b"\n"):
                assert middle == b"\n" + new.encode()
            else:
                assert middle == new.encode() + (b"" if new.endswith("\n") else b"\n")
            assert PROGRAM.edit(path, "undo_edit")
        assert path.read_bytes() == data


@quick
@given(data=FILES, edits=st.lists(st.tuples(PLAIN, PLAIN, st.integers(0, 5)), max_size=8))
def test_undo_walks_back_through_any_sequence_of_edits(data: bytes, edits: list[tuple[str, str, int]]) -> None:
    with stored(data) as path:
        states: list[bytes] = []
        for old, new, line in edits:
            before = path.read_bytes()
            insert = line % 2 == 0
            made = (
                PROGRAM.edit(path, "insert", insert_line=line, new_str=new)
                if insert
                else PROGRAM.edit(path, "str_replace", old_str=old, new_str=new)
            )
            if made:
                states.append(before)
            else:
                assert path.read_bytes() == before
        while states:
            assert PROGRAM.edit(path, "undo_edit")
            assert path.read_bytes() == states.pop()
        assert not PROGRAM.edit(path, "undo_edit")


@quick
@given(data=st.binary(max_size=300))
def test_view_never_fails_on_text_and_never_changes_it(data: bytes) -> None:
    with stored(data) as path:
        assert PROGRAM.edit(path, "view") == (b"\0" not in data and not data.startswith(UTF16_MARKS))
        assert path.read_bytes() == data


@pytest.mark.parametrize("size", [10, 100])
def test_history_is_bounded(size: int) -> None:
    with stored(b"0") as path:
        for step in range(150):
            assert PROGRAM.edit(path, "str_replace", old_str=str(step), new_str=str(step + 1))
        kept = [each for each in path.parent.joinpath("state", "edits").rglob("*") if each.is_file()]
        assert len(kept) == 100
        assert all(PROGRAM.edit(path, "undo_edit") for _ in range(size))
        assert path.read_bytes() == str(150 - size).encode()


def _real(data: bytes, head: int, tail: int) -> bytes:
    """The bytes of `data` whose plain-newline form is its first `head` (or last `tail`) bytes, never half an ending."""
    if head:
        cuts = [at for at in range(len(data) + 1) if len(unix(data[:at])) == head]
        return data[: min(cuts)].removesuffix(b"\r")
    if tail:
        cuts = [at for at in range(len(data) + 1) if len(unix(data[at:])) == tail]
        return data[max(cuts) :]
    return b""
