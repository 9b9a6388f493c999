"""A client, an engine that writes what it is told to, and the invariants that hold for every session."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uni_agent
from tests.tokens.small import BASH, TEMPLATES
from uni_agent.engine.base import TokenOutput, WeightSpan
from uni_agent.tokens.config import RendererConfig
from uni_agent.tokens.graph import Chain, Prepared, SessionGraph, Turn, turn_record
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.tokens.transcript import without_thinking
from uni_agent.types import Message

OTHER: dict[str, Any] = {**BASH, "function": {**BASH["function"], "name": "python"}}

POLICY = Path(uni_agent.__file__).parent / "assets" / "quickstart_policy"
_HEADER = "<|im_start|>assistant\n"


@functools.cache
def renderer_of(name: str) -> ChatTemplateRenderer:
    """The renderer of a template, by name; the policy's own is `policy`."""
    path = None if name == "policy" else TEMPLATES / f"{name}.jinja"
    return RendererConfig(chat_template=path).build(POLICY)


class Session:
    """A graph, the prompts that its backend saw, and what was sampled for each."""

    def __init__(self, graph: SessionGraph, renderer: ChatTemplateRenderer) -> None:
        self.graph = graph
        self.renderer = renderer
        self.prompts: dict[int, list[int]] = {}
        self.sampled: dict[int, list[int]] = {}

    def prepare(self, messages: Sequence[Message], tools: Sequence[Any] = (BASH,), **kwargs: Any) -> Prepared:
        return self.graph.prepare(messages, tools, **kwargs)

    def say(self, prepared: Prepared, text: str, *, finish: str = "stop", ids: list[int] | None = None) -> Turn:
        """Sample `text` (with its end token unless cut) and commit what the parser reads in it."""
        end = self.renderer.stop_token_ids[:1] if finish == "stop" else ()
        ids = [*self.renderer.tokenizer.encode(text), *end] if ids is None else ids
        message = self.renderer.parse(ids, prepared.tools)
        output = TokenOutput(ids, [-0.5 - i / 1000 for i in range(len(ids))], finish)  # pyright: ignore[reportArgumentType]
        return self.record(prepared, self.graph.commit(prepared, output, message), ids)

    def write(self, prepared: Prepared, message: Message) -> Turn:
        """Sample `message` as the template itself writes it, and commit it."""
        ids = self.written(prepared, message)
        version = WeightSpan(str(len(self.sampled)), 0, len(ids))
        rows = [[[id_]] for id_ in ids]
        output = TokenOutput(ids, [-(id_ + 1) / 1e5 for id_ in ids], "stop", (version,), rows)
        return self.record(prepared, self.graph.commit(prepared, output, message), ids)

    def ask(self, messages: Sequence[Message], text: str, tools: Sequence[Any] = (BASH,), **kwargs: Any) -> Turn:
        return self.say(self.prepare(messages, tools, **kwargs), text)

    def record(self, prepared: Prepared, turn: Turn, ids: list[int]) -> Turn:
        self.prompts[turn.id] = list(prepared.prompt_ids)
        self.sampled[turn.id] = list(ids)
        return turn

    def text(self, ids: Sequence[int]) -> str:
        return self.renderer.decode(ids)

    def written(self, prepared: Prepared, message: Message) -> list[int]:
        transcriber = self.renderer.transcriber
        history = prepared.messages
        before = transcriber.draft(history, prepared.tools, generation=True).revealed
        after = transcriber.draft([*history, message], prepared.tools, generation=False).revealed
        # Templates write earlier turns in another way than the last one: only the last turn's header is compared.
        header, body = (text[text.rindex(_HEADER) :] for text in (before, after))
        if message.reasoning:
            text = body[len(header) :]
        else:
            closed = "\n</think>\n\n" if self.renderer.starts_in_reasoning else ""
            text = closed + without_thinking(body)[len(_HEADER) :]
        return self.renderer.tokenizer.encode(text[: text.rindex("<|im_end|>")] + "<|im_end|>")

    def check(self) -> list[Chain]:
        """All invariants; returns the chains."""
        for policy in ("keep", "drop"):
            self._check_export(self.graph.trajectories(abandoned=policy), policy)
        return self.graph.trajectories()

    def request_of(self, turn: Turn) -> list[Message]:
        """The request that led to `turn`, in the stored spelling."""
        before = [] if turn.parent is None else [*self.request_of(turn.parent), turn.parent.message]
        return [*before, *(reading.message for reading in turn.context.readings)]

    def stock(self, prepared: Prepared) -> str:
        """The full render of the prepared conversation."""
        return self.text(self.renderer.initial(prepared.messages, prepared.tools))

    def restarted(self) -> Session:
        """The session of another process that has read the records of this one."""
        graph, mine = SessionGraph, self.graph
        fresh = graph(mine.session_id, self.renderer, matcher=mine.matcher, thinking=mine.thinking)
        other = Session(fresh, self.renderer)
        for turn in self.graph.turns:
            other.graph.restore(turn_record(turn))
        other.prompts, other.sampled = dict(self.prompts), dict(self.sampled)
        return other

    def _check_export(self, chains: list[Chain], policy: Any) -> None:
        trained = [turn for chain in chains for turn in chain.trained]
        account = self.graph.account(abandoned=policy)
        assert len(trained) == len(set(trained))  # I2
        missing = set(self.sampled) - set(trained)
        assert account.tokens.balanced
        assert account.tokens.trained == sum(len(self.sampled[turn]) for turn in trained)
        assert account.tokens.dropped.get("abandoned_retry", 0) == sum(len(self.sampled[turn]) for turn in missing)
        assert not missing or policy == "drop"
        for chain in chains:
            self._check_chain(chain)

    def _check_chain(self, chain: Chain) -> None:
        cache = chain.cache
        seen = 0
        assert cache.response_logprobs is not None
        assert len(cache.response_ids) == len(cache.response_mask) == len(cache.response_logprobs)
        mask = [0] * len(cache.response_ids)
        experts = dict(cache.routed_experts or [])
        for number in chain.turns:
            turn = self.graph.turns[number]
            prompt, ids = self.prompts[number], self.sampled[number]
            assert cache.ids[: len(prompt)] == prompt and len(prompt) >= seen  # I1
            assert cache.ids[len(prompt) : len(prompt) + len(ids)] == ids
            start = len(prompt) - len(cache.prompt_ids)
            end = start + len(ids)
            owned = number in chain.trained
            mask[start:end] = [int(owned)] * len(ids)
            assert cache.response_logprobs[start:end] == (turn.logprobs if owned else [0.0] * len(ids))  # I3
            if owned and turn.routed_experts is not None:
                assert experts[start] == turn.routed_experts and len(experts[start]) == len(ids)
            seen = len(prompt) + len(ids)
        assert len(cache.ids) == seen
        assert cache.response_mask == mask
        assert [span.end for span in cache.spans[:-1]] == [span.start for span in cache.spans[1:]]
