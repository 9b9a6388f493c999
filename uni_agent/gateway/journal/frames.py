r"""The lines of a journal.

Each line is one JSON object that ends with the CRC-32 of the bytes before it: `{"seq":7,…,"crc":"1f2e3d4c"}\n`. The
first line is the header. Lone surrogates stand as the three bytes that UTF-8 would give them, so that text comes back
as it was.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
import zlib
from dataclasses import dataclass
from typing import Any

from uni_agent.errors import StoreError

FORMAT = "uni-agent-journal"
VERSION = 1

_TAIL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')
_TAIL_LENGTH = len(',"crc":"00000000"}\n')
_STRING = rb'"(?:[^"\\]|\\.)*+"'
_HEAD = re.compile(rb'\{"seq":(\d{1,18}),"time":[^,]{1,40},"kind":%b,"session":(%b),"data":\{' % (_STRING, _STRING))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. `seq` rises within a journal, `time` is in Unix seconds, `session_id` is "" for the process itself."""

    seq: int
    time: float
    kind: str
    session_id: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Header:
    """The first line. From entry `complete_from` on no number is missing; before it, sessions were left out."""

    source: str
    complete_from: int


def header_frame(header: Header) -> bytes:
    """The line of a header."""
    fields = {"format": FORMAT, "version": VERSION, "source": header.source, "complete_from": header.complete_from}
    return _sealed(fields)


def entry_frame(entry: Entry) -> bytes:
    """The line of an entry. Raises ValueError for data that JSON cannot hold, or that nests too deep."""
    fields = {
        "seq": entry.seq,
        "time": entry.time,
        "kind": entry.kind,
        "session": entry.session_id,
        "data": entry.data,
    }
    return _sealed(fields)


def is_sound(line: bytes) -> bool:
    """Whether `line` is whole and its checksum is right."""
    found = _TAIL.match(line, max(len(line) - _TAIL_LENGTH, 0))
    return found is not None and int(found[1], 16) == zlib.crc32(memoryview(line)[:-_TAIL_LENGTH])


def address_of(line: bytes) -> tuple[int, str]:
    """The number and the session of a sound line, without reading its data. Raises StoreError for other lines."""
    found = _HEAD.match(line)
    if found is None:
        raise StoreError("a line that is no entry")
    return int(found[1]), json.loads(found[2].decode("utf-8", "surrogatepass"))


def sound_part(line: bytes) -> bytes:
    """The entry that ends a broken line whose line break was lost; b"" when there is none."""
    starts = (found.start() for found in _HEAD.finditer(line))
    return next((line[at:] for at in starts if is_sound(line[at:])), b"")


def header_of(line: bytes) -> Header:
    """The header that a sound line holds. Raises StoreError for another format or a newer version."""
    data: Any = _loads(line)
    if not isinstance(data, dict) or data.get("format") != FORMAT:  # pyright: ignore[reportUnknownMemberType]
        raise StoreError("its first line is not the header of a journal")
    if data["version"] != VERSION:
        raise StoreError(f"written in version {data['version']} of the format; this program reads version {VERSION}")
    return Header(data["source"], data["complete_from"])  # pyright: ignore[reportUnknownArgumentType]


def entry_of(line: bytes) -> Entry:
    """The entry that a sound line holds."""
    data = _loads(line)
    return Entry(data["seq"], data["time"], data["kind"], data["session"], data["data"])


def _sealed(fields: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise ValueError("the data nests too deep for JSON") from error
    except TypeError as error:
        raise ValueError(f"not JSON data: {error}") from error
    body = text[:-1].encode("utf-8", "surrogatepass")
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def _loads(line: bytes) -> Any:
    text = line.decode("utf-8", "surrogatepass")
    try:
        return json.loads(text)
    except RecursionError:
        # It was written from a shallower stack than this one. A new thread has the shallowest there is.
        return _loads_in_thread(text)


def _loads_in_thread(text: str) -> Any:
    found: list[Any] = []

    def load() -> None:
        with contextlib.suppress(RecursionError):
            found.append(json.loads(text))

    thread = threading.Thread(target=load, name="journal-json")
    thread.start()
    thread.join()
    if not found:
        raise StoreError("an entry nests too deep to be read")
    return found[0]
