"""Random clients of a gateway, over HTTP, through restarts, faults and ends, against what must hold at any time.

UNI_AGENT_MACHINE_EXAMPLES sets the number of random stories (default 12), UNI_AGENT_MACHINE_STEPS their length.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.gateway.support import ADMIN, BASH_CHAT, Answer, Gateway, Opened, call, check_account, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.base import OnTokens, SamplingParams, TokenOutput
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.errors import ModelError
from uni_agent.gateway.journal import read_journal
from uni_agent.tokens.renderer import ChatTemplateRenderer

EXAMPLES = int(os.environ.get("UNI_AGENT_MACHINE_EXAMPLES", "12"))
SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)
STEPS = int(os.environ.get("UNI_AGENT_MACHINE_STEPS", "14"))
TOLD = {200, 400, 404, 410, 429, 502, 503}
ACTIONS = (
    "start", "go_on", "go_on", "go_on", "go_on", "resend", "resample", "race", "branch", "edit", "inject",
    "lose_result", "other_tools", "compact", "cancel", "cut", "fault", "broken", "new_weights", "count", "reward",
    "restart", "finalize", "abort", "late",
)  # fmt: skip


class Engine(ScriptedBackend):
    """Plays the next plan for each call and remembers every token that it reported, by session."""

    def __init__(self, renderer: ChatTemplateRenderer) -> None:
        super().__init__()
        self.encode = renderer.tokenizer.encode
        self.plans: list[ScriptedTurn] = []
        self.reported: Counter[str] = Counter()
        self.prompts: list[list[int]] = []

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        **others: Any,
    ) -> TokenOutput:
        if not self.plans:
            raise ModelError("nothing is planned")
        one = ScriptedBackend([self.plans.pop(0)], encode=self.encode, shared=True)
        await one.start()
        self.prompts.append(list(prompt_ids))
        handed = 0

        def listen(ids: Any) -> bool:
            nonlocal handed
            handed += len(ids)
            return False if on_tokens is None else on_tokens(ids)

        try:
            output = await one.generate(
                request_id, prompt_ids, sampling, on_tokens=None if on_tokens is None else listen
            )
        except BaseException:
            self.reported[request_id] += handed
            raise
        self.reported[request_id] += len(output.token_ids)
        return output


@dataclass(frozen=True)
class Entry:
    """A message as the client means it. `chain` is the prompt and the output of the turn that it is."""

    role: str
    text: str
    thinking: str = ""
    command: str = ""
    call_id: str = ""
    chain: tuple[int, ...] = ()


@dataclass
class Talk:
    """A conversation that ends with a reply."""

    session: Opened
    entries: list[Entry]
    tools: int = 0


@dataclass(frozen=True)
class Echo:
    """How a client writes the history that it was given."""

    thinking: str
    spaced: bool
    renamed: bool
    parts: bool


ECHOES = st.builds(Echo, st.sampled_from(["kept", "stripped", "moved"]), st.booleans(), st.booleans(), st.booleans())


@dataclass
class Machine:
    """One story. `over` holds what each finished session exported."""

    renderer: ChatTemplateRenderer
    journal: Path
    data: Any
    engine: Engine
    stack: AsyncExitStack
    gateway: Gateway
    sessions: list[Opened] = field(default_factory=list[Opened])
    talks: list[Talk] = field(default_factory=list[Talk])
    over: dict[str, Any] = field(default_factory=dict[str, Any])
    answered: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    count: int = 0

    def draw(self, strategy: Any) -> Any:
        """One choice of the story."""
        return self.data.draw(strategy)

    def index(self, length: int) -> int:
        """Which of `length` things."""
        return self.draw(st.integers(0, length - 1))

    def word(self) -> str:
        self.count += 1
        return f"w{self.count}q"

    # ------------------------------------------------------------------------------------------ the client

    def plan(self, **fields: Any) -> Entry:
        """What the model will say next, as the client will keep it."""
        word = self.word()
        thinking = "think " + word[::-1] if self.draw(st.booleans()) else ""
        command = "ls " + word[::-1] if self.draw(st.booleans()) else ""
        before = f"<think>\n{thinking}\n</think>\n\n" if thinking else ""
        text = call(command, before=f"{before}{word} now\n") if command else f"{before}{word} done"
        self.engine.plans.append(ScriptedTurn(self.engine.encode(text), **fields))
        return Entry("assistant", f"{word} now" if command else f"{word} done", thinking, command, "c" + word)

    def wire(self, talk: Talk, entries: list[Entry], protocol: str, echo: Echo) -> dict[str, Any]:
        """The request's body."""
        messages: list[dict[str, Any]] = []
        for entry in entries:
            messages += {"chat": _chat, "messages": _messages, "responses": _items}[protocol](entry, echo)
        name = "input" if protocol == "responses" else "messages"
        return {"model": "m", name: messages, "tools": _tools(protocol, talk.tools), "max_tokens": 500}

    async def ask(self, talk: Talk, entries: list[Entry], headers: Any = None, **fields: Any) -> Answer:
        """Send `entries` in any protocol and spelling."""
        protocol = fields.pop("protocol", None) or self.draw(st.sampled_from(["chat", "messages", "responses"]))
        body = {**self.wire(talk, entries, protocol, self.draw(ECHOES)), **fields}
        if protocol == "responses":
            body["max_output_tokens"] = body.pop("max_tokens")
        path = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}[protocol]
        body.setdefault("stream", self.draw(st.booleans()))
        answer = await self.gateway.request("POST", path, body, talk.session.api_key, headers)
        assert answer.status in TOLD, (answer.status, answer.body)
        return answer

    def keep(self, talk: Talk, entries: list[Entry], said: Entry, answer: Answer) -> None:
        """The client goes on from a reply that it has whole."""
        if talk.session.session_id in self.over:
            assert answer.status == 410, answer.body
            self.engine.plans.clear()
            return
        assert answer.status == 200 and not answer.cut, answer.body
        word = said.text.split()[0]
        assert answer.json is None or word.encode() in answer.body, "a stream splits words"
        self.answered[talk.session.session_id].append(word)
        prompt = self.engine.prompts[-1]
        output = [*self.engine.encode(_written(said)), self.renderer.stop_token_ids[0]]
        reply = Entry(said.role, said.text, said.thinking, said.command, said.call_id, (*prompt, *output))
        self.talks.append(Talk(talk.session, [*entries, reply], talk.tools))

    async def turn(self, talk: Talk, entries: list[Entry], **fields: Any) -> None:
        """One turn that works, and what must hold of its prompt."""
        said = self.plan()
        answer = await self.ask(talk, entries, **fields)
        self.keep(talk, entries, said, answer)
        known = next((entry.chain for entry in reversed(entries) if entry.chain), ())
        if answer.status == 200:
            assert tuple(self.engine.prompts[-1][: len(known)]) == known, "a stored token was changed"

    def some(self) -> Talk:
        return self.talks[self.index(len(self.talks))]

    def news(self, talk: Talk) -> list[Entry]:
        last = talk.entries[-1]
        if last.command:
            return [Entry("tool", "result " + self.word(), call_id=last.call_id)]
        return [Entry("user", "more " + self.word())]

    # ------------------------------------------------------------------------------------------ what it does

    async def start(self) -> None:
        live = [session for session in self.sessions if session.session_id not in self.over]
        if not live or (len(self.sessions) < 3 and self.draw(st.booleans())):
            live = [await self.gateway.open()]
            self.sessions += live
            self.answered[live[0].session_id] = []
        await self.turn(Talk(live[self.index(len(live))], []), [Entry("user", "go " + self.word())])

    async def go_on(self) -> None:
        talk = self.some()
        await self.turn(talk, [*talk.entries, *self.news(talk)])

    async def resend(self) -> None:
        talk = self.some()
        header = self.draw(st.sampled_from([None, {"x-stainless-retry-count": "1"}, {"X-Uni-Agent-Intent": "retry"}]))
        await self.turn(talk, talk.entries[:-1], headers=header)

    async def resample(self) -> None:
        talk = self.some()
        if self.draw(st.booleans()):
            return await self.turn(talk, talk.entries[:-1], headers={"X-Uni-Agent-Intent": "resample"})
        first, second = self.plan(), self.plan()
        entries = [*talk.entries, *self.news(talk)]
        answer = await self.ask(talk, entries, protocol="chat", n=2, stream=False)
        self.keep(talk, entries, second, answer)
        if answer.status == 200:
            assert len(answer.json["choices"]) == 2
            self.answered[talk.session.session_id].append(first.text.split()[0])
        return None

    async def race(self) -> None:
        talk = self.some()
        entries = [*talk.entries, *self.news(talk)]
        said = [self.plan(delay=0.005), self.plan(delay=0.005)]
        answers = await asyncio.gather(*(self.ask(talk, entries, stream=False) for _ in said))
        if talk.session.session_id in self.over:
            self.engine.plans.clear()
            return
        assert [answer.status for answer in answers] == [200, 200]
        self.answered[talk.session.session_id] += [one.text.split()[0] for one in said]

    async def branch(self) -> None:
        talk = self.some()
        turns = [i for i, entry in enumerate(talk.entries) if entry.role == "assistant"]
        cut = Talk(talk.session, talk.entries[: self.draw(st.sampled_from(turns)) + 1], talk.tools)
        await self.turn(cut, [*cut.entries, *self.news(cut)])

    async def edit(self) -> None:
        talk = self.some()
        turns = [i for i, entry in enumerate(talk.entries) if entry.role == "assistant"]
        at: int = self.draw(st.sampled_from(turns))
        changed = Entry("assistant", "edited " + self.word(), "", talk.entries[at].command, talk.entries[at].call_id)
        rest = [_unsaid(entry) for entry in talk.entries[at + 1 :]]
        await self.turn(talk, [*talk.entries[:at], changed, *rest, *self.news(talk)])

    async def inject(self) -> None:
        talk = self.some()
        extra = [Entry("assistant", "injected " + self.word()), Entry("user", "and " + self.word())]
        await self.turn(talk, [*talk.entries, *self.news(talk), *extra])

    async def lose_result(self) -> None:
        talk = self.some()
        await self.turn(talk, [*talk.entries, Entry("user", "never mind " + self.word())])

    async def other_tools(self) -> None:
        talk = self.some()
        entries = [_unsaid(entry) for entry in talk.entries]
        await self.turn(Talk(talk.session, [], talk.tools + 1), [*entries, *self.news(talk)])

    async def compact(self) -> None:
        talk = self.some()
        summary = f"So far: {talk.entries[-1].text} and much more that was done before, see above. " + self.word()
        await self.turn(talk, [Entry("user", summary)])

    async def cancel(self) -> None:
        """The client leaves while the model speaks."""
        talk = self.some()
        self.plan(token_delay=0.01)
        asked = asyncio.create_task(self.ask(talk, [*talk.entries, *self.news(talk)]))
        await asyncio.sleep(self.draw(st.sampled_from([0.0, 0.005, 0.02, 0.05])))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await self.quiet()

    async def cut(self) -> None:
        """A turn that is cut by length, and goes on."""
        talk = self.some()
        word = self.word()
        self.engine.plans.append(ScriptedTurn(self.engine.encode(f"{word} and so on and on"), finish_reason="length"))
        entries = [*talk.entries, *self.news(talk)]
        answer = await self.ask(talk, entries)
        if answer.status == 200:
            self.answered[talk.session.session_id].append(word)
            chain = (*self.engine.prompts[-1], *self.engine.encode(f"{word} and so on and on"))
            said = Entry("assistant", f"{word} and so on and on", chain=chain)
            await self.turn(talk, [*entries, said, Entry("user", "continue " + self.word())])
        self.engine.plans.clear()

    async def fault(self) -> None:
        """The engine fails, and the retry works; or it fails for good."""
        talk = self.some()
        entries = [*talk.entries, *self.news(talk)]
        times = self.draw(st.sampled_from([1, 2]))
        self.engine.plans += [ScriptedTurn((), fault="raise")] * times
        if times == 1:
            return await self.turn(talk, entries)
        answer = await self.ask(talk, entries)
        assert answer.status in (502, 503, 500, 410) and (answer.status != 500 or b"internal" not in answer.body)
        self.engine.plans.clear()
        return None

    async def broken(self) -> None:
        """A stream that breaks behind its first tokens is no answer, and no turn."""
        talk = self.some()
        self.plan(fail_after=3)
        answer = await self.ask(talk, [*talk.entries, *self.news(talk)], stream=True)
        assert answer.cut or answer.status != 200
        self.engine.plans.clear()

    async def new_weights(self) -> None:
        talk = self.some()
        word = self.word()
        self.engine.plans += [
            ScriptedTurn(self.engine.encode(f"{word} be"), finish_reason="abort", weight_version="1"),
            ScriptedTurn(self.engine.encode("gun and ended"), weight_version="2"),
        ]
        entries = [*talk.entries, *self.news(talk)]
        answer = await self.ask(talk, entries)
        if answer.status == 200:
            self.answered[talk.session.session_id].append(word)
        self.engine.plans.clear()

    async def count_tokens(self) -> None:
        talk = self.some()
        body = self.wire(talk, talk.entries, "messages", self.draw(ECHOES))
        answer = await self.gateway.request("POST", "/v1/messages/count_tokens", body, talk.session.api_key)
        assert answer.status == (410 if talk.session.session_id in self.over else 200), answer.body

    async def reward(self) -> None:
        session = self.sessions[self.index(len(self.sessions))]
        if session.session_id not in self.over:
            path = f"/sessions/{session.session_id}/reward_info"
            assert (await self.gateway.request("POST", path, {"reward": 0.5}, session.reward_key)).status == 200

    async def restart(self) -> None:
        await self.stack.aclose()
        self.gateway = await self.stack.enter_async_context(_serving(self.renderer, self.engine, self.journal))

    async def end(self, how: str) -> None:
        session = self.sessions[self.index(len(self.sessions))]
        name = session.session_id
        answer = await self.gateway.request("POST", f"/sessions/{name}/{how}", {}, ADMIN)
        assert answer.status in ((200, 410) if name in self.over else (200,))
        if answer.status == 200:
            check_account(answer.json)
            self.check_trained(name, answer.json)
            assert self.over.setdefault(name, answer.json) == answer.json

    async def late(self) -> None:
        """The session ends while a turn is under way."""
        talk = self.some()
        name = talk.session.session_id
        self.plan(token_delay=0.01)
        asked = asyncio.create_task(self.ask(talk, [*talk.entries, *self.news(talk)]))
        await asyncio.sleep(self.draw(st.sampled_from([0.005, 0.03])))
        ended = await self.gateway.request("POST", f"/sessions/{name}/finalize", None, ADMIN)
        if ended.status == 200:
            assert self.over.setdefault(name, ended.json) == ended.json
        answer = await asked
        assert answer.status == 410 or answer.cut or b'"error"' in answer.body or answer.status == 200
        self.engine.plans.clear()

    async def step(self, action: str) -> None:
        if not self.talks:
            action = "start"
        if action in ("finalize", "abort"):
            await self.end(action)
        else:
            await getattr(self, "count_tokens" if action == "count" else action)()
        await self.quiet()
        await self.check()

    # ------------------------------------------------------------------------------------------ what must hold

    async def quiet(self) -> None:
        """Until nothing is under way."""
        for _ in range(500):
            if (await self.gateway.request("GET", "/healthz")).json["in_flight"] == 0:
                self.engine.plans.clear()
                return
            await asyncio.sleep(0.005)
        raise AssertionError("a turn is still under way")

    async def check(self) -> None:
        kept = Counter(entry.session_id for entry in read_journal(self.journal) if entry.kind == "turn")
        for session in self.sessions:
            name = session.session_id
            info = await self.gateway.info(session)
            account = info["accounting"]
            assert account["sampled"] == account["trained"] + account["masked"] + sum(account["dropped"].values())
            assert account["sampled"] == self.engine.reported[name], "a sampled token is not accounted for"
            assert kept[name] == info["turns"] >= len(self.answered[name]), "answered, not kept"
            assert not self.gateway.node.sessions.get(name).in_flight
            if name in self.over:
                path = f"/sessions/{name}/trajectories"
                assert (await self.gateway.request("GET", path, None, ADMIN)).json == self.over[name]

    def check_trained(self, name: str, export: dict[str, Any]) -> None:
        """What was answered is trained once."""
        trained = ""
        for trajectory in export["trajectories"]:
            pairs = zip(trajectory["response_ids"], trajectory["response_mask"], strict=True)
            trained += "\n" + self.renderer.decode([id_ for id_, mask in pairs if mask])
        for word in self.answered[name]:
            assert trained.count(word) == 1, (word, trained)


