"""Plain records that every part of the package shares. Nothing here imports another module of the package."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Role = Literal["system", "user", "assistant", "tool"]


# ---------------------------------------------------------------------------------------------- endings


class ExitClass(StrEnum):
    """Who is responsible for an ending."""

    FINISHED = "finished"
    """The agent ended the episode itself."""
    LIMIT = "limit"
    """A configured limit ended it."""
    MODEL = "model"
    """The model could not keep to the protocol."""
    INFRASTRUCTURE = "infrastructure"
    """Something around the agent broke; says nothing about the model."""
    OPERATOR = "operator"
    """A person or the program's own shutdown ended it."""


class ExitReason(StrEnum):
    """Why an episode ended: a closed set, decided once, never inferred from a reward."""

    FINISHED = "finished"
    """The agent called `finish` or `submit`."""
    ANSWERED = "answered"
    """Chat mode: a turn without a tool call is the answer."""
    TOKEN_LIMIT = "token_limit"  # noqa: S105 - an ending, no secret
    """The context window is full."""
    MAX_STEP_LIMIT = "max_step_limit"
    """`interaction.max_turns` turns were taken and the last one did not finish."""
    TIMEOUT_ERROR = "timeout_error"
    """One turn ran past `interaction.turn_timeout`, or its model call past `model.timeout`."""
    TIMEOUT_BUDGET_EXHAUSTED = "timeout_budget_exhausted"
    """More than `interaction.timeout_budget` commands timed out."""
    TIME_LIMIT = "time_limit"
    """The episode ran past `interaction.episode_timeout`."""
    FORMAT_ERROR = "format_error"
    """More than `interaction.format_error_budget` consecutive turns held no usable tool call."""
    SYNTAX_ERROR = "syntax_error"
    """More than `interaction.syntax_error_budget` consecutive turns held only commands that the shell cannot parse."""
    TERMINAL_NOT_ALIVE = "terminal_not_alive"
    """The shell stopped answering and could not be restarted."""
    AGENT_ERROR = "agent_error"
    """A black-box agent crashed by itself."""
    MODEL_ERROR = "model_error"
    """The model endpoint or engine failed after its retries."""
    SANDBOX_ERROR = "sandbox_error"
    """The sandbox did not start, or was lost."""
    REWARD_ERROR = "reward_error"
    """Grading failed; the work itself is neither right nor wrong."""
    UNKNOWN_ERROR = "unknown_error"
    """A fault that no other member names: please report it."""
    CANCELLED = "cancelled"
    """The run was stopped, or this rollout was cancelled."""

    @property
    def exit_class(self) -> ExitClass:
        """Who is responsible for the ending."""
        return _EXIT_CLASSES[self]

    @property
    def trusted(self) -> bool:
        """Whether a reward computed after this ending says something about the model."""
        return self.exit_class not in (ExitClass.INFRASTRUCTURE, ExitClass.OPERATOR)

    @property
    def trains(self) -> bool:
        """Whether the trajectory trains unless the configuration says otherwise."""
        return self.trusted

    @property
    def abnormal(self) -> bool:
        """Whether `interaction.mask_abnormal_exit_traj` masks it: everything but the agent's own ending."""
        return self.exit_class is not ExitClass.FINISHED

    @property
    def retryable(self) -> bool:
        """Whether a rollout that ended so is worth another attempt, now or at `--resume`."""
        return not self.trusted


_EXIT_CLASSES: dict[ExitReason, ExitClass] = {
    ExitReason.FINISHED: ExitClass.FINISHED,
    ExitReason.ANSWERED: ExitClass.FINISHED,
    ExitReason.TOKEN_LIMIT: ExitClass.LIMIT,
    ExitReason.MAX_STEP_LIMIT: ExitClass.LIMIT,
    ExitReason.TIMEOUT_ERROR: ExitClass.LIMIT,
    ExitReason.TIMEOUT_BUDGET_EXHAUSTED: ExitClass.LIMIT,
    ExitReason.TIME_LIMIT: ExitClass.LIMIT,
    ExitReason.FORMAT_ERROR: ExitClass.MODEL,
    ExitReason.SYNTAX_ERROR: ExitClass.MODEL,
    ExitReason.TERMINAL_NOT_ALIVE: ExitClass.INFRASTRUCTURE,
    ExitReason.AGENT_ERROR: ExitClass.INFRASTRUCTURE,
    ExitReason.MODEL_ERROR: ExitClass.INFRASTRUCTURE,
    ExitReason.SANDBOX_ERROR: ExitClass.INFRASTRUCTURE,
    ExitReason.REWARD_ERROR: ExitClass.INFRASTRUCTURE,
    ExitReason.UNKNOWN_ERROR: ExitClass.INFRASTRUCTURE,
    ExitReason.CANCELLED: ExitClass.OPERATOR,
}


