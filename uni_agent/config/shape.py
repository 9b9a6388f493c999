"""What the schema allows at one place: read from the annotations of the configuration classes."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, Union, get_args, get_origin

from pydantic import BaseModel, Discriminator, SecretBytes, SecretStr, Tag
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

from uni_agent.config.nodes import Leaf, Node, Table, lower


class Part(NamedTuple):
    """A model that may stand at a place; `tag` is its name in a discriminated union."""

    tag: str | None
    model: type[BaseModel]


@dataclass(frozen=True, slots=True)
class Shape:
    """What may stand at one place.

    `items` and `values` are the annotations of list items and of the values of free mappings. `words`, `numbers` and
    `truths` say which scalars are welcome; `anything` that the schema does not say. `labelled`: pydantic's error
    locations name the branch of a plain union here.
    """

    parts: tuple[Part, ...] = ()
    discriminator: str | Callable[[Any], Any] | None = None
    items: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()
    choices: tuple[Any, ...] = ()
    words: bool = False
    numbers: bool = False
    truths: bool = False
    anything: bool = False
    labelled: bool = False

    @property
    def words_only(self) -> bool:
        """Whether every scalar here is a string."""
        return self.words and not (self.numbers or self.truths or self.anything)


NOTHING = Shape()
ANYTHING = Shape(anything=True, items=(Any,), values=(Any,))
_SCALARS: tuple[tuple[tuple[type, ...], Shape], ...] = (
    ((bool,), Shape(truths=True)),
    ((str, Path, bytes, SecretStr, SecretBytes), Shape(words=True)),
    ((int, float), Shape(numbers=True)),
)
_LISTS = (list, tuple, set, frozenset, Sequence, Iterable)
_MAPPINGS = (dict, Mapping)


def model_shape(model: type[BaseModel]) -> Shape:
    """The shape of a place where `model` stands."""
    return Shape(parts=(Part(None, model),))


def field_shape(info: FieldInfo) -> Shape:
    """The shape of a field's place."""
    shape = shape_of(info.annotation, tuple(info.metadata))
    if info.discriminator is not None and shape.discriminator is None:
        shape = replace(shape, discriminator=_key(info.discriminator), labelled=False)
    return shape


def shape_of(annotation: Any, metadata: tuple[Any, ...] = ()) -> Shape:
    """The shape that `annotation` describes; `ANYTHING` for what is not understood."""
    annotation, metadata = _unwrapped(annotation, metadata)
    origin = get_origin(annotation)
    if origin in {Union, types.UnionType}:
        return _union(annotation, metadata)
    if origin is Literal:
        return _literal(get_args(annotation))
    if origin in _LISTS or annotation in _LISTS:
        arguments = tuple(item for item in get_args(annotation) if item is not Ellipsis)
        return Shape(items=arguments or (Any,))
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return Shape(values=get_args(annotation)[1:] or (Any,))
    return _plain(annotation, metadata)


def _plain(annotation: Any, metadata: tuple[Any, ...]) -> Shape:
    if annotation is None or annotation is type(None):
        return NOTHING
    if not isinstance(annotation, type):
        return ANYTHING
    if issubclass(annotation, BaseModel):
        tag = next((item.tag for item in metadata if isinstance(item, Tag)), None)
        return Shape(parts=(Part(tag, annotation),), discriminator=_marked(metadata))
    if issubclass(annotation, enum.Enum):
        return _literal(tuple(member.value for member in annotation))
    for kinds, shape in _SCALARS:
        if issubclass(annotation, kinds):
            return shape
    return ANYTHING


def _literal(choices: tuple[Any, ...]) -> Shape:
    return Shape(
        choices=choices,
        words=any(isinstance(item, (str, enum.Enum)) for item in choices),
        truths=any(isinstance(item, bool) for item in choices),
        numbers=any(isinstance(item, (int, float)) and not isinstance(item, bool) for item in choices),
    )


