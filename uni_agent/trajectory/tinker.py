"""Trajectories as Tinker's training API takes them. Checked against tinker 0.38."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from uni_agent.optional import load
from uni_agent.trajectory.trajectory import Trajectory

_WEIGHTED = ("target_tokens", "weights")
_POLICY = ("target_tokens", "logprobs", "advantages")


def datum_fields(trajectory: Trajectory, *, advantage: float | Sequence[float] = 0.0) -> dict[str, Any]:
    """`{model_input: {chunks}, loss_fn_inputs}` as plain data, in which position i predicts the token after it.

    All arrays have P + T - 1 items: `target_tokens` is the chain without its first token, the model's input the chain
    without its last. `weights` is the mask, `logprobs` those of the engine (0.0 for context; None when it gave none),
    `advantages` 0.0 for context, elsewhere `advantage`, which is one number or one for each response token.

    Raises ValueError for images, whose place in the chain is not known, for advantages of another length, and when the
    first token of the chain is to be trained, which nothing predicts.
    """
    t = trajectory
    if t.multi_modal_data:
        raise ValueError(f"trajectory {t.id!r}: one with images cannot be written as a Tinker datum")
    if not t.prompt_ids and (not t.response_ids or t.response_mask[0]):
        raise ValueError(f"trajectory {t.id!r}: has no prompt, so nothing predicts its first token")
    context = len(t.prompt_ids) - 1
    ids = t.ids
    values = [advantage] * len(t.response_ids) if isinstance(advantage, int | float) else list(advantage)
    if len(values) != len(t.response_ids):
        raise ValueError(f"trajectory {t.id!r}: {len(values)} advantages for {len(t.response_ids)} response tokens")
    masked = [float(value) if mask else 0.0 for value, mask in zip(values, t.response_mask, strict=True)]
    logprobs = None if t.response_logprobs is None else _behind(context, t.response_logprobs)
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": ids[:-1]}]},
        "loss_fn_inputs": {
            "target_tokens": ids[1:],
            "weights": _behind(context, [float(mask) for mask in t.response_mask]),
            "logprobs": logprobs,
            "advantages": _behind(context, masked),
        },
    }


def datum(trajectory: Trajectory, *, loss_fn: str, advantage: float | Sequence[float] = 0.0) -> Any:
    """The SDK's Datum with the inputs that `loss_fn` takes.

    `cross_entropy` takes target_tokens and weights; `importance_sampling`, `ppo` and the other policy losses take
    target_tokens, logprobs and advantages. Raises ValueError for a policy loss without logprobs, and what
    `datum_fields` raises; MissingExtraError when the SDK is not installed.
    """
    types = load("tinker", extra="tinker", needed_for="a Datum").types
    fields = datum_fields(trajectory, advantage=advantage)
    inputs = loss_inputs(fields, loss_fn)
    tokens = fields["model_input"]["chunks"][0]["tokens"]
    return types.Datum(model_input=types.ModelInput.from_ints(tokens), loss_fn_inputs=inputs)


def loss_inputs(fields: dict[str, Any], loss_fn: str) -> dict[str, list[Any]]:
    """Of `datum_fields`' result, what `loss_fn` takes. Raises ValueError when it needs logprobs and has none."""
    names = _WEIGHTED if loss_fn == "cross_entropy" else _POLICY
    inputs = {name: fields["loss_fn_inputs"][name] for name in names}
    if any(value is None for value in inputs.values()):
        raise ValueError(f"{loss_fn} needs logprobs, and the engine gave none")
    return inputs


def _behind(context: int, values: list[float]) -> list[float]:
    """`values` of the response as targets: the prompt's first token is never one."""
    return [0.0] * context + values if context >= 0 else values[1:]