class StepStatus(StrEnum):
    """How one turn went."""

    COMPLETED = "completed"
    """Every tool call ran."""
    COMPLETED_WITH_TOOL_ERRORS = "completed_with_tool_errors"
    """At least one call ran and at least one failed, was refused or was skipped."""
    FORMAT_ERROR = "format_error"
    """No usable tool call was found."""
    TIMEOUT_ERROR = "timeout_error"
    """A command, or the turn itself, ran past its deadline."""
    SYNTAX_ERROR = "syntax_error"
    """Every command was refused by the shell's own parser."""


# ---------------------------------------------------------------------------------------------- messages


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an assistant turn, valid or not: each gets exactly one result.

    `arguments` is the decoded object; `{}` when `error` is set. `raw_arguments` is what the model wrote, byte for byte.
    `error` is None, or the sentence that tells the model what is wrong with the call (bad JSON, no name, unknown tool,
    arguments that do not fit). `name` is "" when the model gave none. `note` is "" or what a usable call's result
    should tell the model as well (a malformed parameter that was left out).
    """

    id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    raw_arguments: str = ""
    error: str | None = None
    note: str = ""

    def to_openai(self) -> dict[str, Any]:
        """The call as OpenAI Chat Completions writes it (`arguments` is a JSON string)."""
        text = self.raw_arguments if self.error else json.dumps(self.arguments, ensure_ascii=False)
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": text or "{}"}}


@dataclass(frozen=True, slots=True)
class Media:
    """An image in a message: its file's bytes, and the MIME type that came with them ("" when unknown)."""

    kind: Literal["image"]
    data: bytes = field(repr=False)
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `reasoning` is thinking that is not part of `content`; "" when there is none.

    `tool_calls` is only set on assistant messages, `tool_call_id` only on tool messages. `parts` is empty unless the
    message holds media: then it is text and media in their order, and `content` is its joined text.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    parts: tuple[str | Media, ...] = ()

    def to_openai(self) -> dict[str, Any]:
        """The message as OpenAI Chat Completions writes it; empty fields are left out."""
        out: dict[str, Any] = {"role": self.role, "content": self.content}
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        if self.role == "tool":
            out["tool_call_id"] = self.tool_call_id
        if self.name:
            out["name"] = self.name
        return out


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What one tool call gave. `output` is the observation as the model reads it (already limited).

    `exit_code` is None where no command ran. `status` is `ok`, `error` (ran, non-zero exit or refused by the tool),
    `format_error` (never ran), `timeout`, `syntax_error` or `skipped`.
    """

    call_id: str
    name: str
    output: str
    status: Literal["ok", "error", "format_error", "timeout", "syntax_error", "skipped"] = "ok"
    exit_code: int | None = None
    seconds: float = 0.0


# ---------------------------------------------------------------------------------------------- accounting


@dataclass(slots=True)
class TokenAccount:
    """Where every sampled token went: `sampled == trained + masked + sum(dropped.values())`.

    `dropped` maps a reason to a count. Token counts are 0 for models that return no token ids.
    """

    sampled: int = 0
    trained: int = 0
    masked: int = 0
    dropped: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def balanced(self) -> bool:
        """Whether no sampled token is unaccounted for."""
        return self.sampled == self.trained + self.masked + sum(self.dropped.values())

    def to_dict(self) -> dict[str, Any]:
        """The four numbers as plain data; `dropped` stays a mapping reason → count."""
        return {"sampled": self.sampled, "trained": self.trained, "masked": self.masked, "dropped": dict(self.dropped)}


@dataclass(slots=True)
class Timing:
    """Seconds spent in each phase of a rollout. `model` and `tools` are summed over turns."""

    start: float = 0.0
    model: float = 0.0
    tools: float = 0.0
    reward: float = 0.0
    teardown: float = 0.0

    def to_dict(self) -> dict[str, float]:
        """Phase → seconds."""
        return {
            "start": self.start,
            "model": self.model,
            "tools": self.tools,
            "reward": self.reward,
            "teardown": self.teardown,
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call as the engine or endpoint counted them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One step of the loop: what the model said, what its calls gave, how it went.

    `index` counts from 0. `results` are in the order of `message.tool_calls`, one each. `observations` are the messages
    appended after the turn (tool results, or the format-error hint). `token_span` is the half-open range of the turn's
    sampled tokens in `RolloutCache.response_ids`, (0, 0) without tokens.
    """

    index: int
    message: Message
    results: tuple[ToolResult, ...]
    observations: tuple[Message, ...]
    status: StepStatus
    finish_reason: str = ""
    usage: Usage = Usage()
    token_span: tuple[int, int] = (0, 0)
    model_seconds: float = 0.0
    tool_seconds: float = 0.0


