"""`search`: passages from a retrieval server, and the passages of pages."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from uni_agent.tools.base import AbstractTool, Arguments, ToolScript
from uni_agent.tools.endpoint import EndpointOptions, origin
from uni_agent.tools.program import call_program, load_program


def _as_list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        decoded = json.loads(value)
    except ValueError:
        decoded = None
    return decoded if isinstance(decoded, list) else [value]  # pyright: ignore[reportUnknownVariableType]


Texts = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_as_list), Field(min_length=1)]
"""A list of texts; a single text counts as a list of one, unless it is a list written as JSON."""


class SearchArguments(Arguments):
    """Arguments of `search`."""

    command: Literal["search", "crawl"] = "search"
    """`search` finds passages for queries; `crawl` fetches what is known of the pages in `url_list`."""
    query_list: Annotated[Texts | None, Field(validation_alias=AliasChoices("query_list", "query", "queries"))] = None
    """Required by `search`: the queries, each a full question or phrase."""
    url_list: Annotated[Texts | None, Field(validation_alias=AliasChoices("url_list", "url", "urls"))] = None
    """Required by `crawl`: the addresses of the pages."""
    topk: Annotated[int, Field(ge=1, le=50)] = 3
    """How many passages to give for each query."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        name = "query_list" if self.command == "search" else "url_list"
        if getattr(self, name) is None:
            raise ValueError(f"the command `{self.command}` needs the parameter `{name}`")
        return self


class Search(AbstractTool):
    """Asks a server with LocalWiki's interface, from inside the sandbox.

    `path` takes `POST {queries, topk, return_scores}` and gives `{result: [[{document, score}]]}`; `crawl_path` takes
    `POST {urls}` and gives `{results: [{url, texts}]}`. `crawl_path` None offers no `crawl`.
    """

    name = "search"
    description = """
        Search a knowledge base.
        * `search` gives, for each query of `query_list`, the `topk` passages that fit it best.
        * `crawl` gives the passages of each page of `url_list`.
    """
    Arguments = SearchArguments

    def __init__(
        self,
        base_url: str,
        *,
        path: str = "/retrieve",
        crawl_path: str | None = "/crawl",
        options: EndpointOptions | None = None,
    ) -> None:
        self.base_url = base_url
        self.path = path
        self.crawl_path = crawl_path
        self.options = options or EndpointOptions()

    def command(self, arguments: SearchArguments) -> str:
        """The call of the search program. Raises ValueError for `crawl` where it is not offered."""
        if arguments.command == "crawl" and self.crawl_path is None:
            raise ValueError("the command `crawl` is not available here; use `search`")
        options = {
            "base_url": self.base_url,
            "path": self.path,
            "crawl_path": self.crawl_path,
            **self.options.to_dict(),
        }
        return call_program(self.name, {**arguments.model_dump(), "options": options})

    def scripts(self) -> list[ToolScript]:
        """The search program."""
        return [load_program(self.name, "common.py", "endpoint.py", "search.py")]

    def endpoints(self) -> list[str]:
        """The server's origin."""
        return [origin(self.base_url)]
