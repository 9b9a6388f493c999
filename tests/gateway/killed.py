"""A process in which gateways kill themselves at a chosen write of their journal, and others go on where they died.

`python killed.py TOKENIZER FOLDER` plays one session script (STEPS) for every write of the journal and every MODE, and
prints one JSON line per run. Each life is a forked child: SIGKILL ends it as it ends a real gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from tests.gateway.support import ADMIN, Answer, Gateway, Opened, call
from tests.tokens.small import TEMPLATES
from uni_agent.engine.scripted import Script, ScriptedBackend, ScriptedTurn
from uni_agent.gateway.config import GatewayConfig
from uni_agent.gateway.http.server import GatewayServer
from uni_agent.gateway.journal import Journal
from uni_agent.gateway.keys import signed_key
from uni_agent.gateway.node import GatewayNode
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.renderer import ChatTemplateRenderer

SECRET = b"shared"
MODES = ("before", "inside", "after")
HI = {"role": "user", "content": "hi"}


class KillingJournal(Journal):
    """Ends its process at write number `at` of the run: before it, after a part of its bytes, or when it is done."""

    def __init__(self, path: Path, at: int, mode: str) -> None:
        self._at = at
        self._mode = mode
        self.writes = 0
        super().__init__(path)

    def _write(self, frame: bytes) -> None:
        if self.writes == self._at:
            if self._mode == "inside":
                part = (1, len(frame) // 2, len(frame) - 1)[self._at % 3]
                os.pwrite(self._fd, frame[:part], self._end)
            if self._mode != "after":
                os.kill(os.getpid(), signal.SIGKILL)
        super()._write(frame)
        if self.writes == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.writes += 1


class StepEngine(ScriptedBackend):
    """Plays what the step says, from its start in each life."""

    def play(self, script: Script) -> None:
        self._script = [self._turn(turn) for turn in script]
        self._positions.clear()


class Life:
    """One gateway on a journal, and the client's memory, which outlives it."""

    def __init__(self, renderer: ChatTemplateRenderer, folder: Path, at: int, mode: str) -> None:
        self.renderer = renderer
        self.folder = folder
        self.engine = StepEngine(encode=renderer.tokenizer.encode, shared=True)
        self._kill = (at, mode)
        self.memory: dict[str, Any] = {"step": 0, "talk": [HI], "response": ""}
        if (folder / "memory.json").exists():
            self.memory = json.loads((folder / "memory.json").read_text())
        self.gateway: Gateway
        self.journal: KillingJournal

    async def serve(self, http: aiohttp.ClientSession) -> None:
        at, mode = self._kill
        self.journal = KillingJournal(self.folder / "gateway.journal", at, mode)
        config = GatewayConfig.model_validate({"retries": 0, "session": {"abandoned": "drop"}})
        node = GatewayNode(self.engine, self.renderer, config, journal=self.journal, secret=SECRET)
        server = GatewayServer(node, admin_token=ADMIN)
        await server.start()
        self.gateway = Gateway(server, self.engine, http)

    async def restart(self) -> None:
        http, writes = self.gateway.http, self.journal.writes
        await self.gateway.server.close()
        self._kill = (self._kill[0] - writes, self._kill[1])
        await self.serve(http)
        self._restarted = writes

    _restarted = 0

    @property
    def writes(self) -> int:
        return self._restarted + self.journal.writes

    def session(self, name: str) -> Opened:
        api, reward = signed_key(SECRET, "api", name), signed_key(SECRET, "reward", name)
        return Opened(name, api, reward, f"{self.gateway.url}/sessions/{name}")

    async def admin(self, method: str, path: str, body: Any = None) -> Answer:
        return await self.gateway.request(method, path, body, ADMIN)

    async def opened(self, name: str) -> None:
        """Open a session; one that is there since a life whose answer was lost is as good."""
        answer = await self.admin("POST", "/sessions", {"session_id": name})
        assert answer.status == 201 or "exists" in answer.json["error"]["message"], answer.body

    async def chat(self, name: str, script: Script, **fields: Any) -> Answer:
        self.engine.play(script)
        answer = await self.gateway.chat(self.session(name), self.memory["talk"], **fields)
        assert answer.status == 200, answer.body
        return answer


Step = Callable[[Life], Awaitable[None]]


async def open_a(life: Life) -> None:
    await life.opened("a")


async def calls_a_tool(life: Life) -> None:
    answer = await life.chat("a", [call("ls", before="<think>\nhm\n</think>\n\nLook: ")])
    message = answer.json["choices"][0]["message"]
    life.memory["talk"] += [
        message,
        {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "a.txt"},
    ]


async def streams(life: Life) -> None:
    answer = await life.chat("a", ["Only one file."], stream=True)
    assert not answer.cut and answer.events[-1][1] == "[DONE]"
    life.memory["talk"] += [{"role": "assistant", "content": "Only one file."}, {"role": "user", "content": "more"}]


async def breaks_off(life: Life) -> None:
    answer = await life.chat("a", [ScriptedTurn("It will never be said", fail_after=4)], stream=True)
    assert answer.cut


async def stops(life: Life) -> None:
    turn = ScriptedTurn(life.renderer.tokenizer.encode("Hello STOP there"), piece=1000)
    await life.chat("a", [turn], stop=["STOP"])
    life.memory["talk"] += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "both"}]