# ---------------------------------------------------------------------------------------------- rewards


@dataclass(frozen=True, slots=True)
class RewardResult:
    """The verdict of a reward spec.

    `score` is what trains (any float; None when grading failed), `resolved` whether the task counts as solved (None
    when grading failed), `trusted` whether the score says something about the model. `breakdown` holds named parts of
    the score, `log` the grader's own output, `error` why grading failed.

    `turn_scores` are rewards of single turns, by their index: parts of `score`, for training that credits each turn by
    itself. Empty when only the episode is scored.
    """

    score: float | None
    resolved: bool | None
    trusted: bool = True
    breakdown: dict[str, float] = field(default_factory=dict[str, float])
    log: str = ""
    error: str = ""
    turn_scores: tuple[float, ...] = ()

    @classmethod
    def failed(cls, error: str, log: str = "") -> RewardResult:
        """Grading that did not come to a verdict: never a 0."""
        return cls(score=None, resolved=None, trusted=False, log=log, error=error)


# ---------------------------------------------------------------------------------------------- tasks


class Repo(BaseModel):
    """A repository that the sandbox starts from, placed at the task's working directory.

    A `path` that is a plain folder is copied and committed as the base commit; a git folder, a bundle or a `url` is
    checked out at `commit`, and only the history up to that commit comes along.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    path: str | None = None
    """Local folder, git folder or `.bundle` file, relative to the task file."""
    url: str | None = None
    """Anything `git clone` takes."""
    commit: str | None = None
    """Commit to check out; default the source's HEAD."""

    @model_validator(mode="after")
    def _one_source(self) -> Repo:
        if (self.path is None) == (self.url is None):
            raise ValueError("give exactly one of `path` and `url`")
        return self


class TaskFile(BaseModel):
    """A file that is written before the agent starts. Exactly one of the three sources."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    text: str | None = None
    """UTF-8 text."""
    base64: str | None = None
    """Any bytes."""
    path: str | None = None
    """A local file, relative to the task file."""
    mode: int = 0o644
    """Permission bits."""

    @model_validator(mode="after")
    def _one_source(self) -> TaskFile:
        if sum(source is not None for source in (self.text, self.base64, self.path)) != 1:
            raise ValueError("give exactly one of `text`, `base64` and `path`")
        return self


class Task(BaseModel):
    """One unit of work. The sandbox is prepared from it before the agent starts: repo, then files, then setup."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    id: str = Field(min_length=1)
    """Unique in its source; part of file names and URLs after quoting."""
    prompt: str | list[dict[str, Any]]
    """The user message, or a list of OpenAI-style messages."""
    image: str | None = None
    """Provider-neutral image name; None uses the deployment's own."""
    workdir: str | None = None
    """Where the agent's shell starts; None uses the deployment's default (a fresh folder on the host)."""
    files: dict[str, str | TaskFile] = {}
    """Path (absolute, or relative to the working directory) → text or TaskFile."""
    repo: Repo | None = None
    """Repository placed at the working directory."""
    setup: str | list[str] = []
    """Shell commands run before the agent starts; a non-zero exit is a sandbox error."""
    setup_timeout: float = 300.0
    """Seconds for all of `setup`."""
    env: dict[str, str] = {}
    """Environment variables of the agent's shell."""
    overrides: dict[str, Any] = {}
    """Deep-merged over the pipeline's YAML for this task alone; `model`, `data`, `run` and `train` are reserved."""
    metadata: dict[str, Any] = {}
    """Free data for reward specs and reports; the agent never sees it."""
    base_dir: str = ""
    """Folder that relative paths refer to; set by the source."""


