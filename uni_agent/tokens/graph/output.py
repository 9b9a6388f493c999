"""What may be committed."""

from __future__ import annotations

from typing import Any

from uni_agent.engine.base import TokenOutput
from uni_agent.tokens.base import ParsedOutput
from uni_agent.tokens.graph.nodes import Context
from uni_agent.types import Message


def checked_output(output: TokenOutput, prompt_tokens: int) -> tuple[Any, Any]:
    """The routed experts of the prompt [P, layers, top_k] and of the output's own tokens; None for what is not there.

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
        return None, rows
    if len(rows) in (prompt_tokens + length, prompt_tokens + length - 1):
        return rows[:prompt_tokens], rows[prompt_tokens:].copy()  # a view would keep the whole array alive
    raise ValueError(f"routed_experts has {len(rows)} rows for {prompt_tokens} prompt and {length} sampled tokens")


def context_rows(context: Context, prompt_rows: Any) -> Any:
    """What of the prompt's rows belongs to `context`: [L + C, layers, top_k].

    C are its own tokens, and L is 1 behind a turn, whose last token some engines route only here; 0 at the start.
    """
    count = len(context.ids) + (context.parent is not None)
    return prompt_rows[len(prompt_rows) - count :].copy()


def message_of(said: Message | ParsedOutput) -> Message:
    """The assistant message of a generation. Raises ValueError for another role."""
    if isinstance(said, ParsedOutput):
        return Message("assistant", said.content, said.reasoning, said.tool_calls)
    if said.role != "assistant":
        raise ValueError(f"a generation is an assistant message, not one of role {said.role!r}")
    return said
