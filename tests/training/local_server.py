"""verl's client over an engine in this process: what its servers answer, without Ray."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from uni_agent.engine.base import SamplingParams
from uni_agent.engine.embedded import EmbeddedBackend

POLICY = Path(__file__).parents[2] / "uni_agent" / "assets" / "quickstart_policy"


class LocalClient:
    """Answers as verl's `LLMServerClient` does, from the embedded engine at `step`."""

    def __init__(self, backend: EmbeddedBackend, step: int = 0) -> None:
        self.backend = backend
        self.step = step
        self.calls: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], image_data: Any = None
    ) -> Any:
        replica: Any = importlib.import_module("verl.workers.rollout.replica")
        assert image_data is None
        self.calls.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params})
        output = await self.backend.generate(
            request_id,
            prompt_ids,
            SamplingParams(
                temperature=sampling_params["temperature"],
                top_p=sampling_params["top_p"],
                top_k=sampling_params["top_k"],
                max_tokens=sampling_params["max_tokens"],
                seed=sampling_params.get("seed"),
                stop_token_ids=tuple(sampling_params.get("stop_token_ids", ())),
            ),
        )
        steps = {"global_steps": self.step, "min_global_steps": self.step, "max_global_steps": self.step}
        return replica.TokenOutput(
            token_ids=output.token_ids,
            log_probs=output.logprobs,
            stop_reason="completed" if output.finish_reason != "abort" else "aborted",
            num_preempted=0,
            extra_fields=steps,
        )
