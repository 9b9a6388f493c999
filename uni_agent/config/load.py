"""A configuration from its layers: defaults < `extends:` files in order < the file < `-o key=value`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from pydantic import BaseModel, ValidationError

from uni_agent.config.base import ABSOLUTE_PATHS
from uni_agent.config.files import read_layers
from uni_agent.config.merge import merge_nodes
from uni_agent.config.nodes import Node, Origin, find, lift
from uni_agent.config.overrides import apply_overrides
from uni_agent.config.report import report
from uni_agent.config.shape import model_shape
from uni_agent.config.typed import Typing, complete

T = TypeVar("T")
ConfigT = TypeVar("ConfigT", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A configuration and how it came about.

    `data` is the whole of it, defaults included, as plain JSON data: paths absolute where a file stated them, secrets
    masked. Loading `data` again gives the same configuration. `digest` is the SHA-256 of `data`.
    """

    config: T
    data: dict[str, Any]
    digest: str
    root: Node

    def origin(self, path: Sequence[str | int]) -> str:
        """Where the value at `path` was stated: `file:line`, `-o key`, or `default`."""
        node = find(self.root, path)
        return node.origin.short if node is not None else "default"


def load_config(
    cls: type[ConfigT],
    path: str | Path,
    overrides: Sequence[str] = (),
    *,
    extra_layers: Sequence[tuple[str, Mapping[str, Any]]] = (),
) -> Loaded[ConfigT]:
    """The configuration in the file `path`, which may be `pkg://package/file`, under `overrides` (`key=value`).

    `extra_layers` are (label, data) and lie over everything else, the label being what error messages name.
    Raises ConfigReport, with every problem that was found.
    """
    shape = model_shape(cls)
    root: Node | None = None
    for layer in read_layers(path):
        root = layer if root is None else merge_nodes(complete(root, shape), layer)
    assert root is not None  # noqa: S101  (there is at least the file itself)
    root = apply_overrides(complete(root, shape), shape, overrides)
    for label, data in extra_layers:
        root = merge_nodes(complete(root, shape), lift(data, Origin("layer", label)))
    root = complete(root, shape)
    config = _validated(cls, root)
    data = plain_data(config)
    return Loaded(config, data, digest(data), root)


def from_data(cls: type[ConfigT], data: Mapping[str, Any], where: str = "", overrides: Sequence[str] = ()) -> ConfigT:
    """The configuration that plain data states, under `overrides` (`key=value`).

    Problems of the data name `where`. Raises ConfigReport.
    """
    shape = model_shape(cls)
    root = apply_overrides(complete(lift(data, Origin("layer", where)), shape), shape, overrides)
    return _validated(cls, complete(root, shape))


def override(config: ConfigT, overlay: Mapping[str, Any], where: str = "", *, folder: Path | None = None) -> ConfigT:
    """`config` with `overlay` merged over it by the rules of layers. Raises ConfigReport, which names `where`.

    Relative paths of `overlay` refer to `folder` (default: the current one).
    """
    shape = model_shape(type(config))
    below = lift(config, Origin("default", where))
    merged = merge_nodes(complete(below, shape), lift(overlay, Origin("layer", where, folder=folder)))
    return _validated(type(config), complete(merged, shape))


def plain_data(config: BaseModel) -> dict[str, Any]:
    """The whole of `config` as JSON data; secrets are masked."""
    return cast(
        "dict[str, Any]", json.loads(json.dumps(config.model_dump(mode="json", fallback=str, context=ABSOLUTE_PATHS)))
    )


def digest(data: Any) -> str:
    """The SHA-256 (hex) of the canonical JSON of `data`."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _validated(cls: type[ConfigT], root: Node) -> ConfigT:
    typing = Typing()
    data = typing.lower(root, model_shape(cls))
    try:
        config = cls.model_validate(data)
    except ValidationError as error:
        raise report(error, cls, root, typing.mistaken) from error
    if typing.mistaken:
        raise report(None, cls, root, typing.mistaken)
    return config
