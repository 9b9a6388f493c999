"""What is kept between the turns of a conversation, oldest first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Session:
    """The keys and values of `ids` [T]: `kv` is [layers, 2, heads, T, size]."""

    ids: list[int]
    kv: torch.Tensor

    def shared(self, prompt: Sequence[int]) -> int:
        """How many leading tokens of `prompt` are here; at most all but its last one, whose logits are needed."""
        most = min(len(self.ids), len(prompt) - 1)
        if self.ids[:most] == list(prompt[:most]):
            return most
        return next(i for i in range(most) if self.ids[i] != prompt[i])


class SessionStore:
    """Sessions by request id, at most `most` of them and at most `most_bytes` of memory; the least recently used go."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def clear(self) -> None:
        """Forget everything."""
        self._sessions.clear()
        self._bytes = 0

    def longest(self, prompt: Sequence[int]) -> Session | None:
        """The session that shares the most leading tokens with `prompt`, whoever left it; None when none shares any.

        One that `prompt` continues is taken out, since what comes back holds all of it; others stay. The cost is one
        comparison for each session that shares less than the best so far.
        """
        best, most, found = None, 0, ""
        for request_id, session in self._sessions.items():
            ids = session.ids
            if len(ids) > most and len(prompt) > most + 1 and ids[most] == prompt[most]:
                shared = session.shared(prompt)
                if shared > most:
                    best, most, found = session, shared, request_id
        return self.take(found) if best is not None and most == len(best.ids) else best

    def take(self, request_id: str) -> Session | None:
        """Remove and return the session; None when there is none."""
        session = self._sessions.pop(request_id, None)
        if session is not None:
            self._bytes -= session.kv.nbytes
        return session

    def put(self, request_id: str, session: Session) -> None:
        """Keep `session`, in place of an older one of the same id, and let go of what no longer fits."""
        self.take(request_id)
        self._sessions[request_id] = session
        self._bytes += session.kv.nbytes
        while self._sessions and (len(self._sessions) > self._most or self._bytes > self._most_bytes):
            _, oldest = self._sessions.popitem(last=False)
            self._bytes -= oldest.kv.nbytes
