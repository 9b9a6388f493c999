"""What was appended is there after whatever happens to the process, the disk and the file."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from uni_agent.errors import StoreError
from uni_agent.gateway.journal import Entry, Journal, compact, read_journal, repair_journal

HERE = Path(__file__).parent


def fill(path: Path, count: int = 6) -> list[Entry]:
    with Journal(path, clock=lambda: 1.5) as journal:
        for n in range(count):
            assert journal.append("turn", f"s{n % 2}", {"n": n, "text": "a\nb\x00\u2028é漢" + "x" * n}) == n
    return list(read_journal(path))


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_entries_come_back_in_order_with_their_numbers_and_times(tmp_path: Path) -> None:
    entries = fill(tmp_path / "deep" / "j")
    assert [(e.seq, e.time, e.kind, e.session_id, e.data["n"]) for e in entries] == [
        (n, 1.5, "turn", f"s{n % 2}", n) for n in range(6)
    ]
    assert entries[0].data["text"] == "a\nb\x00\u2028é漢"


def test_a_reopened_journal_goes_on_with_the_next_number_and_the_same_source(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        source = journal.source
        journal.append("session", "a", {})
    with Journal(path) as journal:
        assert (journal.source, journal.next_seq, journal.torn_bytes) == (source, 1, 0)
        assert journal.append("turn", "a", {}) == 1
    with Journal(tmp_path / "other") as other:
        assert other.source != source


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(codec=None)), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(st.tuples(st.text(max_size=20), st.text(max_size=20), json_values), max_size=5))
@settings(max_examples=60, deadline=None)
def test_any_json_data_comes_back_exactly(tmp_path_factory: pytest.TempPathFactory, entries: list[Any]) -> None:
    path = tmp_path_factory.mktemp("j") / "j"
    with Journal(path) as journal:
        for kind, session, data in entries:
            journal.append(kind, session, {"data": data})
    assert [(e.kind, e.session_id, repr(e.data["data"])) for e in read_journal(path)] == [
        (kind, session, repr(data)) for kind, session, data in entries
    ]


def test_nan_and_surrogates_come_back(tmp_path: Path) -> None:
    data = {"floats": [float("nan"), float("inf"), -0.0, 1e-320], "text": "\ud83d" + "\ude00", "\udc80": 2**70}
    with Journal(tmp_path / "j") as journal:
        journal.append("turn", "\ud800", data)
    (entry,) = read_journal(tmp_path / "j")
    assert repr(entry.data) == repr(data) and entry.session_id == "\ud800"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("data", [{"x": {1, 2}}, {"x": b"bytes"}, {"x": nested(100_000)}, {"x": 10**5000}])
def test_what_is_not_json_is_refused_and_leaves_nothing(tmp_path: Path, data: Any) -> None:
    with Journal(tmp_path / "j") as journal:
        with pytest.raises(ValueError):
            journal.append("turn", "s", data)
        assert journal.healthy and journal.append("turn", "s", {}) == 0


def test_what_nests_as_deep_as_can_be_written_can_be_read_from_a_deep_stack(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        levels = 990
        while True:
            try:
                journal.append("turn", "s", {"x": nested(levels)})
                break
            except ValueError:
                levels -= 1

    def deep(calls: int) -> list[Entry]:
        return deep(calls - 1) if calls else list(read_journal(tmp_path / "j"))

    assert levels > 700
    assert len(deep(200)) == 1


def test_a_kill_loses_nothing_that_returned(tmp_path: Path) -> None:
    path = tmp_path / "j"
    chance, returned = random.Random(5), -1
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, str(HERE / "writer.py"), str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        for _ in range(chance.randrange(1, 60)):
            returned = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines(keepends=True)
        process.wait()
        returned = max([returned, *(int(line) for line in rest if line.endswith("\n"))])
        seqs = [entry.seq for entry in read_journal(path)]
        assert seqs == list(range(len(seqs))) and seqs[-1] >= returned
        assert all(entry.data["n"] == entry.seq for entry in read_journal(path))


def test_a_file_cut_at_any_byte_loses_only_the_entry_that_was_cut(tmp_path: Path) -> None:
    entries = fill(tmp_path / "j", 3)
    whole = (tmp_path / "j").read_bytes()
    header, *frames = lines_of(tmp_path / "j")
    ends = [len(header)]
    for frame in frames:
        ends.append(ends[-1] + len(frame))
    path = tmp_path / "cut"
    for size in range(len(header), len(whole) + 1):
        path.write_bytes(whole[:size])
        left = sum(end <= size for end in ends) - 1
        assert list(read_journal(path)) == entries[:left]
        with Journal(path) as journal:
            assert journal.torn_bytes == size - ends[left]
            assert journal.append("turn", "s", {}) == left
        assert [entry.seq for entry in read_journal(path)] == list(range(left + 1))
        with Journal(path) as journal:
            assert journal.torn_bytes == 0


def test_a_stretch_of_zeros_at_the_end_is_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "j"
    entries = fill(path)
    last = lines_of(path)[-1]
    body = path.read_bytes()[: -len(last)]
    path.write_bytes(body + last[:10] + b"\0" * 4096 + last[-30:] + b"\0" * 100)
    assert list(read_journal(path)) == entries[:-1]
    with Journal(path) as journal:
        assert journal.torn_bytes > 4096 and journal.next_seq == len(entries) - 1


def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    (tmp_path / "j").touch()
    assert list(read_journal(tmp_path / "j")) == []
    with Journal(tmp_path / "j") as journal:
        assert journal.append("turn", "s", {}) == 0


def test_every_flipped_bit_is_found_and_a_repair_keeps_all_other_entries(tmp_path: Path) -> None:
    entries = fill(tmp_path / "j", 4)
    whole = (tmp_path / "j").read_bytes()
    header, *frames = lines_of(tmp_path / "j")
    path = tmp_path / "flipped"
    breaks = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    for at in sorted({*range(0, len(whole), 7), *breaks, *(at + 1 for at in breaks[:-1])}):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 7)
        path.write_bytes(damaged)
        torn = at == len(whole) - 1  # the last line break
        if not torn:
            with pytest.raises(StoreError, match=r"flipped: broken at byte \d+"):
                list(read_journal(path))
            with pytest.raises(StoreError, match=r"broken at byte \d+"):
                Journal(path)
            assert path.read_bytes() == damaged  # nothing is changed without being asked
        repair = repair_journal(path)
        assert (repair.set_aside is None) == torn
        if repair.set_aside is not None:
            assert repair.set_aside.read_bytes() == damaged
            repair.set_aside.unlink()
        hit = sum(at >= len(header) + sum(map(len, frames[:n])) for n in range(len(frames))) - 1
        gone = hit + 1 if at < len(header) else hit  # without the header every entry is kept
        expected = [e for e in entries if at < len(header) or e.seq != gone]
        assert list(read_journal(path)) == expected
        assert repair.kept == len(expected)
        with Journal(path) as journal:
            assert journal.next_seq >= len(entries) - torn
            seq = journal.append("turn", "s", {})
        assert [e.seq for e in read_journal(path)] == [*(e.seq for e in expected), seq]


def test_a_repair_names_the_numbers_that_are_lost(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, 8)
    header, *frames = lines_of(path)
    path.write_bytes(b"".join([header, *frames[:2], *frames[4:6], frames[5], b"junk\n", frames[7]]))
    repair = repair_journal(path)
    assert repair.lost == (range(2, 4), range(6, 7))
    assert repair.lost_bytes == len(frames[5]) + 5
    assert [e.seq for e in read_journal(path)] == [0, 1, 4, 5, 7]


@pytest.mark.parametrize("order", [[0, 2], [0, 1, 1], [1, 0], [1]])
def test_a_missing_repeated_or_moved_line_is_found(tmp_path: Path, order: list[int]) -> None:
    path = tmp_path / "j"
    fill(path)
    header, *frames = lines_of(path)
    path.write_bytes(header + b"".join(frames[n] for n in order))
    with pytest.raises(StoreError, match=r"entry \d stands where entry \d should"):
        Journal(path)


@pytest.mark.parametrize("content", [b"hello\n", b"{}\n", b"\x00" * 100, b"SQLite format 3\x00" * 20 + b"\n"])
def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(StoreError, match="broken at byte 0"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == content


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    import zlib

    body = b'{"format":"uni-agent-journal","version":2,"source":"x","complete_from":0'
    (tmp_path / "j").write_bytes(body + b',"crc":"%08x"}\n' % zlib.crc32(body))
    with pytest.raises(StoreError, match="version 2"):
        list(read_journal(tmp_path / "j"))


def test_a_missing_journal_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        list(read_journal(tmp_path / "nowhere"))


@pytest.mark.parametrize("mode", ["plain", "fsync"])
def test_a_full_disk_keeps_entries_in_memory_in_their_order(tmp_path: Path, mode: str) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "limited.py"), str(tmp_path / "j"), mode],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


def test_a_second_writer_is_refused_in_this_process_and_in_another(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path) as journal:
        journal.append("turn", "s", {})
        with pytest.raises(StoreError, match=f"being written by process {os.getpid()}"):
            Journal(path)
        with pytest.raises(StoreError, match="being written"):
            compact(path, set())
        with pytest.raises(StoreError, match="being written"):
            repair_journal(path)
        other = subprocess.run(
            [sys.executable, str(HERE / "writer.py"), str(path)], capture_output=True, text=True, check=False
        )
        assert other.returncode == 1 and "being written by process" in other.stderr
    Journal(path).close()


def test_a_forked_child_neither_writes_nor_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    ready, go = multiprocessing.Pipe()
    child = os.fork()
    if not child:
        try:
            journal.append("turn", "s", {})
            ready.send("wrote")
        except StoreError as error:
            ready.send(str(error))
        ready.recv()  # lives on while the parent lets go
        os._exit(0)
    assert "belongs to process" in go.recv()
    journal.close()
    try:
        with Journal(path) as again:
            assert again.append("turn", "s", {}) == 0
    finally:
        go.send(None)
        os.waitpid(child, 0)


def test_a_reader_sees_a_growing_prefix_while_threads_write(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)

    def write(name: str) -> None:
        for n in range(150):
            journal.append("turn", name, {"n": n, "pad": "y" * 5000})

    threads = [threading.Thread(target=write, args=(f"t{i}",)) for i in range(3)]
    for thread in threads:
        thread.start()
    seen = 0
    while any(thread.is_alive() for thread in threads):
        seqs = [entry.seq for entry in read_journal(path)]
        assert seqs == list(range(len(seqs))) and len(seqs) >= seen
        seen = len(seqs)
        if seen % 2:
            journal.compact({"t0", "t1", "t2"})
    journal.close()
    entries = list(read_journal(path))
    assert [entry.seq for entry in entries] == list(range(450))
    for name in ("t0", "t1", "t2"):
        assert [e.data["n"] for e in entries if e.session_id == name] == list(range(150))


def test_compacting_leaves_out_sessions_and_keeps_numbers_and_source(tmp_path: Path) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    source = journal.source
    for n, session in enumerate(["a", "b", "", "a", 'c"\n,', "b"]):
        journal.append("turn", session, {"n": n, '"session":"a"': "a"})
    reader = read_journal(path)
    next(reader)
    assert journal.compact({"b", 'c"\n,'}) == 2
    assert len(list(reader)) == 5  # a reader at work ends what it began
    assert [entry.seq for entry in read_journal(path)] == [1, 2, 4, 5]
    assert journal.append("turn", "d", {}) == 6
    assert journal.compact(()) == 4
    assert journal.append("turn", "e", {}) == 7
    journal.close()
    assert [entry.seq for entry in read_journal(path)] == [2, 7]
    assert compact(path, {"x"}) == 1
    with Journal(path) as again:
        assert (again.source, again.next_seq) == (source, 8)
    assert not list(tmp_path.glob("*.new"))


def test_a_number_missing_after_a_compaction_is_found(tmp_path: Path) -> None:
    path = tmp_path / "j"
    fill(path, 4)
    compact(path, {"s0"})
    with Journal(path) as journal:
        for _ in range(3):
            journal.append("turn", "s", {})
    header, *frames = lines_of(path)
    assert [e.seq for e in read_journal(path)] == [0, 2, 4, 5, 6]
    path.write_bytes(b"".join([header, *frames[:3], frames[4]]))
    with pytest.raises(StoreError, match="entry 6 stands where entry 5 should"):
        Journal(path)
    assert repair_journal(path).lost == (range(5, 6),)


def test_a_closed_journal_refuses(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.close()
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.append("turn", "s", {})
