"""Types of XML parameters."""

from typing import Any

import pytest

from uni_agent.tokens.parsers.convert import convert

OPTIONAL_INT = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
OPTIONAL_STR = {"type": ["string", "null"]}
STR_OR_LIST = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
ROOT: dict[str, Any] = {"$defs": {"N": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "03106", "03106"),
        ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
        (None, "5", "5"),
        ({}, "5", "5"),
        ({"type": "integer"}, "7", 7),
        ({"type": "integer"}, " -7\n", -7),
        ({"type": "integer"}, "7.0", 7),
        ({"type": "integer"}, "7.5", "7.5"),
        ({"type": "integer"}, "007", "007"),
        ({"type": "integer"}, "1_000", "1_000"),
        ({"type": "integer"}, "٣", "٣"),
        ({"type": "integer"}, "9" * 5000, "9" * 5000),
        ({"type": "number"}, "7", 7),
        ({"type": "number"}, "-1.5e3", -1500.0),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "number"}, "1e999", "1e999"),
        ({"type": "boolean"}, "true", True),
        ({"type": "boolean"}, "False", False),
        ({"type": "boolean"}, "1", "1"),
        ({"type": "null"}, "None", None),
        ({"type": "object"}, '{"a": [1, null]}', {"a": [1, None]}),
        ({"type": "object"}, "{'a': True, 'b': (1, 2)}", {"a": True, "b": [1, 2]}),
        ({"type": "object"}, "[1]", "[1]"),
        ({"type": "object"}, "{1, 2}", "{1, 2}"),
        ({"type": "object"}, '{"a": NaN}', '{"a": NaN}'),
        ({"type": "object"}, "{'a': 1e999}", "{'a': 1e999}"),
        ({"type": "array"}, "['a', b'x']", "['a', b'x']"),
        ({"type": "array"}, "[1, 2", "[1, 2"),
        ({"type": "array"}, "['a',\n 'b']", ["a", "b"]),
        ({"type": "array"}, "", ""),
        (OPTIONAL_INT, "null", None),
        (OPTIONAL_INT, "None", None),
        (OPTIONAL_INT, "3", 3),
        (OPTIONAL_INT, "x", "x"),
        (OPTIONAL_STR, "null", None),
        (OPTIONAL_STR, "None", "None"),
        (OPTIONAL_STR, "7", "7"),
        ({"type": ["string", "number"]}, "1.10", "1.10"),
        (STR_OR_LIST, '["a"]', ["a"]),
        (STR_OR_LIST, "a", "a"),
        ({"$ref": "#/$defs/N"}, "5", 5),
        ({"$ref": "#/$defs/Loop"}, "5", "5"),
        ({"$ref": "#/$defs/None"}, "5", "5"),
        ({"anyOf": [{"$ref": "#/$defs/N"}, {"type": "null"}]}, "5", 5),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"const": True}, "true", True),
        ({"type": 5, "anyOf": "x", "enum": None}, "2", "2"),
    ],
)
def test_conversion_follows_the_schema_parse_05(schema: dict[str, Any] | None, text: str, value: Any) -> None:
    got = convert(text, schema, ROOT)
    assert (got, type(got)) == (value, type(value))
