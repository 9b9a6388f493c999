"""Stand-ins for control tokens in text that people, tools and models wrote.

A template copies messages into the text it renders. What was markup in a message must not be markup afterwards, so
before the render each text of a control token is replaced by one private-use character that occurs nowhere in the
inputs, and put back once the template's own control tokens have been found.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from uni_agent.errors import ConfigError
from uni_agent.tokens.vocabulary import ControlTokens

THINK_TAGS = ("<think>", "</think>")


class Disguise:
    """The stand-ins of one render. `inputs` gives all text in which they must not occur by chance; asked if needed."""

    def __init__(self, controls: ControlTokens, inputs: Callable[[], Iterable[str]]) -> None:
        self._controls = controls
        self._inputs = inputs
        self._joined: str | None = None
        self._next = 0xE000
        self._stand_ins: dict[str, str] = {}
        self._raw: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    @property
    def used(self) -> bool:
        """Whether anything had to be replaced."""
        return bool(self._raw)

    def text(self, text: str, leave: tuple[str, ...] = ()) -> str:
        """`text` without the text of any control token but those in `leave`."""
        text = self._controls.finder(leave).sub(lambda match: self._stand_in(match[0]), text)
        # An end such as "<|im_" could be completed by whatever the template puts behind it.
        begun = self._controls.begun(text)
        return text[: len(text) - len(begun)] + self._stand_in(begun) if begun else text

    def data(self, value: Any) -> Any:
        """`value` (JSON) with `text` applied to every string in it, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.data(k): self.data(v) for k, v in cast(Mapping[Any, Any], value).items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in cast(Sequence[Any], value)]
        return value

    def reveal(self, text: str) -> str:
        """`text` with the original texts in place of their stand-ins."""
        if not self._raw:
            return text
        if self._pattern is None:
            self._pattern = re.compile("|".join(re.escape(key) for key in self._raw))
        return self._pattern.sub(lambda match: self._raw[match[0]], text)

    def _stand_in(self, raw: str) -> str:
        known = self._stand_ins.get(raw)
        if known is not None:
            return known
        if self._joined is None:
            self._joined = "\0".join(self._inputs())
        while self._next <= 0xF8FF:
            char = chr(self._next)
            escaped = json.dumps(char)[1:-1]  # what a template that escapes non-ASCII makes of it
            self._next += 1
            if char not in self._joined and escaped not in self._joined:
                self._stand_ins[raw] = char
                self._raw[char] = self._raw[escaped] = raw
                self._pattern = None
                return char
        raise ConfigError("a message uses every private-use character; it cannot be rendered safely")


def strings_in(value: Any) -> Iterable[str]:
    """Every string in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in cast(Mapping[Any, Any], value).items():
            yield from strings_in(key)
            yield from strings_in(item)
    elif isinstance(value, list | tuple):
        for item in cast(Sequence[Any], value):
            yield from strings_in(item)
