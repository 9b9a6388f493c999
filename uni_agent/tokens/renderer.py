"""The renderer of any model that has a chat template."""

from __future__ import annotations

import re
from collections.abc import Sequence

from uni_agent.errors import ConfigError, ModelError
from uni_agent.tokens.anchor import Anchor, AnchorError
from uni_agent.tokens.base import ParsedOutput, StreamingParse, ToolParser, ToolSchema
from uni_agent.tokens.decoding import TokenDecoder
from uni_agent.tokens.disguise import THINK_TAGS
from uni_agent.tokens.limit import limit_tokens
from uni_agent.tokens.media import MediaError, MediaProcessor, media_of
from uni_agent.tokens.no_tools import NoToolParser
from uni_agent.tokens.parsers.reasoning import OutputParser
from uni_agent.tokens.proof import Kind, TemplateProof, prove
from uni_agent.tokens.template import ChatTemplate, TemplateError
from uni_agent.tokens.tokenizer import ChatTokenizer
from uni_agent.tokens.transcript import Draft, Transcriber
from uni_agent.types import Media, Message, ToolCall

_QUESTION = "probe-question"
_OPEN_THINKING = re.compile(r"<think>\s*\Z")
_CLOSED_THINKING = re.compile(r"<think>\s*</think>\s*\Z")


class TemplateDriftError(ModelError):
    """The template renders what is already in the chain in another way, so nothing can be appended to that chain.

    The chain itself is intact; a caller that can starts a new one from the full render.
    """


