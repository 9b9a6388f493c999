"""Measure a policy on the shell-basics suite with a loop of its own: a second opinion on Uni-Agent's numbers.

python examples/quickstart_policy/evaluate.py --model /tmp/policy --samples 8
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from make_suite import SUITE
from rehearsal import Box, Chain, reply_to, toolset

from uni_agent.engine.base import SamplingParams
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.interaction.config import InteractionConfig
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import parse_messages

FORMAT_ERROR_BUDGET = InteractionConfig().format_error_budget


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
    renderer: ChatTemplateRenderer
    temperature: float
    max_turns: int

    async def play(self, record: dict[str, Any], sample: int) -> Episode:
        """One episode of the task `record`, graded by the task's own command."""
        box = Box(record["files"])
        try:
            ending, answer, texts = await self._turns(record, f"{record['id']}-{sample}", box)
            check = record["overrides"]["reward"]["command"]
            code, _ = await asyncio.to_thread(box.shell, check, UNI_AGENT_ANSWER=answer)
            return Episode(record["metadata"]["kind"], ending, code == 0, texts)
        finally:
            box.close()

    async def _turns(self, record: dict[str, Any], request_id: str, box: Box) -> tuple[str, str, list[str]]:
        tools = toolset()
        chain = Chain(self.renderer, tools, parse_messages(record["prompt"]))
        stop_ids = self.renderer.stop_token_ids
        sampling = SamplingParams(temperature=self.temperature, max_tokens=96, stop_token_ids=stop_ids)
        texts: list[str] = []
        format_errors = 0
        for _ in range(self.max_turns):
            output = await self.engine.generate(request_id, chain.ids, sampling)
            texts.append(self.renderer.decode(output.token_ids))
            cut = output.finish_reason == "length"
            parsed = chain.say(output.token_ids)
            reply = await asyncio.to_thread(reply_to, parsed, box, tools, cut=cut)
            if reply.answer is not None:
                return "finished", reply.answer, texts
            format_errors = 0 if reply.usable else format_errors + 1
            if format_errors > FORMAT_ERROR_BUDGET:
                return "format_error", "", texts
            chain.hear(reply.messages, cut=cut)
        return "max_step_limit", "", texts


def read_suite(path: Path) -> list[dict[str, Any]]:
    """The task records of a file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


async def evaluate(
    model: Path, records: list[dict[str, Any]], *, samples: int, temperature: float = 1.0, max_turns: int, seed: int
) -> list[Episode]:
    """`samples` episodes of each task, in the order of `records`."""
    engine = EmbeddedBackend(model, seed=seed)
    await engine.start()
    player = Player(engine, RendererConfig().build(model), temperature, max_turns)
    slots = asyncio.Semaphore(64)

    async def one(record: dict[str, Any], sample: int) -> Episode:
        async with slots:
            return await player.play(record, sample)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(record, number)) for record in records for number in range(samples)]
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
    episodes = asyncio.run(
        evaluate(
            options.model,
            read_suite(options.suite),
            samples=options.samples,
            temperature=options.temperature,
            max_turns=options.max_turns,
            seed=options.seed,
        )
    )
    for episode in episodes[: options.show]:
        print(episode.kind, episode.ending, episode.solved, *episode.texts, sep="\n  ")
    report(episodes)


if __name__ == "__main__":
    main()
