"""An engine that notes all it gave, and the check that an export holds exactly that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from uni_agent.engine.base import OnTokens, PromptImage, SamplingParams, TokenOutput
from uni_agent.engine.scripted import Script, ScriptedBackend
from uni_agent.tokens.renderer import ChatTemplateRenderer


@dataclass(slots=True)
class Given:
    """One generation: what was asked, and what was sampled of it (None: it failed or was cancelled)."""

    prompt: list[int]
    output: TokenOutput | None = None


class NotingBackend(ScriptedBackend):
    """Plays one script for all, each token with a logprob of its own. `given` is in the order of the calls."""

    def __init__(self, renderer: ChatTemplateRenderer, script: Script = (), **options: Any) -> None:
        options = {"shared": "scripts" not in options, **options}
        super().__init__(script, encode=renderer.tokenizer.encode, **options)
        self.given: list[Given] = []
        self.asked = asyncio.Event()
        self._drawn = 0

    async def generate(
        self,
        request_id: str,
        prompt_ids: list[int],
        sampling: SamplingParams,
        *,
        on_tokens: OnTokens | None = None,
        media: Sequence[PromptImage] = (),
    ) -> TokenOutput:
        note = Given(list(prompt_ids))
        self.given.append(note)
        self.asked.set()
        output = await super().generate(request_id, prompt_ids, sampling, on_tokens=on_tokens, media=media)
        if output.logprobs is not None:
            first, self._drawn = self._drawn, self._drawn + len(output.token_ids)
            output = replace(output, logprobs=[-(first + i + 1) / 1024 for i in range(len(output.token_ids))])
        note.output = output = self.amended(output)
        return output

    def amended(self, output: TokenOutput) -> TokenOutput:
        """What the engine says instead of `output`."""
        return output


def check_record(given: Sequence[Given], finished: dict[str, Any]) -> None:
    """Invariants I1 to I3 of an export.

    Every trained span stands behind exactly the prompt that the engine was given for it, so a continued chain begins
    with the previous prompt and output; ids and logprobs are the sampled ones; no generation is trained twice, and one
    that is not trained is dropped for a reason or masked.
    """
    left = [note for note in given if note.output is not None]
    for trajectory in finished["trajectories"]:
        ids = trajectory["prompt_ids"] + trajectory["response_ids"]
        offset = len(trajectory["prompt_ids"])
        mask = trajectory["response_mask"]
        inside = [0] * len(mask)
        for kind, _, start, end in trajectory["spans"]:
            if kind != "sampled":
                continue
            inside[start:end] = [1] * (end - start)
            note = taken(left, ids, offset + start, offset + end, trajectory["response_logprobs"], offset)
            output = note.output
            assert output is not None
            if trajectory["response_logprobs"] is not None and 1 in mask[start:end]:
                assert output.logprobs is not None
                assert trajectory["response_logprobs"][start:end] == output.logprobs[: end - start]
        assert all(not m or i for m, i in zip(mask, inside, strict=True)), "only what was sampled is trained"
    account = finished["accounting"]
    lost = sum(len(note.output.token_ids) for note in left if note.output is not None)
    assert lost <= sum(account["dropped"].values()), f"{lost} sampled tokens are nowhere in the export"


def taken(
    left: list[Given], ids: Sequence[int], start: int, end: int, logprobs: list[float] | None, offset: int
) -> Given:
    """The generation of ids[start:end]; it is taken out of `left`. Twins are told apart by their logprobs."""
    fitting = [
        note
        for note in left
        if note.output is not None
        and note.prompt == ids[:start]
        and note.output.token_ids[: end - start] == ids[start:end]
    ]
    if logprobs is not None:
        said = logprobs[start - offset : end - offset]
        fitting.sort(key=lambda note: note.output is None or (note.output.logprobs or [])[: end - start] != said)
    if fitting:
        left.remove(fitting[0])
        return fitting[0]
    raise AssertionError(f"no call of the engine gave the tokens {start} to {end} behind what stands before them")
