"""Run language-model agents in sandboxes and train them with reinforcement learning, from one YAML."""

from importlib.metadata import PackageNotFoundError, version

from uni_agent.errors import UniAgentError
from uni_agent.types import ExitReason, Message, RewardResult, StepStatus, Task, ToolCall, ToolResult

try:
    __version__ = version("uni-agent")
except PackageNotFoundError:  # imported from a checkout that was never installed (a Ray working directory)
    __version__ = "0+checkout"

__all__ = [
    "ExitReason",
    "Message",
    "RewardResult",
    "StepStatus",
    "Task",
    "ToolCall",
    "ToolResult",
    "UniAgentError",
    "__version__",
]
