"""The JSON schema says what the loader says, as far as one file can tell."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from jsonschema import Draft202012Validator

from tests.config.trees import Pipeline
from uni_agent.config.catalogue import places
from uni_agent.config.schema import json_schema, schema_text

VALIDATOR = cast("Any", Draft202012Validator(json_schema(Pipeline)))


def test_the_schema_is_a_schema_and_its_text_is_stable() -> None:
    Draft202012Validator.check_schema(json.loads(schema_text(Pipeline)))
    assert schema_text(Pipeline) == schema_text(Pipeline)


def test_attribute_docstrings_are_descriptions() -> None:
    assert json_schema(Pipeline)["$defs"]["Interaction"]["properties"]["max_turns"]["description"] == (
        "Turns the model gets."
    )


@pytest.mark.parametrize(
    "layer",
    [
        {"model": {"type": "api"}},
        {"extends": "x.yaml"},
        {"extends": ["x.yaml"], "interaction": {"max_turns": 3}},
        {"deployment": {"image": "x"}},
        {"model": {"type": "package.module:Class", "options": {"a": 1}}},
    ],
)
def test_a_layer_is_valid(layer: dict[str, Any]) -> None:
    VALIDATOR.validate(layer)


@pytest.mark.parametrize(
    "layer",
    [
        {"modle": {}},
        {"model": {"type": "apy"}},
        {"interaction": {"max_turns": "x"}},
        {"interaction": {"max_turns": 0}},
        {"deployment": {"type": "host", "image": "x"}},
        {"extends": 3},
    ],
)
def test_a_mistake_that_a_file_shows_is_invalid(layer: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(layer)


def test_the_catalogue_names_every_part_of_every_union() -> None:
    found = {place.path: [choice.name for choice in place.choices] for place in places(Pipeline)}
    assert found["model"] == ["api", "tokens", "package.module:Class"]
    assert found["model.engine"] == ["a", "b"]
    assert found["model.parser"] == ["hermes", "xml"]
    assert found["tools[]"] == ["bash", "finish"]
    assert found["agent"] == ["loop"]
    summaries = {choice.name: choice for place in places(Pipeline) for choice in place.choices}
    assert summaries["host"].summary == "This machine itself."
    assert summaries["tokens"].options == ("engine", "parser")
