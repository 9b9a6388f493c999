"""What gateways journaled, read without a gateway: no engine, no renderer, no lock.

Journals are read as they are, also while they are written and after a kill. Nothing of them is changed.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Collection, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from uni_agent.errors import ModelError, StoreError, boundary
from uni_agent.gateway.config import SessionSettings
from uni_agent.gateway.finished import FinishedSession, finished_session
from uni_agent.gateway.journal import Entry
from uni_agent.gateway.journal.frames import FORMAT, address_of, entry_of, is_sound
from uni_agent.gateway.journal.scan import Scan
from uni_agent.gateway.replay import JournaledEntry, opened_session, replay_entry
from uni_agent.gateway.session import Session
from uni_agent.tokens.base import Renderer

INTERRUPTED = "interrupted"
"""The materialization reason of a session that had not ended when its journal did."""

_MAGIC = f'{{"format":"{FORMAT}"'.encode()


def read_sessions(path: Path, *, only: Collection[str] | None = None) -> Iterator[FinishedSession]:
    """Every session of a journal, or of the journals `gateway-*.journal` of a folder; `only` those named.

    They come per journal in the order in which they were opened, as `finalize` answered, those that the gateway has
    let go of since included, as long as no restart left them out of the file. A session that has not ended is `active`
    and given as it stands, with `INTERRUPTED` as the reason of its trajectories. The journal is read twice: first to
    see what belongs together, so one session at a time is in memory, and 8 bytes per entry.

    Raises StoreError when there is no journal, and, before the first session of it, when one is broken: it names the
    byte and `repair_journal`. A torn last line is passed over. Raises StoreError at a session that lacks an entry.
    """
    files = journal_files(path)  # at the call, not at the first session
    wanted = None if only is None else frozenset(only)
    return (session for file in files for session in _sessions_of(file, wanted))


def read_journals(path: Path) -> Iterator[tuple[str, Iterator[Entry]]]:
    """(source, entries) of a journal or of all those of a folder, for `uni_agent.store.merge_into`.

    Take all entries before the next journal. Raises StoreError when there is no journal and, behind the last sound
    entry, when one is broken.
    """
    files = journal_files(path)
    return (found for file in files for found in _journal(file))


def rebuilt_sessions(entries: Iterable[JournaledEntry], where: str = "journal") -> Iterator[FinishedSession]:
    """The sessions that `entries` of one session id tell of, in their order: one, unless the id was used anew.

    `where` begins messages. Raises StoreError for entries that do not follow on each other.
    """
    session: Session | None = None
    for entry in entries:
        begins, ends = entry.kind == "session", entry.kind == "forgotten"
        if session is not None and (begins or ends):
            yield _finished(session, where)
            session = None
        with _naming(where, entry):
            if begins:
                session = _opened(entry)
            elif session is not None:
                replay_entry(session, entry)
            elif entry.kind == "turn":  # what a cancelled turn dropped may come late, a turn may not
                raise ValueError("the entry that opened the session is missing")
    if session is not None:
        yield _finished(session, where)


def journal_files(path: Path) -> list[Path]:
    """The journal `path`, or those of the folder `path`, by their numbers. Raises StoreError when there is none."""
    if path.is_dir():
        found = sorted(path.glob("gateway-*.journal"), key=lambda file: (len(file.name), file.name))
        if not found:
            raise StoreError(f"{path}: holds no gateway-*.journal; give the folder that is journal.folder of a gateway")
        return found
    if not path.exists():
        raise StoreError(f"{path}: no such journal")
    return [path]


def is_journal(path: Path) -> bool:
    """Whether `path` is a journal or a folder with journals of gateways."""
    if path.is_dir():
        return any(path.glob("gateway-*.journal"))
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------ inside


class _Unrendered:
    """The renderer of a session that takes no turns: nothing may ask for it."""

    def __getattr__(self, name: str) -> NoReturn:
        raise AssertionError(f"a session of the archive asks its renderer for {name!r}")


_UNRENDERED = cast("Renderer", _Unrendered())


def _opened(entry: JournaledEntry) -> Session:
    settings = SessionSettings.model_validate(entry.data["settings"])
    # The policy `template` looks at the tokens of each turn for the sake of later prompts, of which there are none.
    settings = settings.model_copy(update={"thinking": "keep"})
    return opened_session(
        entry.session_id, entry.data, _UNRENDERED, renderer_for=lambda _: _UNRENDERED, settings=settings
    )


def _finished(session: Session, where: str) -> FinishedSession:
    with boundary(StoreError, f"{where}: session {session.id} cannot be exported"):
        finished = finished_session(session, active=INTERRUPTED)
    session.graph.discard()
    return finished


def _sessions_of(path: Path, only: Collection[str] | None) -> Iterator[FinishedSession]:
    with _reading(path) as file:
        for places in _places(path, file, only).values():
            yield from rebuilt_sessions(_entries(path, file, places), str(path))


def _places(path: Path, file: BinaryIO, only: Collection[str] | None) -> dict[str, array[int]]:
    """Session → where its entries begin."""
    places: dict[str, array[int]] = {}
    scan = Scan(path, file)
    for line in scan:
        session_id = address_of(line)[1]
        if only is None or session_id in only:
            places.setdefault(session_id, array("Q")).append(scan.end - len(line))
    return places


def _entries(path: Path, file: BinaryIO, places: Iterable[int]) -> Iterator[Entry]:
    for place in places:
        file.seek(place)
        line = file.readline()
        if not is_sound(line):  # a gateway only appends, or puts a new file in the place of this one
            raise StoreError(f"{path}: changed at byte {place} while it was read")
        yield entry_of(line)


def _journal(path: Path) -> Iterator[tuple[str, Iterator[Entry]]]:
    with _reading(path) as file:
        scan = Scan(path, file)
        lines = iter(scan)
        first = next(lines, None)  # reads the header, too
        if scan.header is not None:
            rest = (entry_of(line) for line in lines)
            yield scan.header.source, rest if first is None else _behind(entry_of(first), rest)


def _behind(first: Entry, rest: Iterator[Entry]) -> Iterator[Entry]:
    yield first
    yield from rest


@contextlib.contextmanager
def _reading(path: Path) -> Generator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error}") from error
    with file:
        yield file


@contextlib.contextmanager
def _naming(where: str, entry: JournaledEntry) -> Generator[Any]:
    """Say which entry of which session cannot be used."""
    try:
        yield
    except (ValueError, KeyError, TypeError, ModelError, RecursionError) as error:
        raise StoreError(
            f"{where}: session {entry.session_id}: entry {entry.seq} ({entry.kind}) cannot be replayed: {error}. "
            "Sessions that are asked for by name can be read without this one"
        ) from error
