"""verl on machines without an accelerator: real GRPO in real processes, small.

`register` adds to verl's registries a platform `cpu`, FSDP2 engines for it, the rollout engine `uni_agent_cpu` (our
embedded engine) and the checkpoint engine `uni_agent_ray`. `environment` and `overrides` are what a run needs beside
that. No code of verl is replaced.
"""

from __future__ import annotations

from uni_agent.training.cpu.registration import register, registered
from uni_agent.training.cpu.settings import environment, overrides

__all__ = ["environment", "overrides", "register", "registered"]
