"""Recorded requests with damage at any place: read, or refused in the client's words; never a fault of the gateway."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest

from tests.gateway.replay.player import MODEL_APIS, recordings
from tests.gateway.support import serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.scripted import ScriptedBackend

DAMAGE: list[Any] = [
    None, True, 0, -1, 1e308, 10**400, float("nan"), float("inf"), "", "x", "\ud800", "\x00", "\ufffe", "🙂" * 50, [],
    [None], [[]], {}, {"type": None}, {"type": "text"}, {"type": "text", "text": 5}, {"role": "assistant"}, [{"a": {}}],
]  # fmt: skip
DEEP = "[" * 500 + "]" * 500


def damaged(body: Any, dice: random.Random) -> Any:
    """`body` with one to three of its values replaced, removed, or doubled."""
    body = copy.deepcopy(body)
    for _ in range(dice.randint(1, 3)):
        damage(body, dice)
    return body


def damage(at: Any, dice: random.Random) -> None:
    """Harm one value somewhere in `at`."""
    keys: list[Any] = list(range(len(at))) if isinstance(at, list) else list(at)  # pyright: ignore[reportUnknownArgumentType]
    if not keys:
        return
    key = dice.choice(keys)
    inner: Any = at[key]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(inner, (dict, list)) and inner and dice.random() < 0.75:
        damage(inner, dice)
        return
    how = dice.random()
    if how < 0.75:
        at[key] = copy.deepcopy(dice.choice(DAMAGE))
    elif how < 0.9:
        del at[key]
    elif isinstance(at, list):
        at.append(copy.deepcopy(inner))  # pyright: ignore


@pytest.mark.parametrize("api", MODEL_APIS)
@pytest.mark.parametrize("template", ["qwen3", "qwen3_6"])
async def test_damaged_requests_are_answered_or_refused(make: MakeRenderer, api: str, template: str) -> None:
    dice = random.Random(f"{api} {template}")
    every = [step for steps in recordings().values() for step in steps]
    refused = ("thread", "chat_template_kwargs")
    steps = [
        s for s in every if s["api"] == api and s["status"] == 200 and not any(key in s["body"] for key in refused)
    ]
    renderer = make(template)
    backend = ScriptedBackend(["ok"], encode=renderer.tokenizer.encode, repeat=True, record=False)
    statuses: dict[int, int] = {}
    async with serving(renderer, backend=backend, config={"media": "placeholder"}) as gateway:
        for number in range(100):
            session = await gateway.open()
            step = dice.choice(steps)
            body = damaged(step["body"], dice)
            text = json.dumps(body)
            if number % 30 == 0:
                text = text.replace('""', DEEP, 1)
            headers = {**step["headers"], "x-api-key": session.api_key}
            for _ in range(2):  # the same again: nothing is left behind that trips over it
                answer = await gateway.request("POST", step["path"], text.encode(), headers=headers)
                assert answer.status < 500 and not answer.cut, (text, answer.body)
                if answer.status != 200:
                    assert answer.json["error"]["message"], answer.body
                statuses[answer.status] = statuses.get(answer.status, 0) + 1
            # What it left poisons neither the export nor the next turn.
            whole = await gateway.request("POST", step["path"], json.dumps(step["body"]).encode(), headers=headers)
            assert whole.status == 200, (text, whole.body)
            await gateway.finalize(session)
    assert set(statuses) <= {200, 400} and statuses[200] > 20 and statuses[400] > 20, statuses
