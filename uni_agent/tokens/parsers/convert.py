"""Text of an XML parameter to the JSON value that its schema asks for. Text that does not fit stays as it is."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from uni_agent.tokens.parsers import jsontext
from uni_agent.tokens.parsers.schema import types_of

_LITERAL_SIZE = 20_000
_LITERAL_DEPTH = 50
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.0+)?\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?\Z")
_UNREADABLE = object()


def convert(text: str, schema: dict[str, Any] | None, root: dict[str, Any]) -> Any:
    """The value of a parameter whose text is `text`.

    A parameter that the schema does not name (`schema` is None) or does not type stays a string. A string stays the
    string it is, `null` and `03106` included. Where a string is one choice of several, only `null` (if allowed),
    arrays and objects are converted: `1.10` read as a number would lose what the model wrote. What fits no type comes
    back unchanged, and the toolset tells the model.
    """
    types = types_of(schema, root) if schema is not None else set[str]()
    if not types or types == {"string"}:
        return text
    bare = text.strip()
    readers = ("null", "object", "array") if "string" in types else tuple(_READERS)
    for kind in readers:
        if kind in types:
            value = _READERS[kind](bare, "string" in types)
            if value is not _UNREADABLE:
                return value
    return text


def _null(text: str, or_string: bool) -> Any:
    return None if text == "null" or (text == "None" and not or_string) else _UNREADABLE


def _boolean(text: str, _: bool) -> Any:
    return {"true": True, "false": False}.get(text.lower(), _UNREADABLE)


def _integer(text: str, _: bool) -> Any:
    if not _INTEGER.match(text):
        return _UNREADABLE
    try:
        return int(text.partition(".")[0])
    except ValueError:  # thousands of digits
        return _UNREADABLE


def _number(text: str, _: bool) -> Any:
    if not _NUMBER.match(text):
        return _UNREADABLE
    try:
        return jsontext.loads(text)
    except ValueError:
        return _UNREADABLE


def _object(text: str, _: bool) -> Any:
    return _container(text, dict)


def _array(text: str, _: bool) -> Any:
    return _container(text, list)


_READERS = {
    "null": _null,
    "boolean": _boolean,
    "integer": _integer,
    "number": _number,
    "object": _object,
    "array": _array,
}


def _container(text: str, kind: type) -> Any:
    for read in (jsontext.loads, _literal):
        try:
            value = read(text)
        except ValueError:
            continue
        if isinstance(value, kind):
            return value
    return _UNREADABLE


def _literal(text: str) -> Any:
    """A Python literal such as `{'a': True}` as JSON data. Raises ValueError for anything else; runs nothing."""
    if text[:1] not in ("{", "[", "(") or len(text) > _LITERAL_SIZE or _depth(text) > _LITERAL_DEPTH:
        raise ValueError("no small container")
    try:
        # Through JSON and back: tuples become lists, and what JSON cannot say (sets, bytes, complex) is refused.
        return jsontext.loads(json.dumps(ast.literal_eval(text), allow_nan=False))
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError("no literal") from error


def _depth(text: str) -> int:
    """An upper bound of the nesting (brackets inside strings count too): deep input can crash Python's own parser."""
    depth = deepest = 0
    for char in text:
        if char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth -= 1
    return deepest
