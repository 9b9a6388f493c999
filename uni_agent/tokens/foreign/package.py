"""A `Renderer` over the `renderers` package: hand-written renderers of model families, in place of a chat template.

What differs from the package alone: the text of a control token in a message, a tool's schema or an argument becomes
ordinary tokens, as with `ChatTemplateRenderer`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from uni_agent.errors import ConfigError, MissingExtraError, boundary
from uni_agent.tokens.base import ParsedOutput, StreamingParse, ToolSchema
from uni_agent.tokens.decoding import TokenDecoder
from uni_agent.tokens.disguise import THINK_TAGS, Disguise, strings_in
from uni_agent.tokens.foreign.reading import ParseAtEnd, output_of
from uni_agent.tokens.foreign.tokenizer import LentTokenizer
from uni_agent.tokens.limit import limit_tokens
from uni_agent.tokens.messages import in_call_order, template_message
from uni_agent.tokens.no_tools import NoToolParser
from uni_agent.tokens.parsers.reasoning import OutputParser
from uni_agent.tokens.renderer import TemplateDriftError
from uni_agent.tokens.tokenizer import ChatTokenizer
from uni_agent.types import Media, Message, ToolCall

_QUESTION = {"role": "user", "content": "probe-question"}
_ANSWER = "probe-answer"


class PackageRenderer:
    """Renders with `renderer`, and bridges with `bridging`: the same one, told to keep the thinking of earlier turns.

    Both hold the tokenizer `lent`. Where the package cannot bridge, `extension` raises TemplateDriftError and a session
    starts a new tree. Tool calls are read when a generation is whole; text without tools streams.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        lent: LentTokenizer,
        renderer: Any,
        bridging: Any,
        *,
        name: str,
        stop_token_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self._lent = lent
        self._renderer = renderer
        self._bridging = bridging
        with boundary(ConfigError, f"renderer {name!r} of the renderers package"):
            self._prompt: list[int] = list(renderer.render_ids([_QUESTION], add_generation_prompt=True))
            asked: list[int] = list(renderer.render_ids([_QUESTION], add_generation_prompt=False))
            ends = [int(id_) for id_ in renderer.get_stop_token_ids()]
        self._opening = self._prompt[len(asked) :] if self._prompt[: len(asked)] == asked else []
        self._closing = self._closing_ids(ends)
        self._stop = tuple(dict.fromkeys([*self._closing[-1:], *ends, *stop_token_ids]))
        self._ends = tuple(id_ for id_ in self._stop if self._is_end(id_))
        opening = tokenizer.decode(self._opening)
        opened, closed = (opening.rfind(tag) for tag in THINK_TAGS)
        self._prompt_thinks = opened >= 0
        self._text = OutputParser(
            NoToolParser(), reasoning=THINK_TAGS[0] in tokenizer.controls.ids, starts_in_reasoning=opened > closed
        )

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """The end of a turn first, then the package's other ends and those of the model's configuration."""
        return self._stop

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """Those behind which the package goes on without another end; `<|endoftext|>` is one for most of its models."""
        return self._ends

    def initial(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> list[int]:
        """Ids of the full render with the generation prompt. Raises ConfigError when the renderer refuses it."""
        disguise, hidden, schemas = self._disguised(in_call_order(messages), tools)
        with self._lent.revealing(disguise), boundary(ConfigError, f"renderer {self.name!r} refuses the messages"):
            return list(self._renderer.render_ids(hidden, tools=schemas, add_generation_prompt=True))

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

        Raises TemplateDriftError where the package cannot bridge to `new`, or would change the chain, ConfigError when
        it refuses the messages, ValueError when `history` ends with no assistant turn.
        """
        if not history or history[-1].role != "assistant":
            raise ValueError("an extension follows an assistant message")
        ids = list(chain) if chain is not None else self._rendered(history, tools, cut=cut)
        start = self._turn_start(ids)
        messages = in_call_order(new, history[-1].tool_calls)
        disguise, hidden, schemas = self._disguised(messages, tools)
        with self._lent.revealing(disguise), boundary(ConfigError, f"renderer {self.name!r} refuses the messages"):
            bridged = self._bridging.bridge_to_next_turn(ids[:start], ids[start:], hidden, tools=schemas)
        if bridged is None:
            raise self._drift("the package does not bridge here")
        out: list[int] = list(bridged.token_ids)
        if out[: len(ids)] != ids:
            raise self._drift("the package would change the chain")
        added = out[len(ids) :]
        if cut and added[: len(self._closing)] != self._closing:
            raise self._drift("the package closes the cut turn in another way")
        return added

    def shows_thinking(self, ids: Sequence[int]) -> bool:
        """Whether a sampled turn has a thinking block, be it empty, or stands behind one of the generation prompt."""
        if self._prompt_thinks:
            return True
        text = self.decode(ids)
        return any(tag in text for tag in THINK_TAGS) or bool(self.parse(ids, []).reasoning)

    def drops_thinking(self, calls: Sequence[ToolCall], new: Sequence[Message], tools: Sequence[ToolSchema]) -> bool:
        """Whether the package, left to itself, would render a conversation anew before it goes on with `new`.

        It is asked with a short conversation in place of the real one.
        """
        disguise, hidden, schemas = self._disguised(in_call_order(new, calls), tools)
        turn = [*self.tokenizer.encode_plain(_ANSWER), *self._closing]
        with self._lent.revealing(disguise), boundary(ConfigError, f"renderer {self.name!r} refuses the messages"):
            alone = self._renderer.bridge_to_next_turn(self._prompt, turn, hidden, tools=schemas)
            keeping = self._bridging.bridge_to_next_turn(self._prompt, turn, hidden, tools=schemas)
        return alone is None and keeping is not None

    def closing_ids(self) -> list[int]:
        """What the package puts at the end of a cut turn, up to its stop token; a new list, empty when it cannot."""
        return list(self._closing)

    def parse(self, ids: Sequence[int], tools: Sequence[ToolSchema]) -> ParsedOutput:
        """The message that a generation says; a final stop token is not part of it.

        Read from the text of `ids`, so that it agrees with `stream`. Never raises: what the package cannot read is
        content.
        """
        if ids and ids[-1] in self._stop:
            ids = ids[:-1]
        return self._read(self.decode(ids), tools)

    def stream(self, tools: Sequence[ToolSchema]) -> StreamingParse:
        """The same for text that arrives in pieces; everything is said at its end."""
        return ParseAtEnd(lambda text: self._read(text, tools))

    def stream_text(self) -> StreamingParse:
        """The same where no call may be made, as it arrives: call markup is content as it stands."""
        return self._text.stream([])

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included; bytes that are no complete character become U+FFFD."""
        return self.tokenizer.decode(ids)

    def decoder(self) -> TokenDecoder:
        """The same for ids that arrive in pieces; see `TokenDecoder`."""
        return TokenDecoder(self.tokenizer)

    def limit(self, text: str, max_tokens: int, notice: str) -> str:
        """See `limit_tokens`."""
        return limit_tokens(self.tokenizer, text, max_tokens, notice)

    # ------------------------------------------------------------------------------------------ inside

    def _read(self, text: str, tools: Sequence[ToolSchema]) -> ParsedOutput:
        ids = self.tokenizer.encode(text)
        try:
            response = self._renderer.parse_response(ids, tools=list(tools) or None, prompt_ids=self._prompt)
        except Exception:  # the package's readers raise on some of what models write
            return ParsedOutput(text, marker_seen=True)
        return output_of(response, tools)

    def _disguised(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema]
    ) -> tuple[Disguise, list[dict[str, Any]], list[ToolSchema] | None]:
        if any(isinstance(part, Media) for message in messages for part in message.parts):
            raise ConfigError(f"images: renderer {self.name!r} is used for text alone")
        dicts = [template_message(message, split_thinking=True) for message in messages]

        def inputs() -> Iterable[str]:
            yield from strings_in(dicts)
            yield from strings_in(tools)

        disguise = Disguise(self.tokenizer.controls, inputs)
        hidden = [cast("dict[str, Any]", disguise.data(message)) for message in dicts]
        return disguise, hidden, [disguise.data(tool) for tool in tools] or None

    def _rendered(self, history: Sequence[Message], tools: Sequence[ToolSchema], *, cut: bool) -> list[int]:
        """The package's own render of `history`, up to the end of its last turn (`cut`: before its end token)."""
        disguise, hidden, schemas = self._disguised(in_call_order(history), tools)
        with self._lent.revealing(disguise), boundary(ConfigError, f"renderer {self.name!r} refuses the messages"):
            ids: list[int] = list(self._renderer.render_ids(hidden, tools=schemas, add_generation_prompt=False))
        end = next((i for i in range(len(ids) - 1, -1, -1) if ids[i] in self._stop), len(ids) - 1)
        return ids[:end] if cut else ids[: end + 1]

    def _turn_start(self, ids: list[int]) -> int:
        """Where the last turn begins: behind the last generation prompt."""
        opening, size = self._opening, len(self._opening)
        if size:
            for start in range(len(ids) - size, -1, -1):
                if ids[start] == opening[0] and ids[start : start + size] == opening:
                    return start + size
        raise self._drift("the last turn has no generation prompt that is known")

    def _closing_ids(self, ends: Sequence[int]) -> list[int]:
        turn = self.tokenizer.encode_plain(_ANSWER)
        with boundary(ConfigError, f"renderer {self.name!r} of the renderers package"):
            bridged = self._bridging.bridge_to_next_turn(self._prompt, turn, [_QUESTION])
        if bridged is None:
            return []
        added = list(bridged.token_ids)[len(self._prompt) + len(turn) :]
        end = next((i for i, id_ in enumerate(added) if id_ in ends), None)
        return [] if end is None else added[: end + 1]

    def _is_end(self, id_: int) -> bool:
        """Whether the package takes `id_` for the end of a turn and puts no other behind it."""
        turn = [*self._prompt, *self.tokenizer.encode_plain(_ANSWER), id_]
        with boundary(ConfigError, f"renderer {self.name!r} of the renderers package"):
            bridged = self._bridging.bridge_to_next_turn(self._prompt, turn[len(self._prompt) :], [_QUESTION])
        if bridged is None or list(bridged.token_ids)[: len(turn)] != turn:
            return False
        return not self._closing or list(bridged.token_ids)[len(turn) :][: len(self._closing)] != self._closing

    def _drift(self, reason: str) -> TemplateDriftError:
        return TemplateDriftError(
            f"renderer {self.name} does not continue this conversation where it stopped ({reason})"
        )


