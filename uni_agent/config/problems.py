"""What is said to the user about a faulty configuration: one form, every fault at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from uni_agent.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault: `where` it was written (`file:line`, `-o key=value`), its dotted `path` (or ""), what is wrong."""

    where: str
    path: str
    message: str

    def __str__(self) -> str:
        told = f"{self.path}: {self.message}" if self.path else self.message
        return f"{self.where}  {told}" if self.where else told


class ConfigReport(ConfigError):
    """A configuration that cannot be used; `problems` in the order in which they were written, never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigReport], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def fault(where: object, message: str, path: str = "") -> ConfigReport:
    """A report of a single fault."""
    return ConfigReport([Problem(str(where), path, message)])
