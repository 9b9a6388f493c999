"""Rules for single clients, by what they were seen to send. A rule claims a request only on the client's own marks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from uni_agent.gateway.scenario import wire
from uni_agent.gateway.scenario.base import Rule, Scenario, SessionFacts, View

# ------------------------------------------------------------------------------------------------- Claude Code


def _is_claude_code(view: View) -> bool:
    named = any(name.startswith("x-claude-code-") for name in view.headers)
    return named or view.headers.get("user-agent", "").startswith("claude-cli/")


def _claude_code_probe(view: View, facts: SessionFacts) -> Scenario | None:
    body = view.request.wire.body
    probe = body.get("max_tokens") == 1 and view.last == ("quota",) and len(wire.entries(body)) == 1
    return Scenario.HEARTBEAT if _is_claude_code(view) and probe and not view.tools else None


def _claude_code_compaction(view: View, facts: SessionFacts) -> Scenario | None:
    asked = any(text.startswith("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.") for text in view.last)
    return Scenario.COMPACTION if _is_claude_code(view) and asked else None


def _claude_code_search(view: View, facts: SessionFacts) -> Scenario | None:
    kinds = wire.tool_types(view.request.wire.body)
    only = bool(kinds) and all(kind.startswith("web_search_") for kind in kinds)
    return Scenario.SEARCH if _is_claude_code(view) and only else None


def _claude_code_title(view: View, facts: SessionFacts) -> Scenario | None:
    body = view.request.wire.body
    titled = any(True for _ in wire.values(body, "output_config.format.schema.properties.title"))
    return Scenario.TITLE if _is_claude_code(view) and titled and not view.tools and view.fresh else None


def _claude_code_fetch(view: View, facts: SessionFacts) -> Scenario | None:
    page = any(text.lstrip().startswith("Web page content:\n---\n") for text in view.last)
    return Scenario.SUMMARY if _is_claude_code(view) and page and not view.tools and view.fresh else None


def _claude_code_suggestion(view: View, facts: SessionFacts) -> Scenario | None:
    asked = any(text.startswith("[SUGGESTION MODE:") for text in view.last)
    return Scenario.UNKNOWN if _is_claude_code(view) and asked else None


def _claude_code_sub_agent(view: View, facts: SessionFacts) -> Scenario | None:
    billing = next(wire.system_texts(view.request.wire.body), "")
    marked = billing.startswith("x-anthropic-billing-header:") and "cc_is_subagent=true" in billing
    marked = marked or bool(view.headers.get("x-claude-code-agent-id"))
    return Scenario.SUB_AGENT if _is_claude_code(view) and marked else None


def _claude_code_main(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.MAIN if _is_claude_code(view) and view.tools else None


# ------------------------------------------------------------------------------------------------- Codex


def _codex(view: View) -> Mapping[str, Any]:
    """What Codex says about the request: its metadata, with the two headers beside them. {} from others."""
    body = view.request.wire.body
    sent: dict[str, Any] = {}
    for place in ("client_metadata.x-codex-turn-metadata", "client_metadata"):
        found = next(wire.values(body, place), None)
        sent |= wire.json_object(found) if isinstance(found, str) else {}
        if isinstance(found, Mapping) and "x-codex-turn-metadata" in found:
            sent |= {key: found[key] for key in ("x-openai-subagent", "x-codex-parent-thread-id") if key in found}
    header = view.headers.get("x-codex-turn-metadata")
    sent |= wire.json_object(header)
    if header is not None or "x-codex-window-id" in view.headers:
        names = ("x-openai-subagent", "x-codex-parent-thread-id")
        sent |= {key: view.headers[key] for key in names if key in view.headers}
    return sent


def _codex_compaction(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.COMPACTION if _codex(view).get("request_kind") == "compaction" else None


def _codex_sub_agent(view: View, facts: SessionFacts) -> Scenario | None:
    sent = _codex(view)
    if not any(sent.get(key) for key in ("x-openai-subagent", "x-codex-parent-thread-id", "parent_thread_id")):
        return None
    kinds = {"compact": Scenario.COMPACTION, "memory_consolidation": Scenario.MEMORY}
    return kinds.get(wire.word(sent.get("x-openai-subagent")), Scenario.SUB_AGENT)


def _codex_main(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.MAIN if _codex(view).get("request_kind") == "turn" else None


# ------------------------------------------------------------------------------------------------- opencode


def _is_opencode(view: View) -> bool:
    return "x-session-id" in view.headers and view.headers.get("user-agent", "").startswith("opencode/")


def _opencode_title(view: View, facts: SessionFacts) -> Scenario | None:
    asked = view.system.startswith("You are a title generator.")
    return Scenario.TITLE if _is_opencode(view) and asked and not view.tools else None


def _opencode_compaction(view: View, facts: SessionFacts) -> Scenario | None:
    asked = view.system.startswith("You are a context summarization agent.")
    return Scenario.COMPACTION if _is_opencode(view) and asked and not view.tools else None


def _opencode_sub_agent(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.SUB_AGENT if _is_opencode(view) and view.headers.get("x-parent-session-id") else None


def _opencode_main(view: View, facts: SessionFacts) -> Scenario | None:
    return Scenario.MAIN if _is_opencode(view) and view.tools else None


# ------------------------------------------------------------------------------------------------- others


def _is_qwen_code(view: View) -> bool:
    return view.headers.get("user-agent", "").startswith("QwenCode/")


def _qwen_code_memory(view: View, facts: SessionFacts) -> Scenario | None:
    asked = view.system.startswith("You are now acting as the managed memory extraction subagent")
    return Scenario.MEMORY if _is_qwen_code(view) and asked else None


def _qwen_code_compaction(view: View, facts: SessionFacts) -> Scenario | None:
    asked = any(text.startswith("You are the component that summarizes a conversation when it") for text in view.last)
    return Scenario.COMPACTION if _is_qwen_code(view) and asked else None


def _qwen_code_sub_agent(view: View, facts: SessionFacts) -> Scenario | None:
    named = view.system.startswith("You are a general-purpose subagent ")
    return Scenario.SUB_AGENT if _is_qwen_code(view) and named else None


def _hermes_compaction(view: View, facts: SessionFacts) -> Scenario | None:
    asked = any(text.startswith("You are a summarization agent creating a context checkpoint.") for text in view.last)
    return Scenario.COMPACTION if asked and view.fresh and not view.tools and not view.system else None


def _openclaw_heartbeat(view: View, facts: SessionFacts) -> Scenario | None:
    asked = "traceparent" in view.headers and any(
        text.startswith("Read HEARTBEAT.md if it exists") and "HEARTBEAT_OK" in text[:1000] for text in view.last
    )
    return Scenario.HEARTBEAT if asked else None


_CLAUDE = "Claude Code 2.1.332 and 2.1.197, Claude Agent SDK 0.2.189"
_CODEX = "Codex 0.171.0"
_OPENCODE = "opencode 1.18.33"
_QWEN = "qwen-code 0.24.4"

CLIENT_RULES: tuple[Rule, ...] = (
    Rule("claude-code-probe", _CLAUDE, "read in the program: one message `quota`, max_tokens 1", _claude_code_probe),
    Rule(
        "claude-code-compaction",
        _CLAUDE,
        "recorded: the last text begins with `CRITICAL: Respond with TEXT ONLY`; before the sub-agent's rule, because "
        "sub-agents compact too",
        _claude_code_compaction,
    ),
    Rule(
        "claude-code-search", _CLAUDE, "measured: the only tools are `web_search_…` server tools", _claude_code_search
    ),
    Rule(
        "claude-code-title",
        _CLAUDE,
        "measured: no tools, `output_config.format` asks for an object with a `title`",
        _claude_code_title,
    ),
    Rule(
        "claude-code-fetch",
        _CLAUDE,
        "read in the program: no tools, the message begins with `Web page content:`",
        _claude_code_fetch,
    ),
    Rule(
        "claude-code-suggestion",
        _CLAUDE,
        "read in the program: the last text begins with `[SUGGESTION MODE:`",
        _claude_code_suggestion,
    ),
    Rule(
        "claude-code-sub-agent",
        _CLAUDE,
        "recorded: header `x-claude-code-agent-id`, and `cc_is_subagent=true` in the first system text",
        _claude_code_sub_agent,
    ),
    Rule("claude-code-main", _CLAUDE, "recorded: whatever else of it offers tools", _claude_code_main),
    Rule("codex-compaction", _CODEX, "recorded: `request_kind` is `compaction` in its metadata", _codex_compaction),
    Rule(
        "codex-sub-agent",
        _CODEX,
        "recorded: headers `x-openai-subagent` and `x-codex-parent-thread-id`, also in `client_metadata`; the kinds "
        "`compact` and `memory_consolidation` were not seen",
        _codex_sub_agent,
    ),
    Rule("codex-main", _CODEX, "recorded: `request_kind` is `turn`", _codex_main),
    Rule("opencode-title", _OPENCODE, "recorded: no tools, `You are a title generator.`", _opencode_title),
    Rule(
        "opencode-compaction",
        _OPENCODE,
        "recorded: no tools, `You are a context summarization agent.`",
        _opencode_compaction,
    ),
    Rule("opencode-sub-agent", _OPENCODE, "recorded: header `x-parent-session-id`", _opencode_sub_agent),
    Rule("opencode-main", _OPENCODE, "recorded: whatever else of it offers tools", _opencode_main),
    Rule("qwen-code-memory", _QWEN, "recorded: the system prompt of its memory extraction", _qwen_code_memory),
    Rule(
        "qwen-code-compaction",
        _QWEN,
        "recorded: the last text begins with `You are the component that summarizes a conversation`",
        _qwen_code_compaction,
    ),
    Rule("qwen-code-sub-agent", _QWEN, "recorded: the system prompt of its sub-agents", _qwen_code_sub_agent),
    Rule(
        "hermes-compaction",
        "hermes-agent 0.19.0",
        "recorded: one message, no system prompt, no tools, `You are a summarization agent creating a context "
        "checkpoint.`",
        _hermes_compaction,
    ),
    Rule(
        "openclaw-heartbeat",
        "openclaw 2026.9.6",
        "its documentation: the default prompt of a heartbeat, sent as a user message",
        _openclaw_heartbeat,
    ),
)
"""In the order in which they are asked."""
