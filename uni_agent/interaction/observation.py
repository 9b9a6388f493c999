"""How what a command did becomes the text that the model reads. The texts are part of what a policy is trained on."""

from __future__ import annotations

import re

from uni_agent.deployment.sandbox import CommandResult

EMPTY_OUTPUT = "Your command ran successfully and did not produce any output."

# CSI sequences (colours, cursor), OSC sequences (titles, links) and two-byte escapes. Bounded, so that a hostile output
# cannot make the match walk far.
_ANSI = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])")

# bash names the text by its own name, or by the file it reads the command from.
_SYNTAX_ERROR = re.compile(
    r"^(?:\S*bash|/dev/fd/\d+): (?:\S+: )?(?:line \d+: )?"
    r"(?:syntax error|unexpected EOF|.*unexpected end of file|.*here-document .* delimited by end-of-file)",
    re.M,
)


def observation_text(result: CommandResult, *, limit: int, timeout: float) -> str:
    """The observation for `result`: its output without terminal escapes, limited, with notes in brackets."""
    text = _ANSI.sub("", result.output).replace("\r\n", "\n")
    notes: list[str] = []
    if result.timed_out:
        notes.append(f"[timed out after {timeout:g} s: the command was ended; what it printed so far is above]")
    elif result.session == "restarted":
        notes.append(f"[the shell ended with exit code {result.exit_code}]")
    elif result.exit_code != 0:
        notes.append(f"[exit code: {result.exit_code}]")
    if result.session == "restarted":
        notes.append("[the shell was restarted: working directory and environment are as at the start]")
    if result.session == "dead":
        notes.append("[the shell does not answer any more]")
    if not text.strip() and not notes:
        return EMPTY_OUTPUT
    return "\n".join(part for part in (head_and_tail(text.rstrip("\n"), limit, result.omitted), *notes) if part)


def head_and_tail(text: str, limit: int, already_omitted: int = 0) -> str:
    """`text` in at most `limit` characters plus one notice; `already_omitted` bytes were cut from its middle before."""
    if len(text) <= limit:
        return text
    half = limit // 2
    omitted = len(text) - 2 * half
    count = f"{omitted} characters" + (f" and {already_omitted} bytes before them" if already_omitted else "")
    return f"{text[:half]}\n[... {count} left out: narrow the command to see them ...]\n{text[len(text) - half :]}"


def is_syntax_error(result: CommandResult) -> bool:
    """Whether the shell's parser refused the command. Output can imitate this; only a step's status depends on it."""
    return result.exit_code in (1, 2) and bool(_SYNTAX_ERROR.search(result.output[-2000:]))


def format_hint(tool_names: list[str], *, cut: bool, marker_seen: bool) -> str:
    """What the model is told after a turn without a usable tool call."""
    names = ", ".join(tool_names)
    if cut:
        return f"Your response was cut: too long, and no complete tool call in it. Be brief and call one of: {names}."
    if marker_seen:
        return f"Your tool call could not be read. Write it again exactly in the format you were given. Tools: {names}."
    return f"Your response held no tool call. Every response must call a tool, one of: {names}."
