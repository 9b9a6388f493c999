from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.small import BASH, NAMES, TEMPLATES
from uni_agent.errors import ConfigError
from uni_agent.tokens.template import ChatTemplate, TemplateError, load_template, read_template

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]

SOURCES = [
    "{% for m in messages %}\n  {{ m.content }}\n{% endfor %}",
    "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|{{ {'b': '<é>', 'a': 1} | tojson(sort_keys=True) }}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}x",
    "{% generation %}{{ messages[0].content }}{% endgeneration %}{{ messages[0].missing }}",
    "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ dict(a=1) }}{{ bos_token }}{{ extra }}",
    "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}",
]


def peer(source: str, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, **kwargs: Any) -> str:
    pytest.importorskip("transformers", reason="transformers is not installed (extra: embedded)")
    render: Any = vars(importlib.import_module("transformers.utils.chat_template_utils"))["render_jinja_template"]
    texts, _ = render(conversations=[messages], tools=tools, chat_template=source, add_generation_prompt=True, **kwargs)
    return texts[0]


@pytest.mark.parametrize("source", [*SOURCES, *((TEMPLATES / f"{name}.jinja").read_text() for name in NAMES)])
@pytest.mark.parametrize("tools", [None, [BASH]])
def test_renders_as_transformers_does(source: str, tools: list[dict[str, Any]] | None) -> None:
    variables = {"bos_token": "<s>", "extra": {"k": [1]}}
    ours = ChatTemplate(source, variables=variables).render(HELLO, tools or [], generation=True)
    assert ours == peer(source, HELLO, tools, **variables)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace(__init__=1) %}",
        "{{ dict.__class__ }}",
        "{{ cycler.__init__.__globals__ }}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source: str) -> None:
    with pytest.raises(TemplateError):
        text = ChatTemplate(source).render(HELLO, [], generation=False)
        assert text == ""  # undefined names render as nothing, which is as good
        raise TemplateError("x", "nothing came out")


def test_errors_name_the_template_and_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{{ raise_exception('no user query') }}")
    with pytest.raises(ConfigError, match=r"own\.jinja refused the messages: .*no user query"):
        read_template(path, {}).render(HELLO, [], generation=True)
    path.write_text("{% if %}")
    with pytest.raises(ConfigError, match=r"own\.jinja does not compile"):
        read_template(path, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        read_template(tmp_path / "missing.jinja", {})


def test_the_template_of_a_folder_is_found_where_models_keep_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no chat template"):
        load_template(tmp_path, {}, {})
    (tmp_path / "chat_template.json").write_text('{"chat_template": "legacy"}')
    assert load_template(tmp_path, {}, {}).render(HELLO, [], generation=True) == "legacy"
    assert load_template(tmp_path, {"chat_template": "config"}, {}).render(HELLO, [], generation=True) == "config"
    named = {"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}
    template = load_template(tmp_path, named, {})
    assert template.render(HELLO, [], generation=True) == "d"
    assert template.render(HELLO, [BASH], generation=True) == "t"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert load_template(tmp_path, named, {}).render(HELLO, [], generation=True) == "file"


def test_tok_16_unknown_variables_reach_the_template_and_reserved_ones_are_refused() -> None:
    template = ChatTemplate("{{ whatever }}{{ tools | length }}", variables={"whatever": "w"})
    assert template.render(HELLO, [BASH], generation=True) == "w1"
    with pytest.raises(ConfigError, match="tools"):
        ChatTemplate("x", variables={"tools": []})
