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

    def empty(self, rows: int | None, tokens: int) -> torch.Tensor:
        """Zeros for `rows` sequences of `tokens` tokens; without the dimension of rows when `rows` is None."""
        middle = () if rows is None else (rows,)
        size = (self.layers, 2, *middle, self.heads, tokens, self.head_size)
        return torch.zeros(size, dtype=self.dtype, device=self.device)


class PrefillKv:
    """One sequence whose tokens [`start`, `end`) are being computed; those before are in `tensor` already."""

    def __init__(self, tensor: torch.Tensor, start: int, end: int) -> None:
        self.tensor = tensor
        self._start = start
        self._end = end

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store the new keys and values of `layer`; all of them up to `end` come back, with a batch of one."""
        both = self.tensor[layer]
        both[0, :, self._start : self._end] = keys[0]
        both[1, :, self._start : self._end] = values[0]
        return both[0, None, :, : self._end], both[1, None, :, : self._end]

    def get_seq_length(self, *_: Any) -> int:
        """Tokens computed before this pass."""
        return self._start

    def mask(self) -> torch.Tensor:
        """Which stored token each new one may see, [1, 1, new, stored]."""
        stored = torch.arange(self._end, device=self.tensor.device)
        new = torch.arange(self._start, self._end, device=self.tensor.device)
        return (stored <= new[:, None])[None, None]


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
