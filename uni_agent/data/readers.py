"""Where rows come from: JSON lines, parquet files, Hugging Face datasets."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from uni_agent.data.report import suggestion
from uni_agent.data.source import Row, RowMapping, Selection, TaskSource, unique_ids
from uni_agent.errors import DataError, MissingExtraError
from uni_agent.types import Task

_OBJECT_FIELDS = frozenset({"files", "repo", "env", "overrides", "metadata"})


class RowSource(TaskSource):
    """Tasks from rows: read, mapped, checked, selected."""

    def __init__(
        self, origin: str, rows: Callable[[], Iterable[Row]], mapping: RowMapping, selection: Selection
    ) -> None:
        self._origin = origin
        self._rows = rows
        self._mapping = mapping
        self._selection = selection

    def load(self) -> list[Task]:
        """Every selected task. Raises DataError for the first faulty row, and for a source without any."""
        tasks = unique_ids((self._mapping.task(row), row.where) for row in self._rows())
        if not tasks:
            raise DataError(f"{self._origin}: holds no tasks")
        return self._selection.apply(tasks, self._origin)


def read_jsonl(path: Path) -> Iterator[Row]:
    """One row for each line that is not blank. Raises DataError with file and line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    # Split on newlines alone: JSON strings may hold U+2028 and other characters that `splitlines` cuts at.
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield Row(where, _json_object(line, where))


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8 at byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON: {error.msg} at column {error.colno} (each line is one complete object)"
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}") from error
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected an object, got {type(value).__name__}")
    return cast("dict[str, Any]", value)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"key {key!r} comes twice")
        out[key] = value
    return out


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def read_parquet(path: Path) -> Iterator[Row]:
    """The rows of one parquet file, or of every `*.parquet` of a folder in name order. Rows count from 0."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("pyarrow", "datasets", "data.type 'parquet'") from error
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path}: holds no *.parquet file")
    for file in files:
        number = 0
        try:
            with pq.ParquetFile(file) as table:
                for batch in table.iter_batches(batch_size=256):  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                    for values in cast("list[dict[str, Any]]", batch.to_pylist()):  # pyright: ignore[reportUnknownMemberType]
                        yield _table_row(f"{file} row {number}", values)
                        number += 1
        except (OSError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{file}: cannot be read as parquet: {error}") from error


def read_hub(path: str, *, name: str | None, split: str | None, revision: str | None) -> Iterator[Row]:
    """The rows of a Hugging Face dataset, by hub name or local folder. Rows count from 0."""
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs]
    except ImportError as error:
        raise MissingExtraError("datasets", "datasets", "data.type 'huggingface'") from error
    library: Any = datasets
    saved = any((Path(path) / marker).exists() for marker in ("state.json", "dataset_dict.json"))
    try:
        loaded: Any = (
            library.load_from_disk(path) if saved else library.load_dataset(path, name, split=split, revision=revision)
        )
    except Exception as error:  # the library raises errors of many kinds and packages
        raise DataError(f"huggingface dataset {path!r}: {type(error).__name__}: {error}") from error
    if isinstance(loaded, Mapping):
        loaded = _one_split(cast("Mapping[str, Any]", loaded), split, path)
    for number, values in enumerate(loaded):
        yield _table_row(f"{path} row {number}", values)


def _one_split(splits: Mapping[str, Any], split: str | None, path: str) -> Any:
    if split is not None:
        if split not in splits:
            raise DataError(f"huggingface dataset {path!r}: no split {split!r}{suggestion(split, splits)}")
        return splits[split]
    if len(splits) != 1:
        raise DataError(f"huggingface dataset {path!r}: set data.split to one of {', '.join(sorted(splits))}")
    return next(iter(splits.values()))


def _table_row(where: str, values: Mapping[str, Any]) -> Row:
    # A table has every column in every row: None means "not given". Objects of free shape are stored as JSON text.
    out: dict[str, Any] = {}
    for key, value in values.items():
        if value is None:
            continue
        out[key] = _unpacked(value, f"{where}: {key}") if key in _OBJECT_FIELDS else plain(value)
    return Row(where, out)


def _unpacked(value: Any, where: str) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return json.loads(value)
        except ValueError as error:
            raise DataError(f"{where}: looks like JSON and is not: {error}") from error
    return without_none(plain(value))


def without_none(value: Any) -> Any:
    """`value` without keys that are None: in a table of structs, every row has the keys of all others."""
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: without_none(inner) for key, inner in items if inner is not None}
    return value


def plain(value: Any) -> Any:
    """`value` as JSON data: bytes as base64, dates as ISO text, arrays as lists, anything else as its `str`."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in cast("Iterable[Any]", value)]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    for method in ("isoformat", "tolist"):
        if callable(convert := getattr(value, method, None)):
            return plain(convert())
    return str(value)
