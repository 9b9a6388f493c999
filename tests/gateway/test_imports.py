"""What the core of the gateway costs to import: neither torch nor a web framework, nor Ray."""

from __future__ import annotations

import subprocess
import sys

HEAVY = (
    "torch",
    "transformers",
    "aiohttp",
    "litestar",
    "starlette",
    "fastapi",
    "uvicorn",
    "flask",
    "django",
    "ray",
    "renderers",
)
CORE = (
    "uni_agent.gateway",
    "uni_agent.gateway.archive",
    "uni_agent.gateway.node",
    "uni_agent.gateway.sessions",
    "uni_agent.gateway.turns",
    "uni_agent.gateway.rollout_gateway",
    "uni_agent.gateway.protocols",
    "uni_agent.gateway.app_config",
)


def loaded_by(statement: str) -> set[str]:
    """Those of HEAVY that a new interpreter has after `statement`."""
    code = f"{statement}; import sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_core_imports_neither_torch_nor_a_web_framework() -> None:
    assert loaded_by(f"import {', '.join(CORE)}; from uni_agent.gateway import *") == set()


def test_the_ray_form_loads_ray_only_when_it_is_used() -> None:
    assert loaded_by("import uni_agent.gateway.ray") == set()


def test_the_check_sees_what_is_loaded() -> None:
    assert loaded_by("import uni_agent.gateway.http.server") == {"aiohttp"}
