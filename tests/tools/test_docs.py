"""The example of docs/tools.md works as it is printed."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tests.tools.conftest import Box
from uni_agent.tools import BUILTIN_TOOLS, ToolConfig, Toolset

DOCS = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()


def test_the_documents_own_tool_works(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    module = types.ModuleType("documented_tool")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(source, "docs/tools.md", "exec"), module.__dict__)
    raw = {"type": "documented_tool:WordCount", "options": {"limit": 5}}
    tool = TypeAdapter(ToolConfig).validate_python(raw).build()
    box.tools = Toolset([tool])
    box.install()
    ran = box.call("word_count", path=str(box.file("one two\n", "it's $(x).txt")))
    assert ran.out.split()[0] == "2"
    assert "description" in str(tool.schema())
    with pytest.raises(AssertionError, match="must not be under /proc"):
        box.command("word_count", {"path": "/proc/1"})


def test_every_builtin_tool_is_documented() -> None:
    assert all(f"| `{name}` |" in DOCS for name in BUILTIN_TOOLS)
