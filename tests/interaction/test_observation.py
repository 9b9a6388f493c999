"""What the model is shown of a command's output."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from uni_agent.deployment.sandbox import CommandResult
from uni_agent.interaction.observation import head_and_tail, is_syntax_error, observation_text


def test_long_output_keeps_head_and_tail_and_says_how_much_is_missing() -> None:
    """SBX-13."""
    text = "\n".join(str(i) for i in range(1, 200_001))
    shown = observation_text(CommandResult(text, 0), limit=1000, timeout=60)
    assert shown.startswith("1\n2\n") and shown.endswith("200000")
    assert f"{len(text) - 1000} characters" in shown
    assert len(shown) < 1100


@given(st.text(max_size=300), st.integers(200, 250))
def test_the_limit_holds_and_short_text_is_untouched(text: str, limit: int) -> None:
    shown = head_and_tail(text, limit)
    assert shown == text if len(text) <= limit else len(shown) <= limit + 100


def test_terminal_escapes_go_and_bytes_of_text_stay() -> None:
    shown = observation_text(
        CommandResult("\x1b[31mred\x1b[0m \x1b]0;title\x07tab\there\r\nx\n", 0), limit=500, timeout=1
    )
    assert shown == "red tab\there\nx"


@given(st.text(alphabet="\x1b[]0;?m\x07 a\\", max_size=200))
def test_hostile_escapes_never_raise(text: str) -> None:
    observation_text(CommandResult(text, 0), limit=500, timeout=1)


def test_leading_whitespace_of_output_is_kept() -> None:
    assert observation_text(CommandResult("    indented\n", 0), limit=500, timeout=1) == "    indented"


def test_a_syntax_error_is_told_from_a_failing_program() -> None:
    assert is_syntax_error(CommandResult("bash: line 3: syntax error near unexpected token `;'", 2))
    assert is_syntax_error(CommandResult("bash: eval: line 1: unexpected EOF while looking for matching `\"'", 1))
    assert not is_syntax_error(CommandResult("SyntaxError: invalid syntax", 1))
    assert not is_syntax_error(CommandResult("bash: line 3: syntax error", 0))
