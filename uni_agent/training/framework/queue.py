"""Writes to TransferQueue that are tried again: a status that is not written would make the trainer wait for ever."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from uni_agent.optional import load

_log = logging.getLogger(__name__)

Status = Literal["running", "finished", "failure"]
Partition = Literal["train", "val"]
Record = tuple[str, dict[str, Any], dict[str, Any]]
"""Key, fields and tag; see `transfer_queue_record`."""

_RECORD_SECONDS = 60.0
_STATUS_SECONDS = 900.0
_CALL_SECONDS = 120.0
_MOST_WAIT = 10.0


@dataclass(slots=True)
class Queue:
    """TransferQueue (`client` is its module) as the worker writes it; `seconds` are how long each kind is tried."""

    client: Any
    record_seconds: float = _RECORD_SECONDS
    status_seconds: float = _STATUS_SECONDS

    @classmethod
    def join(cls) -> Queue:
        """The queue that the trainer started. Raises MissingExtraError without TransferQueue."""
        client = load("transfer_queue", extra="train", needed_for="rollouts behind the gateway")
        client.init()
        return cls(client)

    async def prepare(self) -> None:
        """Import what records are built with: verl takes seconds, which sessions should not have to wait for."""
        await asyncio.to_thread(_tensordicts)

    async def status(self, uid: str, partition: Partition, status: Status) -> None:
        """Mark a prompt. Raises what the last try raised."""
        seconds = self.record_seconds if status == "running" else self.status_seconds
        await _tried(
            f"status {status} of prompt {uid}",
            seconds,
            lambda: self.client.async_kv_put(key=uid, partition_id=partition, tag={"status": status}),
        )

    async def records(self, partition: Partition, records: Sequence[Record]) -> None:
        """Write the trajectories of one session; again under the same keys does no harm. Raises as `status`."""
        if not records:
            return
        fields = _tensordicts().list_of_dict_to_tensordict([fields for _, fields, _ in records])
        keys, tags = [key for key, _, _ in records], [tag for _, _, tag in records]
        await _tried(
            f"records {', '.join(keys)}",
            self.record_seconds,
            lambda: self.client.async_kv_batch_put(keys=keys, partition_id=partition, fields=fields, tags=tags),
        )

    async def clear(self, partition: Partition, keys: Sequence[str]) -> None:
        """Take records away that were written only in part. Never raises."""
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await self.client.async_kv_clear(keys=list(keys), partition_id=partition)
        except Exception:  # the prompt is marked as failed all the same
            _log.warning("records %s cannot be cleared", ", ".join(keys), exc_info=True)


def _tensordicts() -> Any:
    return load("verl.utils.tensordict_utils", extra="train", needed_for="records in TransferQueue")


async def _tried(what: str, seconds: float, call: Callable[[], Awaitable[Any]]) -> None:
    until, wait = time.monotonic() + seconds, 0.1
    while True:
        try:
            async with asyncio.timeout(_CALL_SECONDS):
                await call()
            return
        except Exception as error:  # TransferQueue raises plain exceptions of many kinds
            if time.monotonic() + wait > until:
                raise
            _log.warning(
                "TransferQueue: %s cannot be written (%s: %s); trying again", what, type(error).__name__, error
            )
        await asyncio.sleep(wait)
        wait = min(_MOST_WAIT, 2 * wait)


def fail_prompts(client: Any, *, seconds: float = _STATUS_SECONDS, pause: Callable[[float], Any] = time.sleep) -> int:
    """Mark every prompt of the queue that has not ended as failed, from outside an event loop; how many they were.

    Tries again for `seconds`, and not once `pause` says True. Raises what the last try raised.
    """
    until, wait, marked = time.monotonic() + seconds, 0.1, set[str]()
    while True:
        try:
            found: dict[str, dict[str, Any]] = client.kv_list() or {}
            for partition, items in found.items():
                for key, tag in items.items():
                    if tag.get("is_prompt") and tag.get("status") in ("pending", "running"):
                        client.kv_put(key=key, partition_id=partition, tag={"status": "failure"})
                        marked.add(key)
            return len(marked)
        except Exception as error:  # TransferQueue raises plain exceptions of many kinds
            if time.monotonic() + wait > until or pause(wait):
                raise
            _log.warning(
                "TransferQueue: prompts cannot be marked as failed (%s: %s); trying again", type(error).__name__, error
            )
        wait = min(_MOST_WAIT, 2 * wait)
