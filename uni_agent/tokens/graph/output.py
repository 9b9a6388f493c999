"""What may be committed."""

from __future__ import annotations

from typing import Any

from uni_agent.engine.base import TokenOutput
from uni_agent.tokens.base import ParsedOutput
from uni_agent.types import Message


def checked_output(output: TokenOutput, prompt_tokens: int) -> Any:
    """The routed experts of the output's own tokens, or None.

    Engines give rows for the output or for prompt and output, and some none for the last token. Raises ValueError for
    an aborted output, and for logprobs, weight spans or experts that do not fit the ids.
    """
    length = len(output.token_ids)
    if output.finish_reason == "abort":
        raise ValueError("an aborted generation is no turn: generate again, and record what was sampled as dropped")
    if output.logprobs is not None and len(output.logprobs) != length:
        raise ValueError(f"engine returned {length} ids but {len(output.logprobs)} logprobs")
    for span in output.weight_spans:
        if not 0 <= span.start <= span.end <= length:
            raise ValueError(f"weight span {span.start}:{span.end} does not lie in {length} ids")
    rows = output.routed_experts
    if rows is None or len(rows) == length:
        return rows
    if len(rows) in (prompt_tokens + length, prompt_tokens + length - 1):
        return rows[prompt_tokens:]
    raise ValueError(f"routed_experts has {len(rows)} rows for {prompt_tokens} prompt and {length} sampled tokens")


def message_of(said: Message | ParsedOutput) -> Message:
    """The assistant message of a generation. Raises ValueError for another role."""
    if isinstance(said, ParsedOutput):
        return Message("assistant", said.content, said.reasoning, said.tool_calls)
    if said.role != "assistant":
        raise ValueError(f"a generation is an assistant message, not one of role {said.role!r}")
    return said
