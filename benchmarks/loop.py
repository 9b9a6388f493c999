"""The loop's own cost: one long rollout, and a thousand at once, over a scripted engine and a dummy sandbox.

Reports CPU per turn early and late in 200 turns (a per-turn cost that grows with the history shows as a ratio above 1),
rollouts per second and memory per rollout for 1,000 concurrent rollouts of 20 turns. Prints one JSON object.

    python benchmarks/loop.py [--turns 200] [--rollouts 1000] [--check]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import uni_agent
from uni_agent.deployment.dummy import DummyConfig
from uni_agent.engine.scripted import ScriptedBackend
from uni_agent.interaction import InteractionConfig
from uni_agent.model.tokens import AgentChatModel
from uni_agent.pipeline import PipelineConfig
from uni_agent.runtime.rollout import Attempt, RolloutParts
from uni_agent.tokens.config import RendererConfig
from uni_agent.types import ExitReason, RolloutKey, Task, Turn

POLICY = Path(uni_agent.__file__).parent / "assets/quickstart_policy"
OBSERVATION = "\n".join(f"line {i}: a plausible piece of output with some text in it" for i in range(12))


class TurnClock:
    """CPU seconds of the process at each turn's end; a rollout's log that keeps nothing else."""

    def __init__(self) -> None:
        self.marks: list[float] = [time.process_time()]

    def state(self, state: str) -> None:
        del state

    def turn(self, turn: Turn) -> None:
        del turn
        self.marks.append(time.process_time())

    def event(self, kind: str, **data: object) -> None:
        del kind, data

    def per_turn(self) -> list[float]:
        return [b - a for a, b in zip(self.marks, self.marks[1:], strict=False)]


def pipeline(turns: int) -> PipelineConfig:
    return PipelineConfig.model_validate(
        {
            "data": {"type": "jsonl", "path": "unused.jsonl"},
            "model": {"type": "tokens", "engine": {"type": "embedded", "path": str(POLICY)}},
            "tools": ["execute_bash", "finish"],
            "deployment": DummyConfig(default=OBSERVATION).model_dump(),
            "reward": {"type": "dummy"},
            "interaction": InteractionConfig(max_turns=turns, episode_timeout=None).model_dump(),
        }
    )


def model() -> AgentChatModel:
    renderer = RendererConfig().build(POLICY)
    call = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "sed -n 1,40p src/main.py"}}\n</tool_call>'
    backend = ScriptedBackend([call], encode=renderer.tokenizer.encode, repeat=True, record=False)
    return AgentChatModel(backend, renderer)


async def rollout(index: int, config: PipelineConfig, parts: RolloutParts, log: TurnClock) -> int:
    attempt = Attempt(RolloutKey(f"t{index}", 0), 0, Task(id=f"t{index}", prompt="Fix the bug."), config, parts, log)
    record, chains = await attempt.run()
    if record.exit_reason is not ExitReason.MAX_STEP_LIMIT or not record.account.balanced:
        raise SystemExit(f"rollout {index} ended as {record.exit_reason}: {record.error}")
    return sum(len(chain) for chain in chains)


async def one_long(turns: int) -> dict[str, Any]:
    """CPU per turn over one rollout; medians of the second and the last tenth."""
    chat = model()
    await chat.start()
    parts = RolloutParts(chat, asyncio.Semaphore(1))
    best: list[float] = []
    tokens = 0
    for _ in range(3):  # the fastest of three passes for each turn: collections and neighbours are noise
        log = TurnClock()
        tokens = await rollout(0, pipeline(turns), parts, log)
        best = [min(a, b) for a, b in zip(best, log.per_turn(), strict=True)] if best else log.per_turn()
        await chat.backend.release("t0#0")
    tenth = max(turns // 10, 1)
    early, late = median(best[tenth : 2 * tenth]), median(best[-tenth:])
    return {
        "turns": turns,
        "tokens": tokens,
        "cpu_ms_per_turn_early": round(1000 * early, 3),
        "cpu_ms_per_turn_late": round(1000 * late, 3),
        "late_over_early": round(late / early, 3),
    }


async def many(rollouts: int, turns: int) -> dict[str, Any]:
    """All at once: rollouts per second, and the growth of resident memory by rollout."""
    chat = model()
    await chat.start()
    parts = RolloutParts(chat, asyncio.Semaphore(rollouts))
    config = pipeline(turns)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(rollout(i, config, parts, TurnClock()) for i in range(rollouts)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "rollouts": rollouts,
        "turns_each": turns,
        "seconds": round(wall, 2),
        "rollouts_per_second": round(rollouts / wall, 1),
        "cpu_ms_per_turn": round(1000 * cpu / rollouts / turns, 3),
        "peak_kib_per_rollout": round(grown / rollouts, 1),
    }


def main() -> int:
    """Run both and print the numbers; with --check, exit 1 when late turns cost more than 1.5 times early ones."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    long = asyncio.run(one_long(args.turns))
    result = {"one_long": long, "many": asyncio.run(many(args.rollouts, 20))}
    print(json.dumps(result, indent=2))
    return int(args.check and long["late_over_early"] > 1.5)


if __name__ == "__main__":
    sys.exit(main())
