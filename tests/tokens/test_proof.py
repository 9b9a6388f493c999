"""What is shown about a template when it is loaded, and what happens where nothing can be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tokens.conftest import MakeRenderer
from tests.tokens.small import BASH, NAMES, TEMPLATES, asks, result, user
from uni_agent.errors import ConfigError, ModelError
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.renderer import ChatTemplateRenderer, TemplateDriftError
from uni_agent.tokens.tokenizer import ChatTokenizer
from uni_agent.types import Message

TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
CALLS = (
    '{% for c in m.tool_calls %}<tool_call>\n{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
)

TOOLS_BEFORE_LAST_USER = (  # as Mistral's templates do
    "{% set last = messages | selectattr('role', 'equalto', 'user') | list | length %}{% set ns = namespace(n=0) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}"
    "{% if ns.n == last and tools %}<tools>{{ tools | tojson }}</tools>{% endif %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}" + CALLS + "<|im_end|>\n{% endfor %}" + PROMPT
)
NUMBERED = "{{ messages | length }} messages\n{% for m in messages %}" + TURN + "{% endfor %}" + PROMPT
NO_END = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
ONE_CALL = (  # as Llama 3.1's does: content beside a call is left out, and one call is all it takes
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
    "{% endif %}<|im_start|>assistant\n" + CALLS + "<|im_end|>\n{% else %}" + TURN + "{% endif %}{% endfor %}" + PROMPT
)
DATED = "{{ strftime_now('%f') }}\n{% for m in messages %}" + TURN + "{% endfor %}" + PROMPT
TRAILING_END = (  # as Phi's does: one more token closes a text that is not to be continued
    "{% for m in messages %}" + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% else %}<|endoftext|>{% endif %}"
)


@pytest.fixture
def build(small_folder: Path, tmp_path: Path) -> Any:
    def from_source(source: str, **options: Any) -> ChatTemplateRenderer:
        path = tmp_path / "own.jinja"
        path.write_text(source, encoding="utf-8")
        options.setdefault("tool_parser", "none")
        return RendererConfig(chat_template=path, **options).build(small_folder)

    return from_source


def chain(renderer: ChatTemplateRenderer, history: list[Message], text: str, tools: list[Any]) -> list[int]:
    return renderer.initial(history, tools) + renderer.tokenizer.encode(text)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}])
def test_the_qwen_templates_are_proved(make: MakeRenderer, name: str, kwargs: dict[str, Any]) -> None:
    proof = make(name, **kwargs).proof
    assert [t.reason for t in proof.transitions.values()] == ["", ""]
    assert proof.same_ids
    assert proof.drops_thinking == (name in ("qwen3", "qwen3_6"))
    assert proof.late_system == (name != "qwen3_6")


def test_a_template_that_moves_its_tools_is_not_proved_and_starts_no_guess(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(TOOLS_BEFORE_LAST_USER, tool_parser="hermes")
    assert renderer.proof.allows("tool_results")
    assert not renderer.proof.allows("messages")
    assert renderer.proof.transitions["messages"].reason
    history = [user("go"), Message("assistant", "hi")]
    ids = chain(renderer, history[:1], "hi<|im_end|>", [BASH])
    for given in (ids, None):
        with pytest.raises(TemplateDriftError, match=r"own\.jinja does not continue") as caught:
            renderer.extension(history, [user("more")], [BASH], cut=False, chain=given)
        assert isinstance(caught.value, ModelError)
    # Without tools there is nothing to move: the full render continues the chain, and is used.
    ids = chain(renderer, history[:1], "hi<|im_end|>", [])
    for given in (ids, None):
        more = renderer.extension(history, [user("more <|im_end|>")], [], cut=False, chain=given)
        assert renderer.decode(more) == "\n<|im_start|>user\nmore <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    assert ids + more == renderer.initial([*history, user("more <|im_end|>")], [])


def test_the_fallback_compares_text_so_that_odd_splits_are_kept(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(TOOLS_BEFORE_LAST_USER)
    history = [user("e\u0301 go"), Message("assistant", "hi")]
    odd = [id_ for char in "hi" for id_ in renderer.tokenizer.encode_plain(char)]
    ids = renderer.initial(history[:1], []) + odd
    more = renderer.extension(history, [user("more")], [], cut=True, chain=ids)
    end = renderer.closing_ids()
    assert more[: len(end)] == end
    assert renderer.decode(more) == "<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_rewrites_its_start_gives_drift(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(NUMBERED)
    assert not renderer.proof.allows("messages")
    history = [user("go"), Message("assistant", "hi")]
    with pytest.raises(TemplateDriftError):
        renderer.extension(history, [user("more")], [], cut=False)


def test_a_template_without_an_end_of_turn_gives_drift_not_a_guess(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(NO_END)
    assert renderer.closing_ids() == []
    end = renderer.tokenizer.controls.ids
    assert renderer.stop_token_ids == (end["<|endoftext|>"], end["<|im_end|>"])
    with pytest.raises(TemplateDriftError, match="no control token"):
        renderer.extension([user("go"), Message("assistant", "hi")], [user("more")], [], cut=False)


def test_a_template_that_takes_single_calls_only_still_takes_their_results(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(ONE_CALL, tool_parser="auto")
    assert renderer.proof.allows("tool_results")
    new = [result("B", "c1"), result("A")]
    text = renderer.decode(renderer.extension([user("go"), asks("ls", "pwd")], new, [BASH], cut=False))
    assert text == "\n<|im_start|>tool\nA<|im_end|>\n<|im_start|>tool\nB<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_shows_the_time_falls_back_instead_of_guessing(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(DATED)
    history = [user("go"), Message("assistant", "hi")]
    with pytest.raises(TemplateDriftError):
        renderer.extension(history, [user("more")], [], cut=False)


def test_a_token_at_the_very_end_is_not_the_end_of_the_turn(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(TRAILING_END)
    assert renderer.decode(renderer.closing_ids()) == "<|im_end|>"
    assert renderer.proof.allows("messages")


def test_an_end_of_turn_that_swallows_whitespace(small_folder: Path, tmp_path: Path) -> None:
    spec: Any = json.loads((small_folder / "tokenizer.json").read_text())
    for token in spec["added_tokens"]:
        token["rstrip"] = token["content"] in ("<|im_end|>", "<|im_start|>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    renderer = RendererConfig(chat_template=TEMPLATES / "qwen2_5.jinja").build(tmp_path)
    assert renderer.proof.same_ids and renderer.proof.allows("messages") and renderer.proof.allows("tool_results")
    history = [user("go"), Message("assistant", "hi")]
    ids = chain(renderer, history[:1], "hi<|im_end|>", [])
    ids += renderer.extension(history, [user("more")], [], cut=False)
    assert ids == renderer.initial([*history, user("more")], []) == ChatTokenizer(spec).encode(renderer_text(renderer))


def renderer_text(renderer: ChatTemplateRenderer) -> str:
    messages = [user("go"), Message("assistant", "hi"), user("more")]
    return renderer.transcriber.draft(messages, [], generation=True).revealed


# ------------------------------------------------------------------------------------------ tool parsers


@pytest.mark.parametrize(
    ("name", "fitting", "other"),
    [
        ("qwen2_5", "hermes", "qwen3_coder"),
        ("qwen3_coder", "qwen3_coder", "hermes"),
        ("qwen3_6", "qwen3_coder", "hermes"),
    ],
)
def test_parse_16_a_parser_that_does_not_read_the_template_is_refused(
    small_folder: Path, name: str, fitting: str, other: str
) -> None:
    path = TEMPLATES / f"{name}.jinja"
    RendererConfig(chat_template=path, tool_parser=fitting).build(small_folder)
    with pytest.raises(ConfigError, match=rf"'{other}' .*{name}\.jinja .*fitting: {fitting}"):
        RendererConfig(chat_template=path, tool_parser=other).build(small_folder)
    with pytest.raises(ConfigError, match="hermes, qwen3_coder"):
        RendererConfig(chat_template=path, tool_parser="qwen3coder_typo").build(small_folder)


def test_a_template_without_tool_calls_needs_a_decision(build: Any) -> None:
    source = "{% for m in messages %}" + TURN + "{% endfor %}" + PROMPT
    with pytest.raises(ConfigError, match=r"'auto' .*none fits.*tool_parser: none"):
        build(source, tool_parser="auto")
    renderer: ChatTemplateRenderer = build(source, tool_parser="none")
    ids = renderer.tokenizer.encode("a <tool_call><|im_end|>")
    assert renderer.parse(ids, [BASH]).content == "a <tool_call>"
    stream = renderer.stream([])
    assert [event for part in ("a", "b") for event in stream.feed(part)]
    assert stream.finish()[1].content == "ab"


def test_no_folder_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match=r"renderer\.tokenizer"):
        RendererConfig().build(None)


def test_a_model_folder_needs_nothing_else(small_folder: Path, tmp_path: Path) -> None:
    for file in small_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_bytes((TEMPLATES / "qwen3.jinja").read_bytes())
    renderer = RendererConfig().build(tmp_path)
    ids = renderer.tokenizer.controls.ids
    assert renderer.stop_token_ids == (ids["<|im_end|>"], ids["<|endoftext|>"])
    assert RendererConfig(tokenizer=tmp_path).build(None).initial([user("a")], []) == renderer.initial([user("a")], [])


ALTERNATING = (  # as Gemma's does: no system message, strictly alternating turns
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)


def test_a_template_of_strictly_alternating_turns_still_shows_system_text(build: Any) -> None:
    renderer: ChatTemplateRenderer = build(ALTERNATING)
    assert renderer.proof.allows("messages") and not renderer.proof.late_system
    assert (
        not renderer.proof.allows("tool_results") and "alternate" in renderer.proof.transitions["tool_results"].reason
    )
    opening = [Message("system", "S1"), user("go")]
    text = renderer.decode(renderer.initial(opening, []))
    assert text.startswith("<|im_start|>user\n<system-reminder>\nS1\n</system-reminder>\n\ngo<|im_end|>")
    history = [*opening, Message("assistant", "hi")]
    new = [Message("system", "S2"), user("more")]
    chained = chain(renderer, opening, "hi<|im_end|>", []) + renderer.extension(history, new, [], cut=False)
    assert chained == renderer.initial([*history, *new], [])
    with pytest.raises(ConfigError, match="alternate"):
        renderer.extension([user("go"), asks("ls")], [result("A")], [BASH], cut=False)