def _union(annotation: Any, metadata: tuple[Any, ...]) -> Shape:
    branches = [item for item in get_args(annotation) if item is not type(None)]
    shape = join([shape_of(item) for item in branches])
    mark = _marked(metadata)
    if mark is not None:
        return replace(shape, discriminator=mark, labelled=False)
    return replace(shape, labelled=shape.labelled or len(branches) > 1)


def join(shapes: Sequence[Shape]) -> Shape:
    """What may stand where any of `shapes` may; `NOTHING` for none."""
    return Shape(
        parts=tuple(part for shape in shapes for part in shape.parts),
        discriminator=next((shape.discriminator for shape in shapes if shape.discriminator), None),
        items=tuple(item for shape in shapes for item in shape.items),
        values=tuple(item for shape in shapes for item in shape.values),
        choices=tuple(item for shape in shapes for item in shape.choices),
        words=any(shape.words for shape in shapes),
        numbers=any(shape.numbers for shape in shapes),
        truths=any(shape.truths for shape in shapes),
        anything=any(shape.anything for shape in shapes),
        labelled=any(shape.labelled for shape in shapes),
    )


def fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of `model` by the key that a file uses."""
    return {info.alias or name: info for name, info in model.model_fields.items()}


def select(shape: Shape, node: Node | None) -> list[type[BaseModel]]:
    """The models that `node` may be: the one its tag names, all of them when it names none."""
    models = [part.model for part in shape.parts]
    if len(models) < 2 or not isinstance(node, Table):
        return models
    if callable(shape.discriminator):
        tag = shape.discriminator({key: _raw(item) for key, item in node.entries.items()})
        chosen = [part.model for part in shape.parts if part.tag == tag]
    else:
        key = shape.discriminator or "type"
        stated = node.entries.get(key)
        tag = _raw(stated) if stated is not None else None
        chosen = [model for model in models if tag in tags_of(model, key)]
    return chosen or models


def tags_of(model: type[BaseModel], key: str = "type") -> tuple[Any, ...]:
    """The values that `key` of `model` may have, empty when it is not a Literal."""
    info = fields(model).get(key)
    return () if info is None else field_shape(info).choices


def child(shape: Shape, step: str | int, node: Node | None = None) -> Shape | None:
    """The shape one step below `shape`, where `node` stands; None when nothing may be there."""
    if isinstance(step, str):
        infos = [fields(model)[step] for model in select(shape, node) if step in fields(model)]
        if infos:
            return join([field_shape(info) for info in infos])
    inner = shape.values if isinstance(step, str) else shape.items
    return join([shape_of(item) for item in inner]) if inner else None


def default_of(info: FieldInfo) -> Any:
    """The default of a field; None where it has none that can be had without other fields."""
    if info.is_required() or (info.default_factory is not None and info.default_factory_takes_validated_data):
        return None
    return info.get_default(call_default_factory=True)


def _raw(node: Node) -> Any:
    if isinstance(node, Leaf):
        return node.text if node.text is not None and node.value is not None else node.value
    return lower(node)


def _unwrapped(annotation: Any, metadata: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """`annotation` without aliases, new types and `Annotated`, and all that was annotated."""
    while True:
        if get_origin(annotation) is Annotated:
            inner, *more = get_args(annotation)
            annotation, metadata = inner, (*more, *metadata)
        elif isinstance(annotation, TypeAliasType):
            annotation = annotation.__value__
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        else:
            return annotation, metadata


def _marked(metadata: tuple[Any, ...]) -> str | Callable[[Any], Any] | None:
    """The discriminator among what a place was annotated with."""
    return next((_key(item) for item in metadata if isinstance(item, (Discriminator, FieldInfo))), None)


def _key(mark: Any) -> str | Callable[[Any], Any] | None:
    while isinstance(mark, (Discriminator, FieldInfo)):
        mark = mark.discriminator
    return mark if isinstance(mark, str) or callable(mark) else None
