"""The base class of every configuration, and what a seam's discriminated union is made of."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, SerializationInfo

from uni_agent.errors import ConfigError, boundary


class Config(BaseModel):
    """Frozen, closed, documented: unknown keys are errors, attribute docstrings are help and schema descriptions."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=False)


class SourcedStr(str):
    """A YAML string that remembers the folder of the file it stands in (`base`); made by the loader."""

    base: Path

    __slots__ = ("base",)

    @classmethod
    def at(cls, text: str, base: Path) -> SourcedStr:
        """`text` as written in a file of the folder `base`."""
        self = cls(text)
        self.base = base
        return self


def _encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _resolve_path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if "\0" in value or not _encodable(value):
        raise ValueError(f"{value!r} holds a character that no file name can have")
    if value.startswith("pkg://"):
        package, _, rest = value.removeprefix("pkg://").partition("/")
        try:
            return Path(str(resources.files(package).joinpath(rest)))
        except (ImportError, TypeError, ValueError) as error:  # missing, a single module, no name at all
            raise ValueError(f"no installed package {package!r}") from error
    try:
        path = Path(value).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{value!r}: there is no such user") from error
    if isinstance(value, SourcedStr) and not path.is_absolute():
        return value.base / path
    return path


ABSOLUTE_PATHS = "absolute paths"
"""Context of a dump that must mean the same from any folder (`model_dump(context=ABSOLUTE_PATHS)`)."""


def _dumped(path: Path, info: SerializationInfo) -> str:
    return str(path.absolute() if info.context == ABSOLUTE_PATHS else path)


ConfigPath = Annotated[
    Path, BeforeValidator(_resolve_path), PlainSerializer(_dumped, return_type=str, when_used="json")
]
"""A path: `~` is expanded, `pkg://package/rest` lies in an installed package, and what is written relative in a YAML
file refers to the folder of that file (on the command line: to the current folder)."""


class PluginConfig(Config):
    """A part that this package does not ship: `type: package.module:Class`, built as `Class(**options)`."""

    type: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Where the class is, as `package.module:Class`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the class."""


def part_tag(value: Any) -> str:
    """The union member that a part's raw config selects: its `type`, or `plugin` when that names a class.

    For `pydantic.Discriminator`; a member model gives its own tag. A missing `type` gives "".
    """
    mapping = cast("dict[str, Any]", value)
    raw = mapping.get("type", "") if isinstance(value, dict) else getattr(value, "type", "")
    return "plugin" if ":" in str(raw) else str(raw)


def load_object(reference: str, expected: type | None = None) -> Any:
    """The object that `package.module:Name` names.

    Raises ConfigError when the module does not import, has no such name, or the object is no subclass of `expected`.
    """
    module_name, _, name = reference.partition(":")
    with boundary(ConfigError, f"{reference!r}: cannot import {module_name!r}"):
        module = importlib.import_module(module_name)
    try:
        found = getattr(module, name)
    except AttributeError as error:
        raise ConfigError(f"{reference!r}: module {module_name!r} has no {name!r}") from error
    if expected is not None and not (isinstance(found, type) and issubclass(found, expected)):
        raise ConfigError(f"{reference!r} is not a subclass of {expected.__module__}.{expected.__qualname__}")
    return found


def build_object(reference: str, options: Mapping[str, Any], expected: type | None = None) -> Any:
    """An instance `Class(**options)` of the class that `package.module:Class` names.

    Raises ConfigError as `load_object` does, and for whatever the class raises: options that do not fit, mostly.
    """
    cls = load_object(reference, expected)
    with boundary(ConfigError, f"{reference!r} cannot be built with options {dict(options)!r}"):
        return cls(**options)
