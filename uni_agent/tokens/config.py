"""Configuration of how messages become tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag

from uni_agent.config.base import Config, ConfigPath, part_tag
from uni_agent.errors import ConfigError

if TYPE_CHECKING:
    from uni_agent.tokens.base import ToolParser
    from uni_agent.tokens.foreign.package import PackageRenderer
    from uni_agent.tokens.media import MediaProcessor
    from uni_agent.tokens.renderer import ChatTemplateRenderer
    from uni_agent.tokens.template import ChatTemplate
    from uni_agent.tokens.tokenizer import ChatTokenizer


class RendererConfig(Config):
    """The model's own chat template, rendered locally."""

    type: Literal["chat_template"] = "chat_template"
    tokenizer: ConfigPath | None = None
    """Folder with tokenizer.json; None: the folder of the engine's model."""
    chat_template: ConfigPath | None = None
    """A .jinja file; None: the template of the tokenizer's folder."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Variables for every render of the template, such as `enable_thinking: false`."""
    reasoning: Literal["auto", "think", "none"] = "auto"
    """How thinking is told from the answer: `think` by <think> tags; `auto`: so when the template has such tags."""
    tool_parser: str = "auto"
    """Format of tool calls; `auto`: the one that reads back what the template writes; `none`: no tools are called."""
    media: Literal["auto", "none"] = "auto"
    """Images; `auto`: as the image processor in the tokenizer's folder shows them, where there is one."""

    def build(self, default_tokenizer: Path | None) -> ChatTemplateRenderer:
        """A renderer whose template is proved and whose tool parser reads what the template writes.

        Raises ConfigError when a file is missing or unusable, and when the tool parser does not fit; the message names
        those that do.
        """
        from uni_agent.tokens.renderer import ChatTemplateRenderer
        from uni_agent.tokens.template import load_template, read_template
        from uni_agent.tokens.tokenizer import ChatTokenizer

        folder = _folder(self.tokenizer, default_tokenizer)
        tokenizer = ChatTokenizer.from_folder(folder)
        variables = {**tokenizer.special_tokens, **self.template_kwargs}
        if self.chat_template is not None:
            template = read_template(self.chat_template, variables)
        else:
            template = load_template(folder, tokenizer.config, variables)
        parser = choose_parser(self.tool_parser, tokenizer, template)
        reasoning = self.reasoning == "think" or (self.reasoning == "auto" and "<think>" in template.source)
        stops = _stop_ids(folder, tokenizer)

        def make(media: MediaProcessor | None, reason: str) -> ChatTemplateRenderer:
            return ChatTemplateRenderer(
                tokenizer,
                template,
                parser,
                reasoning=reasoning,
                stop_token_ids=stops,
                media=media,
                no_media=reason,
            )

        processor, no_media = self._processor(folder)
        try:
            renderer = make(processor, no_media)
        except ConfigError as error:
            if processor is None:
                raise
            renderer = make(None, str(error))  # text goes on; images are refused for this reason
        _ = renderer.proof
        return renderer

    def _processor(self, folder: Path) -> tuple[MediaProcessor | None, str]:
        """The folder's image processor, or None and why there is none."""
        from uni_agent.tokens.media_hf import HFMediaProcessor, has_processor

        if self.media == "none":
            return None, "renderer.media is 'none'"
        try:
            if not has_processor(folder):
                return None, "its folder has no preprocessor_config.json"
            return HFMediaProcessor.from_folder(folder), ""
        except ConfigError as error:
            return None, str(error)


class RenderersPackageConfig(Config):
    """A renderer of the `renderers` package, written by hand for a family of models; no chat template is read."""

    type: Literal["renderers_package"]
    tokenizer: ConfigPath | None = None
    """Folder with tokenizer.json; None: the folder of the engine's model."""
    renderer: str = "auto"
    """The package's name for the renderer, such as `qwen3`; `auto`: the one that it knows `model` by."""
    model: str = ""
    """The model's name on Hugging Face, such as `Qwen/Qwen3-8B`; only read for `auto`."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The renderer's own variables, such as `enable_thinking: false`."""

    def build(self, default_tokenizer: Path | None) -> PackageRenderer:
        """The renderer. Raises ConfigError for what does not exist or fit, MissingExtraError without the package."""
        from uni_agent.tokens.foreign.package import load_package, package_renderer
        from uni_agent.tokens.tokenizer import ChatTokenizer

        package = load_package()
        folder = _folder(self.tokenizer, default_tokenizer)
        tokenizer = ChatTokenizer.from_folder(folder)
        return package_renderer(
            package,
            tokenizer,
            name=self.renderer,
            model=self.model,
            template_kwargs=self.template_kwargs,
            stop_token_ids=_stop_ids(folder, tokenizer),
        )


def renderer_tag(value: Any) -> str:
    """The union member that a raw config selects by its `type`; the chat template without one."""
    return part_tag(value) or "chat_template"


AnyRendererConfig = Annotated[
    Annotated[RendererConfig, Tag("chat_template")] | Annotated[RenderersPackageConfig, Tag("renderers_package")],
    Discriminator(renderer_tag),
]
"""Any renderer, told apart by `type`."""


def choose_parser(name: str, tokenizer: ChatTokenizer, template: ChatTemplate) -> ToolParser:
    """The parser called `name`, or for `auto` the one that fits.

    Raises ConfigError when it does not read what the template writes, or when `auto` finds none or several.
    """
    from uni_agent.tokens.no_tools import NoToolParser
    from uni_agent.tokens.parsers import PARSERS, build_parser
    from uni_agent.tokens.proof import fitting_parsers
    from uni_agent.tokens.template import TemplateError
    from uni_agent.tokens.transcript import Transcriber

    if name == "none":
        return NoToolParser()
    parser = build_parser(name) if name != "auto" else None
    refused = ""
    try:
        fitting = fitting_parsers(Transcriber(tokenizer, template), PARSERS)
    except TemplateError as error:
        fitting, refused = [], f" ({error.reason})"
    if name == "auto" and len(fitting) == 1:
        return build_parser(fitting[0])
    if parser is not None and name in fitting:
        return parser
    known = f"known are {', '.join(sorted(PARSERS))}"
    if not fitting:
        cure = f"none fits{refused}: {known}. Use `tool_parser: none` for a model that calls no tools"
    else:
        cure = f"fitting: {', '.join(fitting)}"
    what = "cannot be chosen" if name == "auto" else "does not read back the tool calls that it writes"
    raise ConfigError(f"renderer.tool_parser: {name!r} with chat template {template.name} {what}; {cure}")


def _folder(own: Path | None, default: Path | None) -> Path:
    folder = own or default
    if folder is None:
        raise ConfigError("renderer.tokenizer: name a folder with a tokenizer.json; this engine has no model folder")
    return folder


def _stop_ids(folder: Path, tokenizer: ChatTokenizer) -> list[int]:
    """Ids that the model's own files name as ends: generation_config.json, then the tokenizer's `eos_token`."""
    found: list[int] = []
    path = folder / "generation_config.json"
    if path.is_file():
        try:
            value: Any = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        ids = cast(list[Any], value) if isinstance(value, list) else [value]
        found += [id_ for id_ in ids if isinstance(id_, int)]
    eos = tokenizer.controls.ids.get(tokenizer.special_tokens.get("eos_token", ""))
    return found if eos is None else [*found, eos]