async def calls_one_of_two(life: Life) -> None:
    await life.chat("a", [call("ls") + "\n" + call("pwd")], parallel_tool_calls=False)


async def responds(life: Life) -> None:
    life.engine.play(["First."])
    answer = await life.gateway.responses(life.session("a"), "one")
    assert answer.status == 200, answer.body
    life.memory["response"] = answer.json["id"]


async def responds_behind(life: Life) -> None:
    life.engine.play(["Second."])
    fields = {"previous_response_id": life.memory["response"]}
    answer = await life.gateway.responses(life.session("a"), "two", **fields)
    assert answer.status == 200, answer.body


async def opens_by_key(life: Life) -> None:
    life.engine.play(["Bonjour."])
    answer = await life.gateway.messages(life.session("b"), [HI])
    assert answer.status == 200, answer.body


async def cut_by_length(life: Life) -> None:
    life.engine.play(["Un deux trois quatre"])
    answer = await life.gateway.messages(life.session("b"), [HI, _said("Bonjour."), HI], max_tokens=3)
    assert answer.json["stop_reason"] == "max_tokens", answer.body


async def rewards(life: Life) -> None:
    for name, value in (("a", 0.25), ("b", 1)):
        key = life.session(name).reward_key
        answer = await life.gateway.request("POST", f"/sessions/{name}/reward_info", {"reward": value}, key)
        assert answer.status == 200, answer.body


async def open_others(life: Life) -> None:
    await life.opened("c")
    await life.opened("d")


async def says(life: Life) -> None:
    life.engine.play(["Lost."])
    assert (await life.gateway.chat(life.session("c"), [HI])).status == 200


async def aborts(life: Life) -> None:
    assert (await life.admin("POST", "/sessions/c/abort", {"reason": "bad"})).status == 200


async def forgets(life: Life) -> None:
    life.engine.play(["Gone."])
    assert (await life.gateway.chat(life.session("d"), [HI])).status in (200, 410)
    assert (await life.admin("POST", "/sessions/d/finalize")).status in (200, 410)
    assert (await life.admin("DELETE", "/sessions/d")).status in (204, 410)


async def restarts(life: Life) -> None:
    await life.restart()
    assert (await life.gateway.chat(life.session("d"), [HI])).status == 410, "a forgotten session stays so"


async def finalizes(life: Life) -> None:
    for name in ("a", "b"):
        assert (await life.admin("POST", f"/sessions/{name}/finalize")).status == 200


STEPS: tuple[Step, ...] = (
    open_a,
    calls_a_tool,
    streams,
    breaks_off,
    stops,
    calls_one_of_two,
    responds,
    responds_behind,
    opens_by_key,
    cut_by_length,
    rewards,
    open_others,
    says,
    aborts,
    forgets,
    restarts,
    finalizes,
)


def _said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


async def live(renderer: ChatTemplateRenderer, folder: Path, at: int, mode: str) -> None:
    """Play the steps that are left; leaves `done.json`."""
    life = Life(renderer, folder, at, mode)
    async with aiohttp.ClientSession() as http:
        await life.serve(http)
        while life.memory["step"] < len(STEPS):
            await STEPS[life.memory["step"]](life)
            life.memory["step"] += 1
            (folder / "memory.new").write_text(json.dumps(life.memory))
            (folder / "memory.new").replace(folder / "memory.json")
        exports = [await _exports(life)]
        writes = life.writes
        for _ in range(2):
            await life.restart()
            exports.append(await _exports(life))
        await life.gateway.server.close()
    (folder / "done.json").write_text(json.dumps({"exports": exports, "writes": writes}))


async def _exports(life: Life) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in ("a", "b", "c"):
        out[name] = (await life.admin("GET", f"/sessions/{name}/trajectories")).json
        late = await life.gateway.chat(life.session(name), [HI])
        out[name]["late"] = late.status
    out["d"] = (await life.gateway.chat(life.session("d"), [HI])).status
    return out


def in_child(work: Callable[[], None]) -> int:
    """`work()` in a forked process; its exit status, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return 1


def main(tokenizer: Path, folder: Path) -> int:
    """Run everything; 1 when a life ended otherwise than it should."""
    renderer = RendererConfig(chat_template=TEMPLATES / "qwen3.jinja").build(tokenizer)

    def run(name: str, at: int, mode: str) -> dict[str, Any]:
        place = folder / name
        place.mkdir()
        if at >= 0:
            status = in_child(lambda: asyncio.run(live(renderer, place, at, mode)))
            if status != -signal.SIGKILL:
                raise AssertionError(f"{name}: the first life ended with {status}")
            if status := in_child(lambda: asyncio.run(live(renderer, place, -1, ""))):
                raise AssertionError(f"{name}: the second life ended with {status}")
        else:  # here, so that the children find everything loaded and compiled
            asyncio.run(live(renderer, place, -1, ""))
        memory = json.loads((place / "done.json").read_text())
        return {"at": at, "mode": mode, **memory}

    whole = run("whole", -1, "")
    print(json.dumps(whole), flush=True)
    for at in range(whole["writes"]):
        for mode in MODES:
            print(json.dumps(run(f"{at}-{mode}", at, mode)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