# ---------------------------------------------------------------------------------------------- rollouts


@dataclass(frozen=True, slots=True)
class RolloutKey:
    """Names one sample of one task; stable over attempts and resumes."""

    task_id: str
    sample: int

    def __str__(self) -> str:
        """`task#sample`, as shown to people."""
        return f"{self.task_id}#{self.sample}"


@dataclass(slots=True)
class InteractionResult:
    """What an episode left: the conversation, how it ended, and how long its parts took.

    `error` is "" or `ClassName: message` of what caused the ending. `answer` is the argument of `finish`, or the last
    text in chat mode; "" otherwise. `timing` has `model` and `tools` filled in.
    """

    messages: list[Message]
    turns: list[Turn]
    exit_reason: ExitReason
    error: str = ""
    answer: str = ""
    timing: Timing = field(default_factory=Timing)


def parse_messages(prompt: str | list[dict[str, Any]]) -> list[Message]:
    """Messages from a task's `prompt`. Raises ValueError that names the index and key of what it cannot read."""
    if isinstance(prompt, str):
        return [Message(role="user", content=prompt)]
    messages: list[Message] = []
    for i, raw in enumerate(prompt):
        role = raw.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"prompt[{i}].role: {role!r} is none of system, user, assistant, tool")
        messages.append(
            Message(
                role=role,
                content=_text_of(raw.get("content"), i),
                reasoning=_word_of(raw, "reasoning_content", i) or _word_of(raw, "reasoning", i),
                tool_calls=_calls_of(raw.get("tool_calls"), i),
                tool_call_id=_word_of(raw, "tool_call_id", i),
                name=_word_of(raw, "name", i),
            )
        )
    return messages


def _text_of(content: Any, index: int) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts: list[str] = []
        for part in content:  # pyright: ignore[reportUnknownVariableType] - JSON of the user's making
            text: Any = part.get("text") if isinstance(part, dict) else part  # pyright: ignore
            if not isinstance(text, str):
                raise ValueError(f"prompt[{index}].content: only text parts can be used here, got {part!r}")
            parts.append(text)
        return "".join(parts)
    raise ValueError(f"prompt[{index}].content: expected text, got {type(content).__name__}")


def _word_of(raw: dict[str, Any], key: str, index: int) -> str:
    value = raw.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"prompt[{index}].{key}: expected text, got {type(value).__name__}")
    return value or ""


def _calls_of(raw: Any, index: int) -> tuple[ToolCall, ...]:
    if raw is not None and not isinstance(raw, list):
        raise ValueError(f"prompt[{index}].tool_calls: expected a list, got {type(raw).__name__}")
    return tuple(_call_of(call, index) for call in raw or ())  # pyright: ignore[reportUnknownVariableType] - as below


def _call_of(raw: Any, index: int) -> ToolCall:
    call: dict[str, Any] = dict(raw) if isinstance(raw, dict) else {}  # pyright: ignore[reportUnknownArgumentType] - as below
    function: Any = call.get("function")
    if not isinstance(function, dict):
        raise ValueError(f"prompt[{index}].tool_calls: a call needs `function: {{name, arguments}}`")
    fields: dict[str, Any] = dict(function)  # pyright: ignore[reportUnknownArgumentType] - JSON of the user's making
    name: Any = fields.get("name")
    arguments: Any = fields.get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        decoded: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"prompt[{index}].tool_calls: arguments are not JSON: {error}") from error
    if not isinstance(name, str) or not isinstance(decoded, dict):
        raise ValueError(f"prompt[{index}].tool_calls: a call needs a name and an object of arguments")
    values: dict[str, Any] = dict(decoded)  # pyright: ignore[reportUnknownArgumentType] - as above
    return ToolCall(id=str(call.get("id") or ""), name=name, arguments=values, raw_arguments=text)
