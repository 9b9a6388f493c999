"""Keys and values of sequences of unequal length, so that any mix of requests shares one decode step.

Every tensor is [layers, 2, ..., kv heads, tokens, head size]; index 1 is 0 for keys and 1 for values. The two caches
stand in for the `Cache` of transformers: the model only calls `update`, as it is given positions and a finished mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

_CHUNK = 64  # capacities are multiples of this many tokens


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one token leaves in the cache."""

    layers: int
    heads: int
    head_size: int
    dtype: torch.dtype
    device: torch.device

    def empty(self, rows: int, tokens: int) -> torch.Tensor:
        """Zeros for `rows` sequences of `tokens` tokens."""
        size = (self.layers, 2, rows, self.heads, tokens, self.head_size)
        return torch.zeros(size, dtype=self.dtype, device=self.device)


class PrefillKv:
    """Prompts of unequal length of which row `b` is computed from token `starts[b]` to before `ends[b]`.

    The rows end in the same column of the input, so that their last tokens' logits stand together; what pads the front
    of the shorter ones is written to the last token place of `tensor`, which no real token sees.
    """

    def __init__(self, tensor: torch.Tensor, starts: list[int], ends: list[int]) -> None:
        self._tensor = tensor
        self.width = max(end - start for start, end in zip(starts, ends, strict=True))
        self._seen = max(starts)
        device, spare = tensor.device, tensor.shape[4] - 1
        first, last = torch.tensor(starts, device=device), torch.tensor(ends, device=device)
        columns = last[:, None] - self.width + torch.arange(self.width, device=device)
        real = columns >= first[:, None]
        self.positions = columns.where(real, 0)
        self._columns = columns.where(real, spare)
        self._rows = torch.arange(len(starts), device=device)[:, None]
        places = torch.arange(spare + 1, device=device)
        # A padding token sees the spare place alone: it must see something, or its row of the softmax is NaN.
        visible = torch.where(real[..., None], places <= self.positions[..., None], places == spare)
        self.mask = visible[:, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values of `layer`; the whole tensor's come back."""
        both = self._tensor[layer]
        both[0][self._rows, :, self._columns] = keys.transpose(1, 2)
        both[1][self._rows, :, self._columns] = values.transpose(1, 2)
        return both[0], both[1]

    def get_seq_length(self, *_: Any) -> int:
        """Tokens computed before this pass, in the row that has most."""
        return self._seen


class BatchKv:
    """The sequences that are decoded together: rows 0 to n-1, without gaps.

    A row's tokens lie at their own positions from 0; what lies behind a row's length is masked, never read as data.
    """

    def __init__(self, shape: KvShape) -> None:
        self._shape = shape
        self._tensor = shape.empty(0, 0)
        self.lengths: list[int] = []
        self._rows = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)
        self._longest = 0

    def join(self, sequence: torch.Tensor) -> int:
        """Add a sequence [layers, 2, heads, tokens, size]; its row, always the last one."""
        row, length = len(self.lengths), sequence.shape[3]
        self._reserve(row + 1, length + 1)
        self._tensor[:, :, row, :, :length] = sequence
        self.lengths.append(length)
        return row

    def leave(self, row: int) -> torch.Tensor:
        """Take a sequence out, as `join` takes them. The last row moves into its place."""
        out = self._tensor[:, :, row, :, : self.lengths[row]].clone()
        last = len(self.lengths) - 1
        if row != last:
            length = self.lengths[last]
            self._tensor[:, :, row, :, :length] = self._tensor[:, :, last, :, :length]
            self.lengths[row] = length
        self.lengths.pop()
        return out

    def begin_step(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Prepare for one new token in each row: their positions [n, 1] and the mask [n, 1, 1, longest]."""
        self._longest = max(self.lengths) + 1
        self._reserve(len(self.lengths), self._longest)
        device = self._shape.device
        self._rows = torch.arange(len(self.lengths), device=device)
        self._positions = torch.tensor(self.lengths, device=device)
        mask = torch.arange(self._longest, device=device) <= self._positions[:, None]
        return self._positions[:, None], mask[:, None, None]

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one new key and value per row; all of them up to the longest row come back."""
        both = self._tensor[layer]
        both[0][self._rows, :, self._positions] = keys[:, :, 0]
        both[1][self._rows, :, self._positions] = values[:, :, 0]
        rows = len(self.lengths)
        return both[0, :rows, :, : self._longest], both[1, :rows, :, : self._longest]

    def get_seq_length(self, *_: Any) -> int:
        """Tokens in the longest row before this step."""
        return self._longest - 1

    def end_step(self) -> None:
        """Count the new tokens. Without this call the step leaves no trace."""
        self.lengths = [length + 1 for length in self.lengths]

    def _reserve(self, rows: int, tokens: int) -> None:
        have_rows, have_tokens = self._tensor.shape[2], self._tensor.shape[4]
        if rows <= have_rows and tokens <= have_tokens:
            return
        # Doubling rows keeps joining cheap; tokens grow by a quarter, because every row pays for the longest.
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows, 4)
        tokens = have_tokens if tokens <= have_tokens else _rounded(max(tokens, have_tokens * 5 // 4))
        grown = self._shape.empty(rows, tokens)
        used = len(self.lengths)
        grown[:, :, :used, :, :have_tokens] = self._tensor[:, :, :used]
        self._tensor = grown


def _rounded(tokens: int) -> int:
    return -(-tokens // _CHUNK) * _CHUNK