# ---------------------------------------------------------------------------------------------- spellings


def _written(said: Entry) -> str:
    before = f"<think>\n{said.thinking}\n</think>\n\n" if said.thinking else ""
    return call(said.command, before=f"{before}{said.text}\n") if said.command else before + said.text


def _unsaid(entry: Entry) -> Entry:
    return Entry(entry.role, entry.text, entry.thinking, entry.command, entry.call_id)


def _id(entry: Entry, echo: Echo) -> str:
    return f"renamed_{entry.call_id}" if echo.renamed else entry.call_id


def _arguments(entry: Entry, echo: Echo) -> str:
    return json.dumps({"command": entry.command}, indent=3 if echo.spaced else None)


def _text(entry: Entry, echo: Echo) -> str:
    moved = f"<think>\n{entry.thinking}\n</think>\n\n" if entry.thinking and echo.thinking == "moved" else ""
    return moved + entry.text


def _chat(entry: Entry, echo: Echo) -> list[dict[str, Any]]:
    text: Any = _text(entry, echo)
    message: dict[str, Any] = {
        "role": entry.role,
        "content": [{"type": "text", "text": text[:3]}, {"type": "text", "text": text[3:]}] if echo.parts else text,
    }
    if entry.role == "tool":
        message["tool_call_id"] = _id(entry, echo)
    if entry.thinking and echo.thinking == "kept":
        message["reasoning_content"] = entry.thinking
    if entry.command:
        function = {"name": "bash", "arguments": _arguments(entry, echo)}
        message["tool_calls"] = [{"id": _id(entry, echo), "type": "function", "function": function}]
    return [message]


