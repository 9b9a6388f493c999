"""The `tools` of a pipeline: one config class for each tool, and their union."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from uni_agent.config.base import Config, PluginConfig, build_object, part_tag
from uni_agent.tools.base import AbstractTool
from uni_agent.tools.endpoint import EndpointOptions, origin
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.finish import Finish
from uni_agent.tools.search import Search
from uni_agent.tools.search_arxiv import SearchArxiv
from uni_agent.tools.str_replace_editor import StrReplaceEditor
from uni_agent.tools.submit import Submit


class BaseToolConfig(Config):
    """Base of every member of `ToolConfig`; members add `type: Literal[...]`, the tool's name."""

    @abstractmethod
    def build(self) -> AbstractTool:
        """The tool. Raises ConfigError for what the user can mend."""


class ExecuteBashConfig(BaseToolConfig):
    """The agent's shell."""

    type: Literal["execute_bash"] = "execute_bash"
    """Runs bash commands in one shell session."""

    def build(self) -> ExecuteBash:
        """The tool."""
        return ExecuteBash()


class StrReplaceEditorConfig(BaseToolConfig):
    """Views and edits files."""

    type: Literal["str_replace_editor"] = "str_replace_editor"
    """Views, creates and edits files, byte-exactly and with undo."""

    def build(self) -> StrReplaceEditor:
        """The tool."""
        return StrReplaceEditor()


class FinishConfig(BaseToolConfig):
    """Ends the episode with an answer."""

    type: Literal["finish"] = "finish"
    """Ends the episode with an answer."""

    def build(self) -> Finish:
        """The tool."""
        return Finish()


class SubmitConfig(BaseToolConfig):
    """Ends the episode with the work as it stands."""

    type: Literal["submit"] = "submit"
    """Ends the episode with the work as it stands."""

    def build(self) -> Submit:
        """The tool."""
        return Submit()


def _http_url(url: str) -> str:
    origin(url)
    return url


HttpUrl = Annotated[str, AfterValidator(_http_url)]
"""An http or https address, kept as it is written."""
UrlPath = Annotated[str, Field(pattern=r"^/\S*$")]


class _EndpointConfig(BaseToolConfig):
    """What the search tools share."""

    timeout: float = Field(default=30.0, gt=0)
    """Seconds for one try."""
    tries: int = Field(default=5, ge=1)
    """How often a failed connection, a time-out or a server error is tried."""
    deadline: float = Field(default=120.0, gt=0)
    """Seconds for all tries together."""
    max_chars: int = Field(default=30_000, ge=1000)
    """Bound on the output, in characters."""
    max_document_chars: int = Field(default=4_000, ge=80)
    """Bound on each document in the output, in characters."""

    def _options(self, form: Literal["json", "text"]) -> EndpointOptions:
        return EndpointOptions(
            timeout=self.timeout,
            tries=self.tries,
            deadline=self.deadline,
            format=form,
            max_chars=self.max_chars,
            max_document_chars=self.max_document_chars,
        )


class SearchConfig(_EndpointConfig):
    """Passages from a retrieval server with LocalWiki's interface."""

    type: Literal["search"] = "search"
    """Asks a retrieval server from inside the sandbox."""
    base_url: HttpUrl
    """Where the server is, e.g. `http://10.0.0.5:8000`; the sandbox is let through to this origin."""
    path: UrlPath = "/retrieve"
    """Takes `POST {queries, topk}` and gives `{result: [[{document, score}]]}`."""
    crawl_path: UrlPath | None = "/crawl"
    """Takes `POST {urls}` and gives `{results: [{url, texts}]}`; null offers no `crawl`."""
    format: Literal["json", "text"] = "json"
    """`json` prints `{"result": ...}`, `text` something shorter to read."""

    def build(self) -> Search:
        """The tool."""
        return Search(self.base_url, path=self.path, crawl_path=self.crawl_path, options=self._options(self.format))


class SearchArxivConfig(_EndpointConfig):
    """Papers from arXiv."""

    type: Literal["search_arxiv"] = "search_arxiv"
    """Asks arXiv from inside the sandbox."""
    base_url: HttpUrl = "https://export.arxiv.org"
    """arXiv or a mirror; the sandbox is let through to this origin."""
    path: UrlPath = "/api/query"
    """Where the Atom interface is."""
    format: Literal["json", "text"] = "text"
    """`text` prints something to read, `json` prints `{"result": ...}`."""

    def build(self) -> SearchArxiv:
        """The tool."""
        return SearchArxiv(self.base_url, path=self.path, options=self._options(self.format))


class PluginToolConfig(PluginConfig):
    """A tool of your own: a subclass of `uni_agent.tools.AbstractTool`."""

    def build(self) -> AbstractTool:
        """The tool, built as `Class(**options)`. Raises ConfigError when it cannot be loaded or built."""
        return build_object(self.type, self.options, AbstractTool)


def _named(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


_ToolUnion = Annotated[
    Annotated[ExecuteBashConfig, Tag("execute_bash")]
    | Annotated[StrReplaceEditorConfig, Tag("str_replace_editor")]
    | Annotated[FinishConfig, Tag("finish")]
    | Annotated[SubmitConfig, Tag("submit")]
    | Annotated[SearchConfig, Tag("search")]
    | Annotated[SearchArxivConfig, Tag("search_arxiv")]
    | Annotated[PluginToolConfig, Tag("plugin")],
    Discriminator(part_tag),
]

_Name = Literal["execute_bash", "str_replace_editor", "finish", "submit", "search_arxiv"]
"""Tools that need no options, so that their name alone will do."""

ToolConfig = Annotated[_ToolUnion, BeforeValidator(_named, json_schema_input_type=_Name | _ToolUnion)]
"""One entry of `tools`: a mapping with `type`, or the type alone."""

BUILTIN_TOOLS: dict[str, type[AbstractTool]] = {
    tool.name: tool for tool in (ExecuteBash, StrReplaceEditor, Finish, Submit, Search, SearchArxiv)
}
"""Every tool that the package ships, by name, in the order in which they are listed."""
