"""Any OpenAI-compatible server, through the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from uni_agent.config.secrets import secret
from uni_agent.errors import ConfigError, ContextLengthError, ModelError, TurnTooLongError, boundary
from uni_agent.model.base import ModelTurn
from uni_agent.model.text_tools import text_view
from uni_agent.model.wire_tokens import TokenRecorder
from uni_agent.tokens.base import ParsedOutput, ToolParser, ToolSchema
from uni_agent.tokens.cache import RolloutCache
from uni_agent.tokens.parsers import jsontext
from uni_agent.types import Message, ToolCall, Usage

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from uni_agent.model.config import OpenAIModelConfig

_CONTEXT_WORDS = ("context length", "context_length", "maximum context", "too many tokens", "max_model_len")


class OpenAICompatibleChatModel:
    """Chat Completions with native or textual tool calls; ids and logprobs too when the server returns them."""

    def __init__(self, config: OpenAIModelConfig, *, seed: int | None = None) -> None:
        from uni_agent.tokens.parsers import build_parser

        self.config = config
        self.seed = seed
        self.parser: ToolParser = build_parser(config.tool_parser)
        self._client: AsyncOpenAI | None = None

    @property
    def client(self) -> AsyncOpenAI:
        """The connected client. Raises ConfigError when the API key's variable is not set."""
        if self._client is None:
            from openai import AsyncOpenAI

            name = self.config.api_key_env
            key = secret(name) if name else "EMPTY"
            self._client = AsyncOpenAI(
                api_key=key,
                base_url=self.config.base_url or "https://api.openai.com/v1",
                max_retries=self.config.retries,
                timeout=self.config.timeout,
            )
        return self._client

    async def start(self) -> None:
        """Make the client; nothing is sent."""
        _ = self.client

    async def probe(self) -> None:
        """Ask the server for its models. Raises ConfigError when it cannot be reached or refuses the key."""
        import openai

        where = f"model.base_url {self.client.base_url}"
        try:
            await self.client.with_options(timeout=10, max_retries=1).models.list()
        except openai.APIConnectionError as error:
            cause = error.__cause__ or error
            raise ConfigError(f"{where}: cannot be reached ({cause}); is the server running?") from error
        except (openai.AuthenticationError, openai.PermissionDeniedError) as error:
            raise ConfigError(
                f"{where}: refuses the API key (HTTP {error.status_code}); see model.api_key_env"
            ) from error
        except openai.APIStatusError as error:
            if error.status_code >= 500:
                raise ConfigError(f"{where}: answers HTTP {error.status_code}") from error
            # Servers without /models exist; a chat request will tell.

    async def open(self, request_id: str, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> OpenAISession:
        """A conversation that starts with `messages`."""
        return OpenAISession(self, request_id, list(messages), list(tools))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def complete(self, payload: dict[str, Any]) -> Any:
        """One chat completion with the client's own retries. Raises the model errors of `ChatSession.query`."""
        import openai

        try:
            async with asyncio.timeout(self.config.timeout):
                create: Any = self.client.chat.completions.create  # its overloads cannot be met by a dict
                return await create(**payload)
        except (TimeoutError, openai.APITimeoutError) as error:
            raise TurnTooLongError(f"no answer from the model within {self.config.timeout:g} s") from error
        except openai.APIStatusError as error:
            text = str(error)
            if error.status_code in (400, 413, 422) and any(word in text.lower() for word in _CONTEXT_WORDS):
                raise ContextLengthError(text[:500]) from error
            raise ModelError(f"HTTP {error.status_code} from the model: {text[:500]}") from error
        except openai.OpenAIError as error:
            raise ModelError(f"{type(error).__name__}: {error.__cause__ or error}") from error
        except ValueError as error:  # a body that is no JSON, from a proxy or a broken server
            raise ModelError(f"the model's answer cannot be read: {error}") from error

    def payload(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> dict[str, Any]:
        """The request for one turn. Only sampling fields that were set are sent."""
        config, sampling = self.config, self.config.sampling
        extra: dict[str, Any] = dict(config.extra_body)
        payload: dict[str, Any] = {"model": config.model}
        if config.tool_calls == "text":
            payload["messages"] = [m.to_openai() for m in text_view(messages, tools)]
        else:
            payload["messages"] = [m.to_openai() for m in messages]
            if tools:
                payload["tools"] = list(tools)
        for name in sorted(sampling.model_fields_set):
            value: Any = getattr(sampling, name)
            if value is None:
                continue
            (payload if name in ("temperature", "top_p", "max_tokens") else extra)[name] = value
        if self.seed is not None:
            payload["seed"] = self.seed
        if config.token_ids:
            payload["logprobs"] = True
            extra["return_token_ids"] = True
        if extra:
            payload["extra_body"] = extra
        return payload


class OpenAISession:
    """One conversation with an OpenAI-compatible server."""

    def __init__(
        self,
        model: OpenAICompatibleChatModel,
        request_id: str,
        messages: list[Message],
        tools: list[ToolSchema],
    ) -> None:
        self.messages = messages
        self._model = model
        self._tools = tools
        self._turn = 0
        self._tokens = TokenRecorder(request_id)

    @property
    def caches(self) -> Sequence[RolloutCache]:
        """One chain for each stretch in which every prompt extended the one before; empty without token ids."""
        return self._tokens.caches

    async def query(self) -> ModelTurn:
        """Sample a turn and commit it."""
        response, choice = await self._answer()
        # Whatever of the answer cannot be read fails here, before anything of it is recorded.
        with boundary(ModelError, "the model's answer cannot be read"):
            parsed = self._parse(choice.message)
            usage = _usage(getattr(response, "usage", None))
        span = (0, 0)
        if self._model.config.token_ids:
            with boundary(ModelError, "the model's token ids cannot be read"):
                span = self._tokens.record(response, choice, self._turn)
        message = Message("assistant", parsed.content, parsed.reasoning, parsed.tool_calls)
        self.messages.append(message)
        self._turn += 1
        usable = any(call.error is None for call in parsed.tool_calls)
        cut = getattr(choice, "finish_reason", None) == "length"
        reason = "length" if cut else "tool_calls" if parsed.tool_calls else "stop"
        return ModelTurn(
            message,
            reason,
            usage,
            span,
            parse_failed=parsed.marker_seen and not usable,
        )

    async def _answer(self) -> tuple[Any, Any]:
        """A response and its first choice. What the server aborted is no answer: asked again, then a ModelError."""
        for _ in range(self._model.config.retries + 1):
            response = await self._model.complete(self._model.payload(self.messages, self._tools))
            choices = _list(getattr(response, "choices", None))
            if not choices or not hasattr(getattr(choices[0], "message", None), "content"):
                raise ModelError(f"the model's answer holds no choice: {str(response)[:300]}")
            if getattr(choices[0], "finish_reason", None) not in ("abort", "error"):
                return response, choices[0]
            self._tokens.dropped(response, choices[0], self._turn, "aborted")
        raise ModelError(f"the server aborted the call {self._model.config.retries + 1} times")

    async def observe(self, messages: Sequence[Message]) -> None:
        """Append; whether it fits shows at the next query."""
        self.messages.extend(messages)

    async def close(self) -> None:
        """Nothing is kept on the server."""

    def _parse(self, message: Any) -> ParsedOutput:
        content = _text(message.content)
        reasoning = _text(getattr(message, "reasoning_content", None)) or _text(getattr(message, "reasoning", None))
        native: Any = getattr(message, "tool_calls", None)
        if native:
            calls = [_native_call(call, self._turn, i) for i, call in enumerate(_list(native) or [native])]
            return ParsedOutput(content, reasoning, _distinct(calls))
        # A server without a tool parser hands the call through as text: better read than lost.
        parsed = self._model.parser.parse(content, self._tools)
        if self._model.config.tool_calls == "native" and not any(c.error is None for c in parsed.tool_calls):
            return ParsedOutput(content, reasoning, (), parsed.marker_seen)
        return ParsedOutput(parsed.content, reasoning or parsed.reasoning, parsed.tool_calls, parsed.marker_seen)


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _text(value: Any) -> str:
    """Text as servers write it: a string, null or a list of parts. Half a surrogate pair could not be sent back."""
    if isinstance(value, list):
        return "".join(_text(part.get("text") if isinstance(part, dict) else part) for part in _list(value))  # pyright: ignore
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"text expected, got {type(value).__name__}")
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _word(value: Any) -> str:
    """A name or id, "" unless it is a string."""
    return _text(value) if isinstance(value, str) else ""


def _native_call(call: Any, turn: int, index: int) -> ToolCall:
    call_id = _word(getattr(call, "id", None)) or f"call_{turn}_{index}"
    function = getattr(call, "function", None)
    name = _word(getattr(function, "name", None))
    raw: Any = getattr(function, "arguments", None)
    written = raw if isinstance(raw, str) else json.dumps(raw or {})
    text = _text(written)
    try:
        decoded: Any = jsontext.loads(written) if written.strip() else {}
        if isinstance(decoded, str):
            decoded = jsontext.loads(decoded)
    except ValueError as error:
        return ToolCall(call_id, name, {}, text, error=f"the arguments are not valid JSON: {error}")
    if not name:
        return ToolCall(call_id, name, {}, text, error="the call names no tool")
    if not isinstance(decoded, dict):
        return ToolCall(
            call_id, name, {}, text, error=f"the arguments must be a JSON object, not {type(decoded).__name__}"
        )
    return ToolCall(call_id, name, decoded, text)  # pyright: ignore[reportUnknownArgumentType] - JSON of the model


def _distinct(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...]:
    """The calls, ids that come twice told apart: each result must find its call."""
    out: list[ToolCall] = []
    taken: set[str] = set()
    for call in calls:
        call_id, number = call.id, 1
        while call_id in taken:
            number += 1
            call_id = f"{call.id}_{number}"
        taken.add(call_id)
        out.append(replace(call, id=call_id))
    return tuple(out)


def _usage(usage: Any) -> Usage:
    """The server's counts; what it does not say, or not as a number, is 0."""
    prompt, completion = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return Usage(prompt, completion, _count(getattr(usage, "prompt_tokens_details", None), "cached_tokens"))


def _count(holder: Any, name: str) -> int:
    value: Any = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, 0)  # pyright: ignore
    return value if isinstance(value, int) and value > 0 else 0
