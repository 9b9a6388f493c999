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
    # Gumbel-max with noise of the row's own: another batch changes the last bits of the logits, and that changes the
    # token only when two perturbed scores are as near. Along a cumulative sum every token's bounds would move.
    scores = logprobs.double()
    for i, draw in enumerate(draws):
        if _greedy(draw.params):
            continue
        if _truncates(draw.params):
            scores[i] = scores[i].masked_fill(~_allowed(scores[i].exp(), draw.params), -torch.inf)
        noise = torch.empty(logits.shape[-1], dtype=torch.float64).exponential_(generator=draw.generator)
        scores[i] -= noise.clamp_min(1e-300).log()
    chosen = scores.argmax(dim=-1)
    picked = logprobs.gather(1, chosen[:, None])[:, 0]
    return [int(token) for token in chosen], [float(logprob) for logprob in picked]


def _greedy(params: SamplingParams) -> bool:
    return params.temperature < 1e-5  # dividing logits by less overflows


def _truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0


def _allowed(weights: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Which tokens of `weights` [vocabulary] may be drawn; the likeliest always may."""
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
    return torch.empty_like(keep).scatter_(0, order, keep)


def _penalised(logits: torch.Tensor, draw: Draw) -> torch.Tensor:
    penalty = draw.params.repetition_penalty
    if penalty == 1.0:
        return logits
    seen = torch.tensor(sorted(set(draw.seen)), dtype=torch.long)
    values = logits[seen]
    out = logits.clone()
    out[seen] = torch.where(values > 0, values / penalty, values * penalty)
    return out
