"""Measure a policy on the shell-basics suite with a loop of its own: a second opinion on Uni-Agent's numbers.

python examples/quickstart_policy/evaluate.py --model /tmp/policy --samples 8
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demos import TOOLS, Box, Message
from make_suite import SUITE
from policy import END, initial_text, observation_text
from tokenizers import Tokenizer
from world import ShellTask

from uni_agent.engine.base import SamplingParams
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.interaction.observation import format_hint

FORMAT_ERROR_BUDGET = 3
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.S)
# Commands that the policy may run here, outside any sandbox: programs of its world on plain names, nothing else.
_SAFE = re.compile(r"(?:(?:echo|rm|cp|mv|mkdir|cat|wc|ls|touch)(?= |$))[a-z0-9.\-> ']*")


@dataclass(slots=True)
class Episode:
    """What one episode came to."""

    kind: str
    ending: str
    solved: bool
    texts: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True)
class Player:
    """Plays episodes with one engine."""

    engine: EmbeddedBackend
    tokenizer: Tokenizer
    temperature: float
    max_turns: int

    async def play(self, record: dict[str, Any], sample: int) -> Episode:
        """One episode of the task `record`, graded by the task's own command."""
        kind = record["metadata"]["kind"]
        box = Box(ShellTask(kind, "", "", "", "", record["files"]))
        try:
            ending, answer, texts = await self._turns(record, f"{record['id']}-{sample}", box)
            check = record["overrides"]["reward"]["command"]
            code, _ = await asyncio.to_thread(box.shell, check, 10.0, UNI_AGENT_ANSWER=answer)
            return Episode(kind, ending, code == 0, texts)
        finally:
            box.close()

    async def _turns(self, record: dict[str, Any], request_id: str, box: Box) -> tuple[str, str, list[str]]:
        prompt = [Message(m["role"], m["content"]) for m in record["prompt"]]
        ids = self.tokenizer.encode(initial_text(prompt, TOOLS)).ids
        end = self.tokenizer.token_to_id(END)
        sampling = SamplingParams(temperature=self.temperature, max_tokens=96, stop_token_ids=(end,))
        texts: list[str] = []
        format_errors = 0
        for _ in range(self.max_turns):
            output = await self.engine.generate(request_id, ids, sampling)
            ids += output.token_ids
            text = self.tokenizer.decode([i for i in output.token_ids if i != end], skip_special_tokens=False)
            texts.append(text)
            if output.finish_reason == "length":
                ids.append(end)
            name, argument = read_call(text)
            if name == "finish":
                return "finished", argument, texts
            if name == "execute_bash":
                format_errors = 0
                observed = await asyncio.to_thread(box.run, argument) if _SAFE.fullmatch(argument) else "not run here"
                message = Message("tool", observed)
            else:
                format_errors += 1
                if format_errors > FORMAT_ERROR_BUDGET:
                    return "format_error", "", texts
                hint = format_hint(TOOLS, cut=output.finish_reason == "length", marker_seen="<tool_call>" in text)
                message = Message("user", hint)
            ids += self.tokenizer.encode(observation_text([message])).ids
        return "max_step_limit", "", texts


def read_call(text: str) -> tuple[str, str]:
    """Name and only argument of the first call in `text`; two empty strings when there is no usable one."""
    found = _CALL.search(text)
    try:
        call = json.loads(found.group(1)) if found else {}
        value = call["arguments"][{"execute_bash": "command", "finish": "answer"}[call["name"]]]
    except (ValueError, KeyError, TypeError):
        return "", ""
    return (call["name"], value) if isinstance(value, str) else ("", "")


async def evaluate(options: argparse.Namespace) -> list[Episode]:
    """All episodes that the command line asks for."""
    records = [json.loads(line) for line in options.suite.read_text("utf-8").splitlines()]
    engine = EmbeddedBackend(options.model, seed=options.seed)
    await engine.start()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    player = Player(engine, tokenizer, options.temperature, options.max_turns)
    slots = asyncio.Semaphore(64)

    async def one(record: dict[str, Any], sample: int) -> Episode:
        async with slots:
            return await player.play(record, sample)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(record, s)) for record in records for s in range(options.samples)]
        return [task.result() for task in tasks]
    finally:
        await engine.close()


def report(episodes: Sequence[Episode]) -> None:
    """Print success by kind, and endings."""
    kinds = Counter(e.kind for e in episodes)
    solved = Counter(e.kind for e in episodes if e.solved)
    for kind, count in kinds.items():
        print(f"{kind:8} {solved[kind] / count:6.1%} of {count}")
    print(f"{'all':8} {solved.total() / len(episodes):6.1%} of {len(episodes)}")
    print("endings:", dict(Counter(e.ending for e in episodes)))
    print("turns:", dict(sorted(Counter(len(e.texts) for e in episodes).items())))


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description="Measure a policy on shell tasks.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--suite", type=Path, default=SUITE)
    parser.add_argument("--samples", type=int, default=4, help="episodes per task")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-turns", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="how many episodes to print")
    options = parser.parse_args()
    episodes = asyncio.run(evaluate(options))
    for episode in episodes[: options.show]:
        print(episode.kind, episode.ending, episode.solved, *episode.texts, sep="\n  ")
    report(episodes)


if __name__ == "__main__":
    main()
