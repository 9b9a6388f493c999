"""Tool parsers: what a model wrote, as text, to content and tool calls.

To add a format: write a class with `parse` and `stream` as `tokens.base.ToolParser` describes them and put it into
`PARSERS` below; its name is then valid in the configuration, and the tests in `tests/tokens/parsers/test_contract.py`
run over it once it has a line in their table. Three things make a parser right: `parse` is `stream` fed once, so both
agree; state is a function of the text read so far, never of how it was cut (`lexer.Lexer` helps); and model output is
hostile, so nothing raises, nothing is evaluated and the work is linear in the text. `output.Output` keeps the events,
the content and the calls consistent. A stream with an `at_content` property (whether what comes next is content, not
part of a call) lets `OutputParser` split off thinking that comes after the first text.
"""

from __future__ import annotations

from collections.abc import Callable

from uni_agent.config.suggest import closest
from uni_agent.errors import ConfigError
from uni_agent.tokens.base import ToolParser
from uni_agent.tokens.parsers.hermes import HermesToolParser
from uni_agent.tokens.parsers.qwen3_coder import XMLToolParser
from uni_agent.tokens.parsers.reasoning import OutputParser

PARSERS: dict[str, Callable[[], ToolParser]] = {
    "hermes": HermesToolParser,
    "qwen3_coder": XMLToolParser,
}
"""Name in the configuration → parser."""

__all__ = ["PARSERS", "HermesToolParser", "OutputParser", "XMLToolParser", "build_parser"]


def build_parser(name: str) -> ToolParser:
    """The parser called `name`. Raises ConfigError that lists the valid names."""
    factory = PARSERS.get(name)
    if factory is None:
        close = closest(name, PARSERS)
        hint = f" Did you mean {close!r}?" if close else ""
        raise ConfigError(f"unknown tool parser {name!r}.{hint} Valid names: {', '.join(sorted(PARSERS))}.")
    return factory()
