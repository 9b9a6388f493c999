"""New weights for a loaded model: all of them fit, or none is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch

from uni_agent.errors import ModelError

_SHOWN = 5  # names in a message


def named(tensors: Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors by name. Raises ModelError for a name that comes twice."""
    if isinstance(tensors, Mapping):
        return dict(cast("Mapping[str, torch.Tensor]", tensors))
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors:
        if name in found:
            raise ModelError(f"the new weights name {name} twice")
        found[name] = tensor
    return found


def matched(module: Any, new: Mapping[str, torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of a tensor of `module` (a torch Module) and what is to be copied into it.

    `new` has the names of the module's `state_dict`. Of names that are tied to one tensor, one is enough; given
    several, they must hold the same. Raises ModelError, and has changed nothing, for what is missing, unexpected or of
    another shape.
    """
    own: dict[str, torch.Tensor] = module.state_dict()
    unexpected = sorted(set(new) - set(own))
    if unexpected:
        raise ModelError(f"the model has no weights named {_some(unexpected)}; nothing was changed")
    tied: dict[tuple[int, torch.Size], list[str]] = {}
    for name, tensor in own.items():
        tied.setdefault((tensor.data_ptr(), tensor.shape), []).append(name)
    groups = [[name for name in names if name in new] for names in tied.values()]
    missing = [names[0] for names, given in zip(tied.values(), groups, strict=True) if not given]
    if missing:
        raise ModelError(f"the new weights lack {_some(missing)}; nothing was changed")
    wrong = [
        f"{name} {list(tensor.shape)} instead of {list(own[name].shape)}"
        for name, tensor in new.items()
        if tensor.shape != own[name].shape
    ]
    if wrong:
        raise ModelError(f"the new weights have other shapes: {_some(wrong)}; nothing was changed")
    for first, *others in groups:
        for other in others:
            if not torch.equal(new[first], new[other]):
                raise ModelError(f"{first} and {other} are one tensor in the model and differ; nothing was changed")
    return [(own[given[0]], new[given[0]]) for given in groups]


def _some(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
