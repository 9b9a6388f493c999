"""Chat templates, compiled exactly as transformers compiles them.

The environment follows `transformers.utils.chat_template_utils._cached_compile_jinja_template` (5.x): an immutable
sandbox with trimmed blocks, loop controls, the `generation` tag, a `tojson` that escapes nothing, `raise_exception`,
`strftime_now`, and `dict` and `namespace` that give no way out of the sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from uni_agent.errors import ConfigError

_RESERVED = {"messages", "tools", "documents", "add_generation_prompt"}


class TemplateError(ConfigError):
    """A chat template does not compile, or refused the messages it was given. `reason` is the template's own word."""

    def __init__(self, template: str, reason: str, what: str = "refused the messages") -> None:
        super().__init__(f"chat template {template} {what}: {reason}")
        self.reason = reason


class ChatTemplate:
    """Messages (as dicts) and tool schemas to text.

    `name` is for error messages. `variables` are passed to every render (special tokens, `template_kwargs`).
    `with_tools` is a second template, used when there are tools.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "chat_template",
        variables: Mapping[str, Any] | None = None,
        with_tools: str | None = None,
    ) -> None:
        self.source = source if with_tools is None else f"{source}\n{with_tools}"
        self.name = name
        self.variables = dict(variables or {})
        if clash := _RESERVED & self.variables.keys():
            raise ConfigError(f"template_kwargs: {', '.join(sorted(clash))} cannot be set")
        try:
            self._plain = _compile(source)
            self._tools = self._plain if with_tools is None else _compile(with_tools)
        except jinja2.TemplateError as error:
            raise TemplateError(name, str(error), "does not compile") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], *, generation: bool
    ) -> str:
        """The text, with the generation prompt at the end if `generation`. Raises TemplateError."""
        template = self._tools if tools else self._plain
        try:
            return template.render(
                **self.variables,
                messages=list(messages),
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=generation,
            )
        except Exception as error:  # a template can raise anything
            raise TemplateError(self.name, f"{type(error).__name__}: {error}") from error


def load_template(folder: Path, config: Mapping[str, Any], variables: Mapping[str, Any]) -> ChatTemplate:
    """The chat template of a model folder.

    Taken from chat_template.jinja, else `chat_template` of tokenizer_config.json, else chat_template.json. Raises
    ConfigError when there is none.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_template(path, variables)
    found: Any = config.get("chat_template")
    name = str(folder / "tokenizer_config.json")
    legacy = folder / "chat_template.json"
    if not found and legacy.is_file():
        name = str(legacy)
        try:
            found = json.loads(legacy.read_text(encoding="utf-8")).get("chat_template")
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{legacy} cannot be read: {error}") from error
    if isinstance(found, list):
        named = {entry["name"]: entry["template"] for entry in cast(list[dict[str, str]], found)}
        default = named.get("default") or named.get("tool_use")
        if default:
            return ChatTemplate(default, name=name, variables=variables, with_tools=named.get("tool_use"))
        found = None
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{folder} has no chat template; give one with `chat_template: path/to/file.jinja`")
    return ChatTemplate(found, name=name, variables=variables)


def read_template(path: Path, variables: Mapping[str, Any]) -> ChatTemplate:
    """The template in a .jinja file. Raises ConfigError when it cannot be read or does not compile."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"chat template {path} cannot be read: {error}") from error
    return ChatTemplate(source, name=str(path), variables=variables)


class _Generation(Extension):
    """`{% generation %}` marks what the model writes; here it only has to be accepted, in a scope of its own."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """`dict` without the attributes that lead out of the sandbox."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace` that refuses dunder names."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # pyright: ignore - so that namespace(self=1) works
        this, rest = args[0], args[1:]
        values: dict[str, Any] = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(this, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


@lru_cache(maxsize=32)
def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    names = cast(dict[str, Any], environment.globals)
    names["raise_exception"] = _raise
    names["strftime_now"] = _strftime_now
    names["dict"] = _Dict()
    names["namespace"] = _Namespace
    return environment.from_string(source)
