"""Tools: what the model may call, what is installed in the sandbox for it, and how a call becomes a command."""

if not __name__.startswith("uni_agent."):
    raise ImportError(f"import uni_agent.{__name__}")

from uni_agent.tools.base import AbstractTool, Arguments, ToolScript
from uni_agent.tools.config import BUILTIN_TOOLS, ToolConfig
from uni_agent.tools.schema import function_schema
from uni_agent.tools.toolset import BoundCall, Toolset

__all__ = [
    "BUILTIN_TOOLS",
    "AbstractTool",
    "Arguments",
    "BoundCall",
    "ToolConfig",
    "ToolScript",
    "Toolset",
    "function_schema",
]
