"""The interaction loop: query the model, run its calls, observe, until something ends the episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from uni_agent.errors import ContextLengthError, exit_reason_of
from uni_agent.interaction.config import InteractionConfig
from uni_agent.interaction.env import AgentEnv
from uni_agent.interaction.observation import format_hint
from uni_agent.model.base import ChatSession, ModelTurn
from uni_agent.types import ExitReason, InteractionResult, Message, StepStatus, ToolCall, ToolResult, Turn


@dataclass(slots=True)
class _Actions:
    """What the calls of one turn gave, and the ending they brought, if any."""

    results: list[ToolResult] = field(default_factory=list[ToolResult])
    ending: ExitReason | None = None
    seconds: float = 0.0


class AgentInteraction:
    """One episode: a ReAct loop over a chat session and an environment.

    `result` is valid at any time, also after a cancellation in the middle: it holds every turn that was taken.
    `on_turn` is called once for each turn, as it ends; it must not block.
    """

    def __init__(
        self,
        session: ChatSession,
        env: AgentEnv,
        config: InteractionConfig,
        *,
        on_turn: Callable[[Turn], None] = lambda _: None,
        limit_tokens: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._env = env
        self._config = config
        self._on_turn = on_turn
        self._limit_tokens = limit_tokens
        self._clock = clock
        self._timeouts = 0
        self._format_errors = 0
        self._syntax_errors = 0
        self._pending: tuple[int, ModelTurn, _Actions, float] | None = None
        self.result = InteractionResult(messages=session.messages, turns=[], exit_reason=ExitReason.UNKNOWN_ERROR)

    async def run(self) -> InteractionResult:
        """Run to an ending. Errors become the exit reason; only cancellation is raised, after it was recorded."""
        deadline = asyncio.timeout(self._config.episode_timeout)
        try:
            async with deadline:
                await self._run_turns()
        except asyncio.CancelledError as error:
            self._end(exit_reason_of(error), "cancelled")
            raise
        except TimeoutError as error:
            # The turn's own deadline and typed model errors are TimeoutErrors too; only ours expired the outer scope.
            reason = ExitReason.TIME_LIMIT if deadline.expired() else exit_reason_of(error)
            self._end(
                reason,
                f"episode_timeout of {self._config.episode_timeout:g} s" if deadline.expired() else _named(error),
            )
        except Exception as error:  # the one place where a fault of an episode becomes data
            self._end(exit_reason_of(error), _named(error))
        finally:
            self._flush_pending()
            self.result.messages = self._session.messages
        return self.result

    async def _run_turns(self) -> None:
        for index in range(self._config.max_turns):
            deadline = asyncio.timeout(self._config.turn_timeout)
            try:
                async with deadline:
                    ending = await self._step(index)
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                self._end(ExitReason.TIMEOUT_ERROR, f"turn_timeout of {self._config.turn_timeout:g} s: {_named(error)}")
                return
            if ending is not None:
                self._end(ending)
                return
        self._end(ExitReason.MAX_STEP_LIMIT)

    async def _step(self, index: int) -> ExitReason | None:
        started = self._clock()
        try:
            turn = await self._session.query()
        finally:
            self.result.timing.model += self._clock() - started
        actions = _Actions()
        self._pending = (index, turn, actions, self._clock() - started)
        calls = turn.message.tool_calls
        if not calls:
            return await self._without_call(index, turn)
        await self._run_calls(calls, actions)
        status = _status_of(actions.results)
        ending = actions.ending or self._count(status, turn)
        observations = [
            Message(role="tool", content=r.output, tool_call_id=r.call_id, name=r.name) for r in actions.results
        ]
        return await self._commit(status, observations, ending)

    async def _without_call(self, index: int, turn: ModelTurn) -> ExitReason | None:
        if turn.finish_reason == "context":
            return await self._commit(StepStatus.FORMAT_ERROR, [], ExitReason.TOKEN_LIMIT)
        if self._config.chat_mode and not turn.parse_failed:
            self.result.answer = turn.message.content
            return await self._commit(StepStatus.COMPLETED, [], ExitReason.ANSWERED)
        hint = format_hint(self._env.toolset.names, cut=turn.finish_reason == "length", marker_seen=turn.parse_failed)
        ending = self._count(StepStatus.FORMAT_ERROR, turn)
        return await self._commit(StepStatus.FORMAT_ERROR, [Message(role="user", content=hint)], ending)

    async def _run_calls(self, calls: Sequence[ToolCall], actions: _Actions) -> None:
        started = self._clock()
        try:
            for call in calls:
                if actions.ending is not None:
                    actions.results.append(_skipped(call, f"the episode had ended ({actions.ending})"))
                    continue
                outcome = await self._env.run_action(call)
                result = outcome.result
                if self._limit_tokens is not None:
                    result = _with_output(result, self._limit_tokens(result.output))
                actions.results.append(result)
                if outcome.finished:
                    self.result.answer = outcome.answer
                    actions.ending = ExitReason.FINISHED
                elif outcome.shell_dead:
                    actions.ending = ExitReason.TERMINAL_NOT_ALIVE
                elif result.status == "timeout":
                    self._timeouts += 1
                    if self._timeouts > self._config.timeout_budget:
                        actions.ending = ExitReason.TIMEOUT_BUDGET_EXHAUSTED
        finally:
            actions.seconds = self._clock() - started
            self.result.timing.tools += actions.seconds

    def _count(self, status: StepStatus, turn: ModelTurn) -> ExitReason | None:
        """Keep the consecutive error counts; the ending when a budget is used up."""
        self._format_errors = self._format_errors + 1 if status is StepStatus.FORMAT_ERROR else 0
        self._syntax_errors = self._syntax_errors + 1 if status is StepStatus.SYNTAX_ERROR else 0
        if self._format_errors > self._config.format_error_budget:
            return ExitReason.FORMAT_ERROR
        if self._syntax_errors > self._config.syntax_error_budget:
            return ExitReason.SYNTAX_ERROR
        return ExitReason.TOKEN_LIMIT if turn.finish_reason == "context" else None

    async def _commit(
        self, status: StepStatus, observations: list[Message], ending: ExitReason | None
    ) -> ExitReason | None:
        """Record the pending turn and, when the episode goes on, hand the observations to the session."""
        self._record(status, tuple(observations))
        last = len(self.result.turns) == self._config.max_turns
        if ending is not None or last:  # nothing will be sampled after these observations: they cost no tokens
            return ending
        try:
            await self._session.observe(observations)
        except ContextLengthError:
            return ExitReason.TOKEN_LIMIT
        return None

    def _flush_pending(self) -> None:
        """Record a turn that was sampled but cut short: every call keeps its result, the missing ones as skipped."""
        if self._pending is None:
            return
        _, turn, actions, _ = self._pending
        for call in turn.message.tool_calls[len(actions.results) :]:
            actions.results.append(_skipped(call, f"the episode had ended ({self.result.exit_reason})"))
        observations = tuple(
            Message(role="tool", content=r.output, tool_call_id=r.call_id, name=r.name) for r in actions.results
        )
        self._record(StepStatus.TIMEOUT_ERROR, observations)

    def _record(self, status: StepStatus, observations: tuple[Message, ...]) -> None:
        if self._pending is None:
            raise RuntimeError("no turn is pending")
        index, turn, actions, model_seconds = self._pending
        self._pending = None
        record = Turn(
            index=index,
            message=turn.message,
            results=tuple(actions.results),
            observations=observations,
            status=status,
            finish_reason=turn.finish_reason,
            usage=turn.usage,
            token_span=turn.token_span,
            model_seconds=model_seconds,
            tool_seconds=actions.seconds,
        )
        self.result.turns.append(record)
        self._on_turn(record)

    def _end(self, reason: ExitReason, error: str = "") -> None:
        self.result.exit_reason = reason
        self.result.error = error


def _status_of(results: Sequence[ToolResult]) -> StepStatus:
    """The status of a turn from its results. One that timed out names the turn; a clean turn is completed."""
    statuses = {result.status for result in results}
    if statuses <= {"ok"}:
        return StepStatus.COMPLETED
    if statuses == {"format_error"}:
        return StepStatus.FORMAT_ERROR
    if statuses == {"syntax_error"}:
        return StepStatus.SYNTAX_ERROR
    if "timeout" in statuses:
        return StepStatus.TIMEOUT_ERROR
    return StepStatus.COMPLETED_WITH_TOOL_ERRORS


def _skipped(call: ToolCall, why: str) -> ToolResult:
    return ToolResult(call.id, call.name, f"Skipped: {why}.", status="skipped")


def _with_output(result: ToolResult, output: str) -> ToolResult:
    if output == result.output:
        return result
    return ToolResult(result.call_id, result.name, output, result.status, result.exit_code, result.seconds)


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