def load_package() -> Any:
    """The module `renderers`. Raises MissingExtraError when it, or something it needs, is not installed."""
    from importlib import import_module

    try:
        return import_module("renderers")
    except ImportError as error:
        raise MissingExtraError(error.name or "renderers", "renderers", "renderer.type 'renderers_package'") from error


def package_renderer(
    package: Any,
    tokenizer: ChatTokenizer,
    *,
    name: str,
    model: str = "",
    template_kwargs: Mapping[str, Any] | None = None,
    stop_token_ids: Sequence[int] = (),
) -> PackageRenderer:
    """The renderer called `name` of the module `package`, or for `auto` the one of `model`.

    Raises ConfigError for a name or model that the package does not know, for variables that the renderer does not
    take, and for a tokenizer that lacks the model's control tokens.
    """
    from importlib import import_module

    known: Mapping[str, str] = import_module("renderers.base").MODEL_RENDERER_MAP
    if name == "auto":
        if model not in known:
            raise ConfigError(
                f"renderer.renderer: the renderers package knows no model {model!r}; set renderer.model to the model's "
                f"Hugging Face name, or renderer.renderer to one of {', '.join(sorted(set(known.values())))}"
            )
        name = known[model]
    if name in ("auto", "default"):
        raise ConfigError("renderer.renderer: 'default' wraps a chat template; use renderer.type 'chat_template'")
    lent = LentTokenizer(tokenizer, model or tokenizer.name)
    variables = json.dumps(dict(template_kwargs or {}))
    with boundary(ConfigError, f"renderer.renderer: {name!r} with template_kwargs {variables}"):
        try:
            config = package.merge_chat_template_kwargs(package.config_from_name(name), dict(template_kwargs or {}))
            keeping = config.model_copy(update={"thinking_retention": "all"})
            renderer, bridging = package.create_renderer(lent, config), package.create_renderer(lent, keeping)
        except AssertionError as error:
            raise ConfigError(f"renderer.renderer: {name!r} does not fit {tokenizer.name}: {error}") from error
    return PackageRenderer(tokenizer, lent, renderer, bridging, name=name, stop_token_ids=stop_token_ids)