def _messages(entry: Entry, echo: Echo) -> list[dict[str, Any]]:
    if entry.role == "tool":
        block = {"type": "tool_result", "tool_use_id": _id(entry, echo), "content": entry.text}
        return [{"role": "user", "content": [block]}]
    text = _text(entry, echo)
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if entry.thinking and echo.thinking == "kept":
        blocks.insert(0, {"type": "thinking", "thinking": entry.thinking, "signature": "s"})
    if entry.command:
        arguments = json.loads(_arguments(entry, echo))
        blocks.append({"type": "tool_use", "id": _id(entry, echo), "name": "bash", "input": arguments})
    plain = len(blocks) == 1 and not echo.parts
    return [{"role": entry.role, "content": text if plain else blocks}]


def _items(entry: Entry, echo: Echo) -> list[dict[str, Any]]:
    if entry.role == "tool":
        return [{"type": "function_call_output", "call_id": _id(entry, echo), "output": entry.text}]
    kind = "output_text" if entry.role == "assistant" else "input_text"
    text = _text(entry, echo)
    items: list[dict[str, Any]] = [
        {"type": "message", "role": entry.role, "content": [{"type": kind, "text": text}] if echo.parts else text}
    ]
    if entry.command:
        arguments = _arguments(entry, echo)
        items.append({"type": "function_call", "call_id": _id(entry, echo), "name": "bash", "arguments": arguments})
    return items


