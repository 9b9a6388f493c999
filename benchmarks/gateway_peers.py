"""Another project's gateway in front of an engine that answers at once; run by a Python that has it installed.

    PYTHON benchmarks/gateway_peers.py agentcore TOKENIZER SCRIPT

Prints `listening on URL gateway pid N`: the CPU time of process N is that of the gateway alone. It samples
inside its process, as ours does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any


def turns_of(script: Path) -> list[str]:
    """The texts of the script."""
    return [json.loads(line)["text"] for line in script.read_text().splitlines()]


def agentcore(tokenizer_folder: str, script: Path) -> None:
    """Serve agentcore-rl-toolkit's gateway until the process is ended."""
    from agentcore_rl_toolkit.rollout_gateway import HfTemplateRenderer, RolloutGateway, TurnRecord
    from aiohttp import web
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    outputs = [tokenizer.encode(text + "<|im_end|>", add_special_tokens=False) for text in turns_of(script)]

    class Instant:
        """Plays the script to each session."""

        def __init__(self) -> None:
            self.positions: dict[str | None, int] = {}

        async def generate(self, *, prompt_ids: list[int], session_id: str | None = None, **_: Any) -> Any:
            """The next turn."""
            at = self.positions[session_id] = self.positions.get(session_id, -1) + 1
            ids = outputs[at % len(outputs)]
            return TurnRecord(
                prompt_ids=list(prompt_ids),
                output_ids=list(ids),
                finish_reason="stop",
                output_log_probs=[-0.5] * len(ids),
            )

    def calls(body: str, _: Any) -> tuple[str, list[dict[str, Any]], bool]:
        text, mark, call = body.partition("<tool_call>")
        if not mark:
            return text, [], False
        function = json.loads(call.partition("</tool_call>")[0])
        return text, [{"name": function["name"], "input": function["arguments"]}], False

    renderer = HfTemplateRenderer(tokenizer, tool_parser=calls)
    gateway = RolloutGateway(backend=Instant(), renderer=renderer, tokenizer=tokenizer)

    async def serve() -> None:
        runner = web.AppRunner(gateway.app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        announce(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


def announce(port: int) -> None:
    """Say where the gateway is."""
    print(f"listening on http://127.0.0.1:{port} gateway pid {os.getpid()}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] != "agentcore":
        raise SystemExit(f"unknown peer {sys.argv[1]!r}: agentcore")
    agentcore(sys.argv[2], Path(sys.argv[3]))
