"""Make the fixtures of this folder from a folder of recordings: `python copy_recordings.py RECORDINGS`.

A recording is one JSON line per HTTP request, in files `<client>/<scenario>.jsonl`. What a replay needs is kept: the
requests, and what each response said, as pieces in their order:

    ["thinking", text, signature or encrypted content]
    ["text", text]
    ["call", name, arguments as written, id, "function" or "custom"]
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

HEADERS = (
    "user-agent", "anthropic-version", "anthropic-beta", "x-claude-code-session-id", "x-claude-code-agent-id",
    "x-stainless-retry-count", "thread-id", "session-id", "x-codex-window-id", "x-codex-turn-metadata",
    "x-openai-subagent", "x-codex-parent-thread-id", "x-session-id", "x-parent-session-id",
)  # fmt: skip

SERVED_AT = "http://127.0.0.1:8800/r/x"

Piece = list[Any]


def step(row: dict[str, Any]) -> dict[str, Any]:
    """One request, and what was said to it."""
    request, response = row["request"], row["response"]
    headers = {name.lower(): value for name, value in request["headers"]}
    said, finish, handles = spoken(row["api"], response)
    # What was served names the server's address, what came back has a neutral one.
    said = [[text.replace(SERVED_AT, "http://gateway.test") for text in piece] for piece in said]
    return {
        "api": row["api"],
        "method": request["method"],
        "path": request["path"],
        "query": request["query"],
        "headers": {name: headers[name] for name in HEADERS if name in headers},
        "body": request["body"],
        "status": response["status"],
        "conversation": row["conversation"],
        "said": said,
        "finish": finish,
        "handles": handles,
        "cut": row["response"].get("cut") is not None,
        "gone": "client_gone" in response,
    }


def spoken(api: str, response: dict[str, Any]) -> tuple[list[Piece], str, list[str]]:
    """(pieces, "stop" or "length", ids that later requests may name) of a response."""
    body: Any = response.get("body")
    events: list[Any] = [data for _, data in listed(response.get("events"))]
    if response["status"] != 200 or api not in ("messages", "chat", "responses"):
        return [], "stop", []
    if api == "messages":
        blocks, reason, name = (body["content"], body["stop_reason"], body["id"]) if body else streamed_blocks(events)
        return [piece for block in blocks for piece in block_pieces(block)], ended(reason == "max_tokens"), [name]
    if api == "chat":
        message, reason = (
            (body["choices"][0]["message"], body["choices"][0]["finish_reason"]) if body else streamed_message(events)
        )
        return message_pieces(message), ended(reason == "length"), []
    opened: list[dict[str, Any]] = [{}, *(event["response"] for event in events if "response" in event)]
    last: dict[str, Any] = body or opened[-1]
    items: list[Any] = body["output"] if body else streamed_items(events)
    handles: list[str] = [last.get("id", ""), *(item.get("id", "") for item in items)]
    return [p for item in items for p in item_pieces(item)], ended(last.get("status") == "incomplete"), handles


def listed(value: Any) -> list[Any]:
    """A list, [] for null."""
    return value or []


def ended(cut: bool) -> str:
    return "length" if cut else "stop"


def streamed_blocks(events: list[Any]) -> tuple[list[Any], str, str]:
    blocks: dict[int, Any] = {}
    reason = name = ""
    for event in events:
        kind = event["type"]
        if kind == "message_start":
            name = event["message"]["id"]
        elif kind == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "input_json": ""}
        elif kind == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            for source, target in (
                ("text",) * 2,
                ("thinking",) * 2,
                ("signature",) * 2,
                ("partial_json", "input_json"),
            ):
                if source in delta:
                    block[target] = block.get(target, "") + delta[source]
        elif kind == "message_delta":
            reason = event["delta"].get("stop_reason") or ""
    return list(blocks.values()), reason, name


def block_pieces(block: dict[str, Any]) -> list[Piece]:
    if block["type"] == "thinking":
        return [["thinking", block["thinking"], block.get("signature") or ""]]
    if block["type"] == "tool_use":
        written = block.get("input_json") or json.dumps(block.get("input") or {}, ensure_ascii=False)
        return [["call", block["name"], written, block["id"], "function"]]
    return [["text", block["text"]]]


def streamed_message(events: list[Any]) -> tuple[dict[str, Any], str]:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    calls: dict[int, Any] = {}
    reason = ""
    for event in events:
        for choice in listed(event.get("choices")) if event != "[DONE]" else []:
            delta: dict[str, Any] = choice["delta"]
            reason = choice.get("finish_reason") or reason
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for part in listed(delta.get("tool_calls")):
                call = calls.setdefault(part.get("index", 0), {"id": "", "function": {"name": "", "arguments": ""}})
                call["id"] = part.get("id") or call["id"]
                for key in ("name", "arguments"):
                    call["function"][key] += part.get("function", {}).get(key) or ""
    message["tool_calls"] = list(calls.values())
    return message, reason


def message_pieces(message: dict[str, Any]) -> list[Piece]:
    pieces: list[Piece] = []
    if thinking := message.get("reasoning_content") or message.get("reasoning"):
        pieces.append(["thinking", thinking, ""])
    if message.get("content"):
        pieces.append(["text", message["content"]])
    for call in listed(message.get("tool_calls")):
        pieces.append(["call", call["function"]["name"], call["function"]["arguments"], call["id"], "function"])
    return pieces


def streamed_items(events: list[Any]) -> list[Any]:
    """Items that are done, and what there is of those that are not."""
    items: dict[int, Any] = {}
    for event in events:
        kind = event["type"]
        if kind in ("response.output_item.added", "response.output_item.done"):
            items[event["output_index"]] = event["item"]
        elif kind == "response.output_text.delta":
            item = items[event["output_index"]]
            if not item["content"]:
                item["content"] = [{"type": "output_text", "text": ""}]
            item["content"][0]["text"] += event["delta"]
        elif kind == "response.function_call_arguments.delta":
            items[event["output_index"]]["arguments"] += event["delta"]
    return list(items.values())


def item_pieces(item: dict[str, Any]) -> list[Piece]:
    if item["type"] == "reasoning":
        text = "".join(part["text"] for part in listed(item.get("content") or item.get("summary")))
        return [["thinking", text, item.get("encrypted_content") or ""]]
    if item["type"] == "message":
        return [["text", "".join(part.get("text", "") for part in item["content"])]]
    if item["type"] == "custom_tool_call":
        return [["call", item["name"], item["input"], item["call_id"], "custom"]]
    space = item.get("namespace")
    name = item["name"] if not space else f"{space}{'' if space.endswith('_') else '__'}{item['name']}"
    return [["call", name, item["arguments"], item["call_id"], "function"]]


def main(source: Path, target: Path) -> None:
    """Write one gzip file per client: one line per recording."""
    for client in sorted(path for path in source.iterdir() if path.is_dir()):
        lines: list[str] = []
        for path in sorted(client.glob("*.jsonl")):
            if path.name == "outcomes.jsonl":  # no requests, only how runs ended
                continue
            rows = [json.loads(line) for line in path.open(encoding="utf-8")]
            recording = {"name": f"{client.name}/{path.stem}", "steps": [step(row) for row in rows]}
            lines.append(json.dumps(recording, ensure_ascii=False, separators=(",", ":")))
        data = gzip.compress("\n".join(lines).encode(), 9, mtime=0)
        (target / f"{client.name}.jsonl.gz").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent / "fixtures")
