"""verl's server client and the runners of these tests. Ray's workers import this module by its name."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from tokenizers import Tokenizer as _Tokenizer

from uni_agent.errors import ContextLengthError, SandboxError
from uni_agent.training.framework import RunnerResult, RunnerSession
from uni_agent.training.framework.worker import FrameworkWorker
from uni_agent.types import ExitReason

TOKENIZERS: Any = _Tokenizer
HERE = "tests.training.framework.fakes"


@dataclass
class EchoClient:
    """`LLMServerClient.generate` of verl 0.9.1: what it answers is decided by the last thing it was told.

    `say X` answers X; `boom` fails; `slow` takes three seconds; a tool result is answered by a call of `finish`. Calls
    are written to `log`, one JSON line each. `global_steps` is 7 and then 8 for every second call of a request.
    """

    folder: str
    log: str
    seen: dict[str, int] = field(default_factory=dict[str, int])

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], image_data: Any = None
    ) -> Any:
        tokenizer: Any = TOKENIZERS.from_file(f"{self.folder}/tokenizer.json")
        prompt: str = tokenizer.decode(prompt_ids, skip_special_tokens=False)
        note(self.log, json.dumps({"request": request_id, **sampling_params}) + "\n")
        told = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
        if "boom" in told:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if "slow" in told:
            await asyncio.sleep(3)
        ids: list[int] = [*tokenizer.encode(self.answer(told)).ids, tokenizer.token_to_id("<|im_end|>")]
        ids = ids[: sampling_params["max_tokens"]]
        step = 7 + self.seen.get(request_id, 0) % 2
        self.seen[request_id] = self.seen.get(request_id, 0) + 1
        return SimpleNamespace(
            token_ids=ids,
            log_probs=[-0.25 * (i + 1) for i in range(len(ids))],
            routed_experts=None,
            stop_reason="completed",
            num_preempted=None,
            extra_fields={"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        )

    def answer(self, told: str) -> str:
        if "<tool_response>" in told:
            return tool_call("finish", {"answer": "done"})
        if "TOOL" in told:
            return tool_call("execute_bash", {"command": "echo hello > out.txt"})
        return told.rpartition("say ")[2] or "nothing"


def note(path: str, text: str) -> None:
    with Path(path).open("a") as log:
        log.write(text)


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def said(session: RunnerSession, *texts: str, **body: Any) -> list[str]:
    """A conversation over OpenAI's API: what the model answered to each of `texts`."""
    messages: list[dict[str, Any]] = [dict(message) for message in session.row["raw_prompt"]]
    answers: list[str] = []
    async with httpx.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {session.api_key}"}) as client:
        for text in ("", *texts):
            if text:
                messages.append({"role": "user", "content": text})
            url = f"{session.openai_base_url}/chat/completions"
            answer = await client.post(url, json={"model": session.model, "messages": messages, **body})
            if answer.status_code != 200:
                raise OSError(answer.text)
            message = answer.json()["choices"][0]["message"]
            messages.append({"role": "assistant", "content": message["content"]})
            answers.append(message["content"])
    return answers


async def talk(session: RunnerSession, *, turns: int = 1) -> RunnerResult:
    """One or more turns, with a temperature that the trainer does not want; the score tells the session's number."""
    more = [f"say turn {i}" for i in range(1, turns)]
    answers = await said(session, *more, temperature=0.1, top_p=0.5)
    scores = ((0, 0.25),) if turns > 1 else ()
    return RunnerResult(
        reward=float(session.index),
        info={"acc": 1.0, "answer": answers[0]},
        metrics={"turns": turns},
        turn_scores=scores,
    )


class Talker:
    """A runner as a class."""

    def __init__(self, score: float) -> None:
        self.score = score

    async def __call__(self, session: RunnerSession) -> float:
        await said(session)
        return self.score


async def post(session: RunnerSession) -> None:
    """Posts its reward."""
    await said(session)
    await session.reward(0.75, {"acc": 0.5, "finished": False})


async def silent(session: RunnerSession) -> None:
    """Gives no reward at all."""
    await said(session)


async def two_chains(session: RunnerSession) -> float:
    """The row's conversation over three turns, then another one of a single turn."""
    await said(session, "say b", "say c")
    other = [{"role": "user", "content": "say other"}]
    async with httpx.AsyncClient(timeout=30, headers={"Authorization": f"Bearer {session.api_key}"}) as client:
        url = f"{session.openai_base_url}/chat/completions"
        (await client.post(url, json={"model": session.model, "messages": other})).raise_for_status()
    return 1.0


async def overflow(session: RunnerSession) -> None:
    """Fills the window: says something about the model."""
    await said(session)
    await session.reward(0.5)
    raise ContextLengthError("no room")


async def full(session: RunnerSession) -> None:
    """Finds no room for a first turn."""
    raise ContextLengthError("the prompt fills the window")


async def idle(session: RunnerSession) -> float:
    """Never asks the model."""
    return float(session.index)


async def broken(session: RunnerSession, *, first: int = 10**6, sessions: list[int] | None = None) -> float:
    """Fails at its first `first` attempts, in `sessions` only where they are named."""
    answers = await said(session)
    if session.attempt < first and (sessions is None or session.index in sessions):
        raise SandboxError("the sandbox is gone")
    return float(len(answers) + session.sample)


async def crash(session: RunnerSession, *, marks: str) -> float:
    """Ends its process in the middle; notes each time that it is run."""
    note(marks, f"{session.session_id}\n")
    await said(session)
    if session.attempt == 0:
        os._exit(1)
    return 1.0


async def hang(session: RunnerSession, *, marks: str) -> None:
    """Never ends by itself; notes that it was cancelled."""
    await said(session)
    try:
        await asyncio.sleep(3600)
    finally:
        note(marks, f"cancelled {session.index}\n")


async def sleep(session: RunnerSession) -> None:
    """Never ends."""
    del session
    await asyncio.sleep(3600)


async def counting(session: RunnerSession, *, marks: str) -> float:
    """Notes when it begins and ends."""
    note(marks, "+")
    await asyncio.sleep(0.3)
    await said(session)
    note(marks, "-")
    return 1.0


async def pid(session: RunnerSession) -> RunnerResult:
    """Tells the process it ran in."""
    await said(session)
    return RunnerResult(reward=1.0, info={"pid": os.getpid()}, exit_reason=ExitReason.ANSWERED)


def lone_session(seconds: float) -> RunnerSession:
    """A session of no gateway, which ends in so many seconds."""
    return RunnerSession(
        session_id="s",
        base_url="http://127.0.0.1:9",
        api_key="k",
        reward_key="r",
        model="m",
        row={},
        uid="u",
        index=0,
        sample=0,
        attempt=0,
        step=1,
        validate=False,
        deadline=time.time() + seconds,
    )


NOT_CALLABLE = 3


class RefusingWorker(FrameworkWorker):
    """A framework whose queue does not take records, and takes a final status only at the third try."""

    async def start(self) -> list[str]:
        urls = await super().start()
        self.queue.client = _Refusing(self.queue.client)
        self.queue.record_seconds = 0.5
        return urls


class _Refusing:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._tries = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def async_kv_batch_put(self, **_: Any) -> None:
        raise RuntimeError("the storage unit is gone")

    async def async_kv_put(self, *, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self._tries += 1
        if tag["status"] in ("finished", "failure") and self._tries % 3:
            raise TimeoutError("the controller does not answer")
        await self._client.async_kv_put(key=key, partition_id=partition_id, tag=tag)
