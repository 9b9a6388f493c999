"""The `data:` block: where tasks come from."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from uni_agent.config.base import Config, ConfigPath, SourcedStr, build_object, part_tag
from uni_agent.data.readers import RowSource, read_hub, read_jsonl, read_parquet
from uni_agent.data.report import suggestion
from uni_agent.data.source import TASK_FIELDS, RowMapping, SelectedSource, Selection, TaskSource


class BaseDataConfig(Config):
    """Fields that every task source has. `ids` are picked first, then the order is shuffled, then cut to `limit`."""

    limit: int | None = Field(default=None, ge=1)
    """Use only so many tasks."""
    shuffle_seed: int | None = None
    """Shuffle with this seed; None keeps the source's order."""
    ids: list[str] | None = None
    """Use only the tasks with these ids; an id that is not there is an error."""

    @abstractmethod
    def build(self) -> TaskSource:
        """The source, nothing read yet. Its `load` raises DataError."""

    @property
    def selection(self) -> Selection:
        """The three fields above as one value."""
        return Selection(ids=self.ids, shuffle_seed=self.shuffle_seed, limit=self.limit)


class RowDataConfig(BaseDataConfig):
    """Fields of the sources that are made of rows."""

    prompt_template: str | None = None
    """Jinja template of the prompt, over the row's columns and the task's fields; an unknown name is an error."""
    columns: dict[str, str] | None = None
    """Task field (`id`, `prompt`, or a dotted `metadata.tests`, `repo.commit`) → column of the data. The columns that
    are not named go to the task's metadata. None: the columns are task fields themselves."""

    @field_validator("prompt_template")
    @classmethod
    def _template_parses(cls, template: str | None) -> str | None:
        from jinja2 import Environment, TemplateSyntaxError

        if template is not None:
            try:
                Environment(autoescape=True).parse(template)
            except TemplateSyntaxError as error:
                raise ValueError(f"line {error.lineno}: {error.message}") from error
        return template

    @field_validator("columns")
    @classmethod
    def _columns_are_fields(cls, columns: dict[str, str] | None) -> dict[str, str] | None:
        for target in columns or {}:
            if (head := target.split(".")[0]) not in TASK_FIELDS:
                raise ValueError(f"{head!r} is no task field{suggestion(head, TASK_FIELDS)}")
        return columns

    def mapping(self, base_dir: Path) -> RowMapping:
        """How rows become tasks whose relative paths refer to `base_dir`."""
        return RowMapping(base_dir=str(base_dir.absolute()), columns=self.columns, template=self.prompt_template)


class JsonlDataConfig(RowDataConfig):
    """One JSON object a line, each a task."""

    type: Literal["jsonl"]
    path: ConfigPath
    """The file. Relative paths in its tasks refer to its folder."""

    def build(self) -> TaskSource:
        """The source of the file's tasks."""
        rows = partial(read_jsonl, self.path)
        return RowSource(str(self.path), rows, self.mapping(self.path.absolute().parent), self.selection)


class ParquetDataConfig(RowDataConfig):
    """A parquet file, or a folder of them. Needs the extra `datasets`."""

    type: Literal["parquet"]
    path: ConfigPath
    """The file or folder. Relative paths in its tasks refer to the folder."""

    def build(self) -> TaskSource:
        """The source of the table's tasks. Fields of free shape may be JSON text."""
        folder = self.path if self.path.is_dir() else self.path.absolute().parent
        return RowSource(str(self.path), partial(read_parquet, self.path), self.mapping(folder), self.selection)


def _hub_name_or_folder(value: Any) -> Any:
    if isinstance(value, SourcedStr) and (value.base / value).is_dir():
        return str(value.base / value)
    return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~") else value


class HuggingFaceDataConfig(RowDataConfig):
    """A dataset of the Hugging Face hub, or a local folder that `datasets` reads. Needs the extra `datasets`."""

    type: Literal["huggingface"]
    path: Annotated[str, BeforeValidator(_hub_name_or_folder)]
    """Name on the hub (`owner/name`), or a local folder."""
    name: str | None = None
    """Configuration of the dataset."""
    split: str | None = None
    """Split; may be left out when there is only one."""
    revision: str | None = None
    """Commit, tag or branch of the dataset; give a commit for results that can be repeated."""

    def build(self) -> TaskSource:
        """The source of the dataset's tasks. Relative paths refer to the local folder, else to the current one."""
        rows = partial(read_hub, self.path, name=self.name, split=self.split, revision=self.revision)
        folder = Path(self.path) if Path(self.path).is_dir() else Path.cwd()
        return RowSource(self.path, rows, self.mapping(folder), self.selection)


class PluginDataConfig(BaseDataConfig):
    """A task source that this package does not ship: a TaskSource built as `Class(**options)`."""

    type: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Where the class is, as `package.module:Class`."""
    options: dict[str, Any] = {}
    """Keyword arguments of the class."""

    def build(self) -> TaskSource:
        """The plug-in's source with the selection on top. Raises ConfigError when it cannot be loaded or built."""
        return SelectedSource(build_object(self.type, self.options, TaskSource), self.selection, self.type)


DataConfig = Annotated[
    Annotated[JsonlDataConfig, Tag("jsonl")]
    | Annotated[ParquetDataConfig, Tag("parquet")]
    | Annotated[HuggingFaceDataConfig, Tag("huggingface")]
    | Annotated[PluginDataConfig, Tag("plugin")],
    Discriminator(part_tag),
]
"""Any task source, told apart by `type`."""
