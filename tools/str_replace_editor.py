"""`str_replace_editor`: views and edits files without changing a byte that was not named."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from uni_agent.tools.base import AbstractTool, Arguments, ToolScript
from uni_agent.tools.program import call_program, load_program

_NEEDS = {"create": ("file_text",), "str_replace": ("old_str",), "insert": ("insert_line", "new_str")}


class EditorArguments(Arguments):
    """Arguments of `str_replace_editor`."""

    command: Literal["view", "create", "str_replace", "insert", "undo_edit"]
    """The command to run."""
    path: Annotated[str, Field(min_length=1)]
    """Absolute path to the file or directory, e.g. `/testbed/file.py`."""
    file_text: str | None = None
    """Required by `create`: the content of the file."""
    old_str: str | None = None
    """Required by `str_replace`: the text in the file to replace."""
    new_str: str | None = None
    """For `str_replace`: the text to put in its place (nothing when left out). Required by `insert`."""
    insert_line: int | None = None
    """Required by `insert`: the number of the line after which `new_str` is inserted, 0 for the start."""
    view_range: Annotated[list[int], Field(min_length=2, max_length=2)] | None = None
    """For `view` of a file: first and last line to show, e.g. `[11, 12]`; `[start, -1]` shows up to the end."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name in _NEEDS.get(self.command, ()):
            if getattr(self, name) is None:
                raise ValueError(f"the command `{self.command}` needs the parameter `{name}`")
        return self


class StrReplaceEditor(AbstractTool):
    """Runs `scripts/editor.py`."""

    name = "str_replace_editor"
    description = """
        View, create and edit text files. State lasts from call to call.
        * `view` on a file prints it with line numbers, as `cat -n` does; on a directory it lists the non-hidden files \
and directories up to 2 levels deep. Long output is cut, with a notice.
        * `create` makes a new file, and its parent directories; it never overwrites an existing file.
        * `str_replace` replaces `old_str`, which must occur exactly once in the file, byte for byte (mind white \
space, and leave out the line numbers that `view` prints). Include enough context to make it unique.
        * `insert` adds `new_str` as lines of its own after line `insert_line`; 0 is the start of the file.
        * `undo_edit` takes back the last edit to the file that was made with this tool; it can be repeated.
    """

    Arguments = EditorArguments

    def command(self, arguments: EditorArguments) -> str:
        """The call of the editor program."""
        return call_program(self.name, arguments.model_dump(exclude_none=True))

    def scripts(self) -> list[ToolScript]:
        """The editor program."""
        return [load_program(self.name, "common.py", "editor_files.py", "editor.py")]