class ChatTemplateRenderer:
    """A `Renderer` over a tokenizer and a chat template.

    Text is not markup: the text of a control token in a message, a tool's schema or an argument becomes ordinary
    tokens.

    An extension keeps sampled ids in the chain as they are, also where the template would leave the thinking of earlier
    turns out of a full render: the thinking is trained once, the prefix never changes, and caches stay valid. A caller
    that wants the full render there asks `drops_thinking`.

    Transitions that `prove` could not show to be append-only are rendered in full; see `extension`.

    With `media`, the one placeholder that the template writes for an image becomes as many as the processor says.
    Without it messages with images are refused; `no_media` then is the reason, as far as it is known.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        tool_parser: ToolParser,
        *,
        reasoning: bool,
        stop_token_ids: Sequence[int] = (),
        media: MediaProcessor | None = None,
        no_media: str = "",
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.transcriber = Transcriber(tokenizer, template)
        self.anchor = Anchor(self.transcriber)
        self._proof: TemplateProof | None = None
        self.starts_in_reasoning = False
        prompt = self.transcriber.draft([Message("user", _QUESTION)], [], generation=True).text
        self._prompt_thinks = _shows_thinking(prompt[prompt.rfind(_QUESTION) :])
        if reasoning:
            self.starts_in_reasoning = _OPEN_THINKING.search(prompt) is not None
            reasoning = _CLOSED_THINKING.search(prompt) is None
        self.output = OutputParser(tool_parser, reasoning=reasoning, starts_in_reasoning=self.starts_in_reasoning)
        self.text_output = OutputParser(
            NoToolParser(), reasoning=reasoning, starts_in_reasoning=self.starts_in_reasoning
        )
        self._closing = self._closing_ids()
        self._stop = tuple(dict.fromkeys([*self._closing[-1:], *stop_token_ids]))
        self._ends = self._end_ids()
        self.no_media = no_media
        self.media = media
        if media is not None:
            self._check_media(media)

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The template's own end of turn first, then those that the model's configuration names."""
        return self._stop

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The stop tokens with which the template ends a turn: its end of turn, or headers that end what is before."""
        return self._ends

    @property
    def proof(self) -> TemplateProof:
        """What is known about the template; found at the first use."""
        if self._proof is None:
            self._proof = prove(self.transcriber, self.anchor, images=self.media is not None)
        return self._proof

    def initial(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Ids of the full render with the generation prompt.

        Raises ConfigError when the template refuses it, also for images where none are read, and MediaError for an
        image that cannot be shown.
        """
        self._check_readable(messages)
        return self._ids(self.transcriber.draft(messages, tools, generation=True))

    def extension(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        *,
        cut: bool,
        chain: Sequence[int] | None = None,
    ) -> list[int]:
        """Ids that follow a chain that ends with a sampled assistant turn; see `Renderer.extension`.

        Where increments are not proved, `history` and `new` are rendered in full, which must continue `chain` (the ids
        of `history`; without them, the template's own render of `history`). Raises TemplateDriftError when it does not,
        ConfigError when the template refuses the messages, ValueError when `history` ends with no assistant turn. For
        images see `initial`.
        """
        if not history or history[-1].role != "assistant":
            raise ValueError("an extension follows an assistant message")
        images = self._check_readable(new)
        closing = self.closing_ids() if cut else []
        answers = bool(new) and new[0].role == "tool"
        kind: Kind = "tool_results" if answers else "messages"
        reason = self.proof.transitions[kind].reason
        if images and kind not in self.proof.images:
            reason = reason or "images behind images are not append-only"
        elif self.proof.allows(kind):
            calls = history[-1].tool_calls if answers else ()
            try:
                draft, start = self.anchor.increment(new, tools, calls)
            except AnchorError as error:
                reason = str(error)
            else:
                return closing + self._unrepeated(self._ids(draft, start), chain)
        draft, start = self._continuation(history, new, tools, self._past(chain, closing), reason)
        ids = self._ids(draft, start)
        return closing + (ids if closing else self._unrepeated(ids, chain))

    def _check_readable(self, messages: Sequence[Message]) -> bool:
        """Whether there are images in `messages`. Raises ConfigError for images that the model cannot be shown."""
        images = bool(media_of(messages))
        if images and self.media is None:
            raise ConfigError(f"images: this model reads none{self.no_media and f' ({self.no_media})'}")
        return images

    def _check_media(self, media: MediaProcessor) -> None:
        """Raises ConfigError when the placeholder or the template does not go with images."""
        if media.placeholder_id not in self.tokenizer.controls.by_id:
            raise ConfigError(f"images: token {media.placeholder_id} is no control token of {self.tokenizer.name}")
        image = Media("image", b"")
        probe = Message("user", _QUESTION * 2, parts=(_QUESTION, image, _QUESTION, image))
        ids = self.transcriber.ids(self.transcriber.draft([probe], [], generation=True))
        if (shown := ids.count(media.placeholder_id)) != 2:
            token = self.tokenizer.controls.by_id[media.placeholder_id]
            raise ConfigError(f"chat template {self.template.name} shows two images with {shown} {token!r}")

    def _ids(self, draft: Draft, start: int = 0) -> list[int]:
        """Ids of `draft.text[start:]` with a run of placeholders for each image."""
        ids = self.transcriber.ids(draft, start)
        if self.media is None:
            return ids
        placeholder = self.media.placeholder_id
        token = self.tokenizer.controls.by_id[placeholder]
        before = draft.text.count(token, 0, start) if start and draft.media else 0
        shown = before + ids.count(placeholder)
        if shown != len(draft.media):
            raise ConfigError(
                f"chat template {self.template.name} shows {shown} of the {len(draft.media)} images: "
                "it has no place for one of them"
            )
        out: list[int] = []
        at = 0
        for number, media in enumerate(draft.media[before:], before + 1):
            found = ids.index(placeholder, at)
            out += ids[at:found]
            out += [placeholder] * self._tokens(media, number)
            at = found + 1
        return out + ids[at:] if at else ids

    def _tokens(self, media: Media, number: int) -> int:
        if self.media is None:
            raise ConfigError("images: this model reads none")
        try:
            return self.media.tokens(media)
        except MediaError as error:
            raise MediaError(f"image {number} of the messages: {error}") from error

    def _unrepeated(self, ids: list[int], chain: Sequence[int] | None) -> list[int]:
        """`ids` without a header at which the turn in front stopped."""
        return ids[1:] if chain and ids and not self._closing and chain[-1] == ids[0] in self._stop else ids

    def _past(self, chain: Sequence[int] | None, closing: list[int]) -> Sequence[int] | None:
        """The chain as a full render would show it: without a stop token that is not the template's own."""
        if chain and chain[-1] in self._stop and (closing or not self._closing):
            return [*chain[:-1], *closing]
        return [*chain, *closing] if chain is not None else None

    def shows_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a sampled turn has a thinking block, be it empty, or stands behind one of the generation prompt."""
        return self._prompt_thinks or _shows_thinking(self.decode(ids))

    def drops_thinking(self, calls: Sequence[ToolCall], new: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        """Whether a full render leaves out the thinking of earlier turns once `new` follows a turn with `calls`.

        Found at load where it depends on the roles alone; else the template is asked, with nothing but `new`.
        """
        hides = self.proof.hides_thinking
        if new and all(message.role == "tool" for message in new):
            return "tool_results" in hides
        if "messages" not in hides:
            return False
        answered = calls if new and new[0].role == "tool" else ()
        try:
            return not self.anchor.keeps_thinking(new, tools, answered)
        except TemplateError:  # some templates know single calls only
            return not self.anchor.keeps_thinking(new, tools, answered[:1])

    def closing_ids(self) -> list[int]:
        """What the template puts at the end of an assistant turn, up to its control token; a new list."""
        return list(self._closing)

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedOutput:
        """The message that a generation says; a final stop token is not part of it."""
        if ids and ids[-1] in self._stop:
            ids = ids[:-1]
        return self.output.parse(self.decode(ids), tools)

    def stream(self, tools: Sequence[ToolSchema]) -> StreamingParse:
        """The same for text that arrives in pieces (without the stop token)."""
        return self.output.stream(tools)

    def stream_text(self) -> StreamingParse:
        """The same where no call may be made: call markup is content as it stands."""
        return self.text_output.stream([])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included; bytes that are no complete character become U+FFFD."""
        return self.tokenizer.decode(ids)

    def decoder(self) -> TokenDecoder:
        """The same for ids that arrive in pieces; see `TokenDecoder`."""
        return TokenDecoder(self.tokenizer)

    def limit(self, text: str, max_tokens: int, notice: str) -> str:
        """See `limit_tokens`."""
        return limit_tokens(self.tokenizer, text, max_tokens, notice)

    def _closing_ids(self) -> list[int]:
        ending = self.anchor.plain
        if ending is None or not ending.token:
            return []
        return [*self.tokenizer.encode_plain(ending.lead), self.tokenizer.controls.ids[ending.token]]

    def _end_ids(self) -> tuple[int, ...]:
        """The template's end of turn, and the one of turns with calls where that is another (`<|call|>`)."""
        if not self._closing:
            return self._stop
        ends = [self._closing[-1]]
        try:
            ending = self.anchor.ending([], (ToolCall("probe", "probe_tool"),), "anchor-text")
        except TemplateError:
            ending = None
        if ending is not None and ending.token:
            ends.append(self.tokenizer.controls.ids[ending.token])
        return tuple(id_ for id_ in dict.fromkeys(ends) if id_ in self._stop)

    def _continuation(
        self,
        history: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[ToolSchema],
        chain: Sequence[int] | None,
        reason: str,
    ) -> tuple[Draft, int]:
        """The full render and where in it the part behind the chain starts."""
        draft = self.transcriber.draft([*history, *new], tools, generation=True)
        if chain is None:
            past = self._ids(self.transcriber.draft(history, tools, generation=False))
            controls = [i for i, id_ in enumerate(past) if id_ in self.tokenizer.controls.by_id]
            chain = past[: controls[-1] + 1] if controls else past
        # Compared as text: sampled ids may split it in another way than the tokenizer would, and stay as they are.
        text, at = self.decode(chain), 0
        images = enumerate(draft.media, 1)
        for piece in self.tokenizer.controls.split(draft.text):
            if piece.id is not None:
                shown = self.tokenizer.controls.by_id[piece.id]
                if self.media is not None and piece.id == self.media.placeholder_id:
                    number, image = next(images, (0, None))
                    shown *= self._tokens(image, number) if image is not None else 1
            else:
                shown = self.decode(self.tokenizer.encode_after_control(draft.disguise.reveal(piece.text)))
            if not text.startswith(shown, at):
                break
            at += len(shown)
            if at == len(text) and (piece.id is not None or not self._closing):
                return draft, piece.end
        raise TemplateDriftError(
            f"chat template {self.template.name} does not continue this conversation where it stopped ({reason})"
        )


def _shows_thinking(text: str) -> bool:
    return any(tag in text for tag in THINK_TAGS)
