"""What verl 0.9.1 does with an AgentLoopOutput, restated for machines on which verl is not installed.

Field names, types, defaults and the shapes of `as_dict` follow `verl/experimental/agent_loop/agent_loop.py`. Where verl
is installed the tests hold this restatement against the real classes.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel


class AgentLoopMetrics(BaseModel):
    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


class AgentLoopOutput(BaseModel):
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float] | None = None
    routed_experts: Any | None = None
    multi_modal_data: dict[str, Any] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    metrics: AgentLoopMetrics
    extra_fields: dict[str, Any] = {}
    mm_processor_kwargs: dict[str, Any] | None = None
    mm_processor_output: list[dict[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Tensors by verl's names; a field that was not set does not exist, experts span the whole sequence."""
        import torch

        out = self.model_dump(exclude_unset=True)
        for name, key in (("prompts", "prompt_ids"), ("responses", "response_ids"), ("response_mask", "response_mask")):
            out[name] = torch.tensor(out.pop(key), dtype=torch.int64)
        logprobs, experts, reward = (
            out.pop(key, None) for key in ("response_logprobs", "routed_experts", "reward_score")
        )
        if logprobs is not None:
            out["rollout_log_probs"] = torch.tensor(logprobs, dtype=torch.float32)
        if experts is not None:
            rows = torch.tensor(experts, dtype=torch.int16)
            whole = rows.new_zeros((len(out["prompts"]) + len(out["responses"]), *rows.shape[1:]))
            whole[: len(rows)] = rows[: len(whole)]
            out["routed_experts"] = whole
        if reward is not None:
            out["rm_scores"] = torch.zeros_like(out["response_mask"], dtype=torch.float32)
            out["rm_scores"][-1] = reward
        return out
