"""Turns share the event loop."""

from __future__ import annotations

import asyncio
import time

from uni_agent.gateway.pace import Pace

WORK = 0.004


async def test_a_timer_waits_for_one_piece_of_work_not_for_all() -> None:
    pace = Pace()
    done: list[int] = []

    async def work(number: int) -> None:
        await pace.turn()
        time.sleep(WORK)  # noqa: ASYNC251 - work that holds the loop
        done.append(number)

    async def ticks() -> int:
        count = 0
        while len(done) < 50:
            await asyncio.sleep(0)
            count += 1
        return count

    _, seen = await asyncio.gather(asyncio.gather(*(work(i) for i in range(50))), ticks())
    assert done == list(range(50))  # in the order in which they asked
    assert seen >= 50  # the loop came round at least once for each


async def test_who_leaves_while_waiting_holds_nobody_up() -> None:
    pace = Pace()
    await pace.turn()
    waiting = [asyncio.ensure_future(pace.turn()) for _ in range(6)]
    await asyncio.sleep(0)
    for task in waiting[:5]:
        task.cancel()
    await asyncio.wait_for(waiting[5], 1)
    await asyncio.sleep(0.01)
    await asyncio.wait_for(pace.turn(), 1)  # and it is free again behind them
