"""A request that is ready to be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from uni_agent.engine.base import PromptImage
from uni_agent.tokens.base import Renderer, ToolSchema
from uni_agent.tokens.graph.nodes import Context, Drift, Intent, Turn, chain_messages
from uni_agent.tokens.media import media_of, placed
from uni_agent.types import Media, Message


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """What the backend is to continue, and where in the graph the turn will stand. Leaves no trace until committed.

    `prompt_ids` [P] is the exact prompt, a list of its own (but see `SessionGraph.follow`); `reused` of them are stored
    tokens, the rest was rendered for this request. `drift` says how the history was recognised, `matched` how many of
    its messages. `rerendered` is "" or why the chain that was found was rendered anew; then it is the one of the turn
    that this `continues`. `at` is the tick of the preparation.
    """

    prompt_ids: list[int]
    reused: int
    context: Context
    drift: Drift
    matched: int
    intent: Intent
    tag: str
    at: int
    rerendered: str = ""
    continues: Turn | None = None

    @property
    def parent(self) -> Turn | None:
        """The turn that is continued; None for a new tree."""
        return self.context.parent

    @property
    def tools(self) -> Sequence[ToolSchema]:
        """The tools as they stand in the prompt: what the output is to be parsed with."""
        return self.context.scope.tools

    @property
    def renderer(self) -> Renderer:
        """What made the prompt, with the template variables of the request: the output is to be read with it."""
        return self.context.scope.renderer

    @property
    def messages(self) -> list[Message]:
        """The conversation that the prompt shows, in the stored spelling."""
        return [*chain_messages(self.parent), *(reading.message for reading in self.context.readings)]

    @property
    def media(self) -> tuple[Media, ...]:
        """The images that the prompt shows, in order: as many as there are runs of placeholders in it."""
        return media_of(self.messages)

    @property
    def images(self) -> tuple[PromptImage, ...]:
        """The same with the places of their placeholders, for the engine."""
        media = self.media
        return placed(media, self.prompt_ids, self.context.scope.renderer) if media else ()
