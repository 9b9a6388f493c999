"""Plays a recording of a real client against a gateway whose engine samples what the recorded response said."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from tests.gateway.replay.copy_recordings import Piece, spoken
from tests.gateway.replay.record import NotingBackend
from tests.gateway.support import Answer, Gateway, Opened
from uni_agent.engine.base import TokenOutput
from uni_agent.engine.scripted import ScriptedTurn
from uni_agent.errors import ContextLengthError, ModelError

FIXTURES = Path(__file__).parent / "fixtures"
MODEL_APIS = ("messages", "chat", "responses")


@cache
def recordings() -> dict[str, list[dict[str, Any]]]:
    """`<client>/<scenario>` → the requests of that run."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(FIXTURES.glob("*.jsonl.gz")):
        for line in gzip.decompress(path.read_bytes()).decode().split("\n"):
            recording = json.loads(line)
            found[recording["name"]] = recording["steps"]
    return found


def written(pieces: Sequence[Piece], *, cut: bool = False) -> str:
    """What a Qwen3 model samples to say `pieces`. `cut`: it has come no further than the arguments of its last call."""
    out: list[str] = []
    for number, (kind, *rest) in enumerate(pieces):
        if kind == "thinking":
            out.append(f"<think>\n{rest[0]}\n</think>\n\n")
        elif kind == "text":
            out.append(rest[0])
        else:
            name, arguments, _, form = rest
            value = json.dumps({"input": arguments}, ensure_ascii=False) if form == "custom" else arguments or "{}"
            line = f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {value}'
            end = "" if cut and number == len(pieces) - 1 else "}\n</tool_call>"
            out.append(("\n" if out else "") + line + end)
    return "".join(out)


class RefusingBackend(NotingBackend):
    """A turn that fails does so because its prompt is too long."""

    async def generate(self, *args: Any, **options: Any) -> TokenOutput:
        try:
            return await super().generate(*args, **options)
        except ModelError as error:
            if "in turn" in str(error):
                raise ContextLengthError("the prompt is too long") from error
            raise


def script_of(steps: Sequence[dict[str, Any]], encode: Any) -> list[ScriptedTurn]:
    """One generation per request, but none for a request that was left: a cancelled call gives its turn back."""
    script: list[ScriptedTurn] = []
    for before, step in zip([None, *steps], steps, strict=False):
        if step["api"] in MODEL_APIS and not step["gone"]:
            turn = turn_of(step, encode)
            script.append(replace(turn, delay=0.2) if before is not None and before["gone"] else turn)
    return script


def turn_of(step: dict[str, Any], encode: Any) -> ScriptedTurn:
    """The generation that answers a recorded request."""
    if step["status"] != 200:
        return ScriptedTurn(fault="raise")
    ids = tuple(encode(written(step["said"], cut=step["cut"] or step["finish"] == "length")))
    if step["cut"]:
        return ScriptedTurn(ids, fail_after=len(ids))
    if step["finish"] == "length":
        return ScriptedTurn(ids, finish_reason="length")
    return ScriptedTurn(ids)


@dataclass(slots=True)
class Player:
    """One run of a client.

    `names` (ids), `signatures` (of thinking) and `broken` (arguments that are no JSON) map what the recorded server
    gave out to what this gateway gave out.
    """

    gateway: Gateway
    session: Opened
    names: dict[str, str] = field(default_factory=dict[str, str])
    signatures: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    broken: dict[str, str] = field(default_factory=dict[str, str])
    said: list[list[Piece]] = field(default_factory=list[list[Piece]])
    drifts: list[dict[str, int]] = field(default_factory=list[dict[str, int]])

    async def play(self, steps: Sequence[dict[str, Any]]) -> list[Answer | None]:
        """All requests, in order; None for one that the client left before it was answered."""
        return [await self._left(step) if step["gone"] else await self._answered(step) for step in steps]

    async def _answered(self, step: dict[str, Any]) -> Answer:
        before = (await self.gateway.info(self.session))["accounting"]["drift"]
        answer = await self._send(step)
        after = (await self.gateway.info(self.session))["accounting"]["drift"]
        new = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)}
        self.drifts.append(new)
        if step["api"] in MODEL_APIS and answer.status == 200:
            self._learn(step, answer)
        return answer

    async def _left(self, step: dict[str, Any]) -> None:
        self.gateway.backend.asked.clear()
        sending = asyncio.ensure_future(self._send(step))
        await asyncio.wait_for(self.gateway.backend.asked.wait(), 10)
        sending.cancel()
        await asyncio.wait([sending])

    async def _send(self, step: dict[str, Any]) -> Answer:
        query = "&".join(f"{name}={value}" for name, value in step["query"].items())
        headers = {**step["headers"], "x-api-key": self.session.api_key, "Authorization": "Bearer sk-dummy"}
        body = None if step["body"] is None else self.renamed(step["body"])
        return await self.gateway.request(
            step["method"], step["path"] + (f"?{query}" if query else ""), body, headers=headers
        )

    def _learn(self, step: dict[str, Any], answer: Answer) -> None:
        """The ids of this answer, which the client will send where the recorded ones stand."""
        events = answer.events if answer.body.startswith((b"event:", b"data:")) else []
        response = {"status": 200, "events": events} if events else {"status": 200, "body": answer.json}
        pieces, finish, handles = spoken(step["api"], response)
        recorded = [piece for piece in step["said"] if piece[0] != "text" or piece[1].strip()]
        if step["finish"] == "stop" and not step["cut"]:  # what a cut turn had said of a call may be another part of it
            assert finish == "stop"
            assert [meaning(piece) for piece in pieces] == [meaning(piece) for piece in recorded]
        self.said.append(pieces)
        for old, new in zip(recorded, pieces, strict=False):
            if old[0] == new[0] == "call":
                self._name(old[3], new[3])
                if meaning(old)[2] == "broken":
                    self.broken[old[2]] = new[2]
            elif old[0] == new[0] == "thinking" and old[2] and new[2]:
                self.signatures.setdefault(old[2], []).append(new[2])
        for old_name, new_name in zip(step["handles"], handles, strict=False):
            self._name(old_name, new_name)

    def _name(self, old: str, new: str) -> None:
        if old and new:
            self.names[old] = new
            # openclaw leaves letters and digits alone, and 40 of them: all of this gateway's own.
            self.names[re.sub(r"[^A-Za-z0-9]", "", old)[:40]] = new

    def renamed(self, body: Any) -> Any:
        """`body` with what this gateway gave out."""
        # The recorded server signed all thinking alike: a history has the signatures in their order.
        signatures = {old: iter(new) for old, new in self.signatures.items()}

        def walk(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: walk(item) for key, item in cast("dict[str, Any]", value).items()}
            if isinstance(value, list):
                return [walk(item) for item in cast("list[Any]", value)]
            if not isinstance(value, str):
                return value
            if value in signatures:
                return next(signatures[value], value)
            for old, new in self.broken.items():
                value = value.replace(old, new).replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
            return self.names.get(value, value)

        return walk(body)


def meaning(piece: Piece) -> tuple[Any, ...]:
    """What a client makes of a piece."""
    if piece[0] != "call":
        return piece[0], piece[1].strip()
    try:
        arguments = json.loads(piece[2] or "{}")
    except ValueError:
        arguments = "broken"
    return "call", piece[1], {"input": piece[2]} if piece[4] == "custom" else arguments
