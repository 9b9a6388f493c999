"""`search_arxiv`: recent papers from arXiv."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from uni_agent.tools.base import AbstractTool, Arguments, ToolScript
from uni_agent.tools.endpoint import EndpointOptions, origin
from uni_agent.tools.program import call_program, load_program


class SearchArxivArguments(Arguments):
    """Arguments of `search_arxiv`."""

    query: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    """Words that a paper must contain, or a query in arXiv's syntax, e.g. `ti:"speculative decoding" AND cat:cs.CL`."""
    max_results: Annotated[int, Field(ge=1, le=100)] = 8
    """How many papers to give at most."""
    days: Annotated[int, Field(ge=0, le=36500)] = 180
    """Only papers of the last so many days; 0 for any age."""


class SearchArxiv(AbstractTool):
    """Asks arXiv's Atom interface, or a mirror of it, from inside the sandbox."""

    name = "search_arxiv"
    description = "Search arXiv for recent papers: title, date, authors, categories, address and abstract of each."
    Arguments = SearchArxivArguments

    def __init__(
        self,
        base_url: str = "https://export.arxiv.org",
        *,
        path: str = "/api/query",
        options: EndpointOptions | None = None,
    ) -> None:
        self.base_url = base_url
        self.path = path
        self.options = options or EndpointOptions(format="text")

    def command(self, arguments: SearchArxivArguments) -> str:
        """The call of the search program."""
        options = {"base_url": self.base_url, "path": self.path, **self.options.to_dict()}
        return call_program(self.name, {**arguments.model_dump(), "options": options})

    def scripts(self) -> list[ToolScript]:
        """The search program."""
        return [load_program(self.name, "common.py", "endpoint.py", "search_arxiv.py")]

    def endpoints(self) -> list[str]:
        """The server's origin."""
        return [origin(self.base_url)]
