"""The graph is pure: no framework comes with it."""

from __future__ import annotations

import subprocess
import sys


def test_the_graph_imports_no_framework() -> None:
    code = (
        "import sys, uni_agent.tokens.graph\n"
        "heavy = {'torch', 'transformers', 'aiohttp', 'fastapi', 'starlette', 'uvicorn', 'httpx', 'openai', 'ray'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
