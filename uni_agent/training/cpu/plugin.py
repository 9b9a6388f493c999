"""`VERL_USE_EXTERNAL_MODULES=uni_agent.training.cpu.plugin`: the CPU's parts and nothing else, for a plain verl run."""

from __future__ import annotations

from uni_agent.training.cpu.registration import register

register()
