"""The `model` block: which kind of model an episode talks to. `type` decides how much is known about each turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from uni_agent.config.base import Config, ConfigPath, PluginConfig, build_object, part_tag
from uni_agent.engine.base import SamplingParams
from uni_agent.engine.config import EngineConfig
from uni_agent.tokens.config import AnyRendererConfig, RendererConfig

if TYPE_CHECKING:
    from uni_agent.engine.base import SamplingBackend
    from uni_agent.engine.sampler import OnAbort
    from uni_agent.model.base import ChatModel
    from uni_agent.model.tokens import AgentChatModel
    from uni_agent.tokens.base import Renderer


class SamplingConfig(Config):
    """How turns are sampled."""

    temperature: float = Field(default=1.0, ge=0)
    """Softmax temperature; 0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass kept."""
    top_k: int = Field(default=-1, ge=-1)
    """Most likely tokens kept; -1 keeps all."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Tokens less likely than this share of the likeliest are dropped."""
    repetition_penalty: float = Field(default=1.0, gt=0)
    """Penalty on tokens already in the context; 1.0 is none."""
    max_tokens: int | None = Field(default=None, ge=1)
    """New tokens per turn; None: up to the context window."""

    def params(self) -> SamplingParams:
        """As the engines take it."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            max_tokens=self.max_tokens,
        )


class TokenModelConfig(Config):
    """Tokens in, tokens out, through an engine: the record of a turn is exactly what was sampled."""

    type: Literal["tokens"]
    engine: EngineConfig
    """What samples."""
    renderer: AnyRendererConfig = RendererConfig()
    """How messages become tokens."""
    sampling: SamplingConfig = SamplingConfig()
    """How turns are sampled."""
    max_context: int | None = Field(default=None, ge=16)
    """Tokens of prompt and response together; None: the engine's own window."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for one model call; past it the episode ends as timeout_error."""
    retries: int = Field(default=2, ge=0)
    """Further tries of a call that the engine failed or aborted; an aborted part is recorded as dropped."""

    def build(self, seed: int | None) -> ChatModel:
        """The model; nothing is loaded before `start`. `seed` makes every turn's sampling reproducible."""
        from uni_agent.model.tokens import AgentChatModel

        folder: Any = getattr(self.engine, "path", None)
        renderer = self.renderer.build(folder if isinstance(folder, Path) else None)
        return AgentChatModel(
            self.engine.build(),
            renderer,
            sampling=self.sampling.params(),
            max_context=self.max_context,
            timeout=self.timeout,
            retries=self.retries,
            seed=seed,
        )


class VerlModelConfig(Config):
    """Tokens in, tokens out, through verl's own rollout servers: what a `train:` block trains.

    Without `train:` the pipeline evaluates through verl's server manager, with the same loop and the same record.
    """

    type: Literal["verl"]
    path: ConfigPath
    """Folder of the policy: weights, tokenizer and chat template."""
    renderer: AnyRendererConfig = RendererConfig()
    """How messages become tokens."""
    sampling: SamplingConfig = SamplingConfig()
    """How turns are sampled; temperature, top_p and top_k are those of verl's rollout as well."""
    max_context: int | None = Field(default=None, ge=16)
    """Tokens of prompt and response together; None: the window of the model, or of `train:`."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for one turn, pauses for new weights included; past it the episode ends as timeout_error."""
    retries: int = Field(default=2, ge=0)
    """Further tries of a call that the servers failed."""
    engine: str | None = None
    """verl's rollout engine for an evaluation (`vllm`, `sglang`); None: our own where there is no GPU, else `vllm`."""
    overrides: dict[str, Any] = {}
    """Any of verl's keys, for an evaluation; with `train:` they belong to `train.overrides`."""

    def build(self, seed: int | None) -> ChatModel:
        """The model for an evaluation: `start` starts verl's servers. Raises MissingExtraError without verl."""
        from uni_agent.config.base import load_object

        # Named, not imported: training stands above this module.
        return load_object("uni_agent.training.evaluation:VerlChatModel")(self, seed=seed)

    def over(
        self,
        backend: SamplingBackend,
        renderer: Renderer,
        *,
        seed: int | None,
        sampling: SamplingParams | None = None,
        max_response: int | None = None,
        on_abort: OnAbort = "continue",
    ) -> AgentChatModel:
        """The model over an engine that somebody else started."""
        from uni_agent.model.tokens import AgentChatModel

        return AgentChatModel(
            backend,
            renderer,
            sampling=sampling or self.sampling.params(),
            max_context=self.max_context,
            max_response=max_response,
            timeout=self.timeout,
            retries=self.retries,
            seed=seed,
            on_abort=on_abort,
        )


class OpenAIModelConfig(Config):
    """Any server that speaks OpenAI Chat Completions."""

    type: Literal["openai_compatible"]
    model: str
    """Model name as the server knows it."""
    base_url: str | None = None
    """Address up to and including `/v1`; None: OpenAI's own."""
    api_key_env: str | None = None
    """Environment variable that holds the API key; None: the server needs none."""
    sampling: SamplingConfig = SamplingConfig()
    """How turns are sampled. What the OpenAI API does not define goes to `extra_body`, and only when it was set."""
    extra_body: dict[str, Any] = {}
    """Further fields of the request, as the server defines them."""
    tool_calls: Literal["native", "text"] = "native"
    """`native`: the server's own tool calls. `text`: tools in the system prompt, calls parsed from the text."""
    tool_parser: str = "hermes"
    """The format of tool calls in text."""
    token_ids: bool = False
    """Ask the server for token ids and logprobs (vLLM's `return_token_ids`), which makes the record trainable."""
    timeout: float = Field(default=600.0, gt=0)
    """Seconds for one model call, retries included; past it the episode ends as timeout_error."""
    retries: int = Field(default=5, ge=0)
    """Further tries after 408, 409, 429, 5xx and connection faults, with growing waits; `Retry-After` is honoured."""

    def build(self, seed: int | None) -> ChatModel:
        """The model; nothing is connected before `start`."""
        from uni_agent.model.openai_compatible import OpenAICompatibleChatModel

        return OpenAICompatibleChatModel(self, seed=seed)


class ScriptedModelConfig(Config):
    """Plays turns from a file: for demos and tests without a model."""

    type: Literal["scripted"]
    path: ConfigPath
    """JSON lines, one turn each: `{"content": …, "tool_calls": [{"name": …, "arguments": {…}}]}`; each episode plays
    them from the top. A line may carry `task` to serve only the task of that id."""

    def build(self, seed: int | None) -> ChatModel:
        """The model. Raises ConfigError for a file that cannot be read."""
        del seed
        from uni_agent.model.scripted import ScriptedModel

        return ScriptedModel.from_file(self.path)


class PluginModelConfig(PluginConfig):
    """A ChatModel from another package."""

    def build(self, seed: int | None) -> ChatModel:
        """`Class(**options)`; `seed` is passed when the options name one as null. Raises ConfigError."""
        options = dict(self.options)
        if "seed" in options and options["seed"] is None:
            options["seed"] = seed
        return build_object(self.type, options)


ModelConfig = Annotated[
    Annotated[TokenModelConfig, Tag("tokens")]
    | Annotated[VerlModelConfig, Tag("verl")]
    | Annotated[OpenAIModelConfig, Tag("openai_compatible")]
    | Annotated[ScriptedModelConfig, Tag("scripted")]
    | Annotated[PluginModelConfig, Tag("plugin")],
    Discriminator(part_tag),
]
"""What an episode talks to, chosen by `type`."""
