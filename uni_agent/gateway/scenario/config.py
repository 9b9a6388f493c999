"""Rules of one's own, as configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from uni_agent.config.base import Config
from uni_agent.gateway.scenario import wire
from uni_agent.gateway.scenario.base import Rule, Scenario, SessionFacts, View
from uni_agent.gateway.scenario.tagger import BUILT_IN_RULES, Tagger

_READ = 10_000
"""So many characters of a value are searched: a pattern must not run for long over what a client sends."""


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
"""A regular expression, searched for in the first 10,000 characters."""


class ScenarioRule(Config):
    """Tags the requests that meet all of its conditions; at least one must be given."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")
    """How the rule is named beside the tag."""
    scenario: Scenario
    """The tag."""
    header: dict[str, Pattern] = {}
    """Header name, in any case → pattern in its value; a header that is missing does not match."""
    body: dict[str, Pattern] = {}
    """Dotted path in the JSON body (`output_config.format.type`, `tools.*.name`) → pattern in a value there. Values
    that are no strings are read as JSON; `""` as pattern asks that the path exists."""
    path: Pattern | None = None
    """Pattern in the URL's path."""
    system: Pattern | None = None
    """Pattern in the system prompt."""
    first_user: Pattern | None = None
    """Pattern in the first user message."""
    last: Pattern | None = None
    """Pattern in a text of the last message."""
    tools: bool | None = None
    """Whether the request offers tools."""
    max_tokens_below: int | None = Field(default=None, ge=1)
    """Its cap on new tokens is given and below this."""

    @model_validator(mode="after")
    def _some_condition(self) -> ScenarioRule:
        given = (self.path, self.system, self.first_user, self.last, self.tools, self.max_tokens_below)
        if not self.header and not self.body and all(value is None for value in given):
            raise ValueError(f"rule {self.name!r} has no condition: it would tag every request")
        return self

    def build(self) -> Rule:
        """The rule."""
        return Rule(self.name, "configured", "configured", self._decide)

    def _decide(self, view: View, facts: SessionFacts) -> Scenario | None:
        return self.scenario if self._matches(view) else None

    def _matches(self, view: View) -> bool:
        cap = view.request.max_tokens
        return (
            (self.tools is None or self.tools == view.tools)
            and (self.max_tokens_below is None or (cap is not None and cap < self.max_tokens_below))
            and _found(self.path, (view.request.wire.path,))
            and _found(self.system, (view.system,))
            and _found(self.first_user, (view.first_user,))
            and _found(self.last, view.last)
            and all(_found(pattern, _header(view.headers, name)) for name, pattern in self.header.items())
            and all(
                _found(pattern, tuple(_text(value) for value in wire.values(view.request.wire.body, path)))
                for path, pattern in self.body.items()
            )
        )


class ScenarioConfig(Config):
    """How requests are tagged. Rules given here are asked first, then the built-in ones that are not switched off."""

    rules: list[ScenarioRule] = []
    """Rules of one's own, in the order in which they are asked."""
    disabled: list[str] = []
    """Names of built-in rules that are not asked."""

    @model_validator(mode="after")
    def _names(self) -> ScenarioConfig:
        known = [rule.name for rule in BUILT_IN_RULES]
        for name in self.disabled:
            if name not in known:
                raise ValueError(f"no built-in rule is named {name!r}; there are: {', '.join(known)}")
        names = [rule.name for rule in self.rules]
        twice = next((name for name in names if names.count(name) > 1 or name in known), None)
        if twice is not None:
            raise ValueError(f"two rules are named {twice!r}")
        return self

    def build(self) -> Tagger:
        """The tagger."""
        own = [rule.build() for rule in self.rules]
        return Tagger([*own, *(rule for rule in BUILT_IN_RULES if rule.name not in self.disabled)])


def _found(pattern: str | None, texts: tuple[str, ...]) -> bool:
    return pattern is None or any(re.search(pattern, text[:_READ]) for text in texts)


def _header(headers: Mapping[str, str], name: str) -> tuple[str, ...]:
    value = headers.get(name.lower())
    return () if value is None else (value,)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (ValueError, RecursionError):
        return ""
