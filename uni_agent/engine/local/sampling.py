"""From logits to one sampled token per row.

The logprob of a token is `log_softmax(logits / temperature)`: the policy that reinforcement learning re-scores. top_k,
top_p and min_p only limit which token may be drawn and do not change it. Temperature 0 (below 1e-5) takes the likeliest
token and reports its logprob at temperature 1. A repetition penalty changes the logits first, so with one a re-score
differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from uni_agent.engine.base import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """How one row is sampled. `seen` are all ids of the sequence so far; only a repetition penalty looks at them."""

    params: SamplingParams
    generator: torch.Generator
    seen: Sequence[int] = ()


def generator_for(seed: int) -> torch.Generator:
    """A generator of its own for each request: what else is in the batch cannot change its draws."""
    return torch.Generator().manual_seed(seed % 2**63)


def sample(logits: torch.Tensor, draws: Sequence[Draw]) -> tuple[list[int], list[float]]:
    """One id and its logprob for each row of `logits` [n, vocabulary]. A logprob is NaN where the logits were."""
    logits = logits.detach().to("cpu", torch.float32)
    if any(draw.params.repetition_penalty != 1.0 for draw in draws):
        logits = torch.stack([_penalised(row, draw) for row, draw in zip(logits, draws, strict=True)])
    temperatures = torch.tensor([1.0 if _greedy(draw.params) else draw.params.temperature for draw in draws])[:, None]
    logprobs = torch.log_softmax(logits / temperatures, dim=-1)
    # Inverse transform in double precision, one number per row: a difference in the last bit of a logit, as
    # another batch makes it, changes the token only in the rarest case.
    weights = logprobs.double().exp()
    for i, draw in enumerate(draws):
        if _truncates(draw.params):
            weights[i] = _truncated(weights[i], draw.params)
    cumulative = weights.cumsum(dim=-1)
    uniform = torch.stack([torch.rand((), generator=draw.generator, dtype=torch.float64) for draw in draws])
    chosen = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    chosen = chosen.clamp_max(logits.shape[-1] - 1)[:, 0]
    greedy = torch.tensor([_greedy(draw.params) for draw in draws])
    # A draw past the last weight (rounding) lands on a token that may have been cut off: take the likeliest instead.
    cut_off = weights.gather(1, chosen[:, None])[:, 0] <= 0
    chosen = torch.where(greedy | cut_off, weights.argmax(dim=-1), chosen)
    picked = logprobs.gather(1, chosen[:, None])[:, 0]
    return [int(token) for token in chosen], [float(logprob) for logprob in picked]


def _greedy(params: SamplingParams) -> bool:
    return params.temperature < 1e-5  # dividing logits by less overflows


def _truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _truncated(weights: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """`weights` [vocabulary] with what may not be drawn set to 0; the likeliest token always stays."""
    ordered, order = weights.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if params.top_k > 0:
        keep[params.top_k :] = False
    if params.top_p < 1.0:
        kept = ordered * keep
        before = kept.cumsum(dim=0) - kept
        keep &= before < params.top_p * kept.sum()
    if params.min_p > 0.0:
        keep &= ordered >= params.min_p * ordered[0]
    keep[0] = True
    out = torch.zeros_like(weights)
    out[order] = ordered * keep
    return out


def _penalised(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    penalty = draw.params.repetition_penalty
    if penalty == 1.0:
        return logits
    seen = torch.tensor(sorted(set(draw.seen)), dtype=torch.long)
    values = logits[seen]
    out = logits.clone()
    out[seen] = torch.where(values > 0, values / penalty, values * penalty)
    return out