def _tools(protocol: str, version: int) -> list[dict[str, Any]]:
    function = {**BASH_CHAT["function"]}
    function["description"] += f" v{version}"
    if protocol == "messages":
        return [{"name": "bash", "description": function["description"], "input_schema": function["parameters"]}]
    return [{"type": "function", "function": function}] if protocol == "chat" else [{"type": "function", **function}]


def _serving(renderer: ChatTemplateRenderer, engine: Engine, journal: Path) -> Any:
    return serving(renderer, backend=engine, journal=journal, config={"retries": 1})


async def play(renderer: ChatTemplateRenderer, data: Any, folder: Path) -> None:
    """One story."""
    engine, journal = Engine(renderer), folder / "journal"
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(_serving(renderer, engine, journal))
        machine = Machine(renderer, journal, data, engine, stack, gateway)
        for action in data.draw(st.lists(st.sampled_from(ACTIONS), min_size=STEPS // 2, max_size=STEPS)):
            await machine.step(action)
        await machine.restart()
        await machine.check()
        for session in machine.sessions:
            if session.session_id not in machine.over:
                machine.check_trained(session.session_id, await machine.gateway.finalize(session))


def test_random_clients_of_the_gateway_keep_the_invariants(make: MakeRenderer) -> None:
    renderer = make("qwen3")

    @settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=SLOW)
    @given(data=st.data())
    def stories(data: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(play(renderer, data, Path(folder)))

    stories()
