"""AgentInteraction over a scripted model and a scripted sandbox: endings, budgets, N:N results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from uni_agent.deployment.dummy import DummyReply, dummy_sandbox
from uni_agent.deployment.sandbox import Sandbox
from uni_agent.errors import ContextLengthError, ModelError, TurnTooLongError
from uni_agent.interaction import AgentEnv, AgentInteraction, InteractionConfig
from uni_agent.interaction.observation import EMPTY_OUTPUT
from uni_agent.model.scripted import ScriptedModel
from uni_agent.tools.execute_bash import ExecuteBash
from uni_agent.tools.finish import Finish
from uni_agent.tools.submit import Submit
from uni_agent.tools.toolset import Toolset
from uni_agent.types import ExitReason, InteractionResult, Message, StepStatus, Task, ToolCall, Turn

Respond = Callable[[str], DummyReply | str | None]


def bash(*commands: str) -> Message:
    return Message(
        "assistant",
        tool_calls=tuple(ToolCall(f"b{i}", "execute_bash", {"command": c}) for i, c in enumerate(commands)),
    )


def finish(answer: str = "42") -> Message:
    return Message("assistant", tool_calls=(ToolCall("f", "finish", {"answer": answer}),))


PROSE = Message("assistant", "I'll run:\n```bash\nls\n```")
BROKEN = Message("assistant", tool_calls=(ToolCall("x", "", error="the call is not valid JSON"),))


class Episode:
    """One episode, run to its end."""

    def __init__(self, turns: Sequence[Message | Exception], respond: Respond | None = None, **config: Any) -> None:
        self.turns: list[Turn] = []
        self.model = ScriptedModel.of(turns)
        self.respond = respond
        self.config = InteractionConfig(**config)
        self.interaction: AgentInteraction | None = None

    async def run(self) -> InteractionResult:
        deployment = dummy_sandbox(self.respond)
        await deployment.start()
        sandbox = Sandbox(deployment)
        try:
            env = AgentEnv(sandbox, Toolset([ExecuteBash(), Finish(), Submit()]), self.config)
            await env.setup(Task(id="t", prompt="go"))
            session = await self.model.open("t#0", [Message("user", "go")], [])
            self.interaction = AgentInteraction(session, env, self.config, on_turn=self.turns.append)
            return await self.interaction.run()
        finally:
            await sandbox.stop()


async def test_an_episode_runs_commands_observes_and_finishes_with_the_answer() -> None:
    episode = Episode([bash("ls"), finish("42")], lambda command: "a.txt" if command == "ls" else None)
    result = await episode.run()
    assert (result.exit_reason, result.answer) == (ExitReason.FINISHED, "42")
    assert [t.status for t in result.turns] == [StepStatus.COMPLETED, StepStatus.COMPLETED]
    assert result.turns[0].results[0].output == "a.txt"
    assert [m.role for m in result.messages] == ["user", "assistant", "tool", "assistant"]
    assert episode.turns == result.turns


async def test_parallel_calls_get_one_result_each_in_order_with_their_ids() -> None:
    result = await Episode([bash("a", "b", "c"), finish()], lambda c: c.upper() if len(c) == 1 else None).run()
    assert [(r.call_id, r.output) for r in result.turns[0].results] == [("b0", "A"), ("b1", "B"), ("b2", "C")]
    assert [m.tool_call_id for m in result.turns[0].observations] == ["b0", "b1", "b2"]


async def test_calls_after_the_one_that_finished_are_skipped_but_answered() -> None:
    both = Message("assistant", tool_calls=(*finish().tool_calls, *bash("late").tool_calls))
    commands: list[str] = []
    result = await Episode([both], commands.append).run()
    assert result.exit_reason is ExitReason.FINISHED
    assert [r.status for r in result.turns[0].results] == ["ok", "skipped"]
    assert "late" not in commands


async def test_submit_on_the_last_allowed_turn_is_finished() -> None:
    submit = Message("assistant", tool_calls=(ToolCall("s", "submit", {}),))
    result = await Episode([bash("ls"), submit], max_turns=2).run()
    assert result.exit_reason is ExitReason.FINISHED


async def test_the_last_turn_without_finish_is_max_step_limit() -> None:
    result = await Episode([bash("ls")], max_turns=3).run()
    assert result.exit_reason is ExitReason.MAX_STEP_LIMIT
    assert len(result.turns) == 3


@pytest.mark.parametrize("turn", [PROSE, BROKEN], ids=["prose", "broken-call"])
async def test_unusable_turns_are_answered_until_the_budget_is_used_up(turn: Message) -> None:
    """PARSE-09, PARSE-17."""
    result = await Episode([turn], format_error_budget=2).run()
    assert result.exit_reason is ExitReason.FORMAT_ERROR
    assert [t.status for t in result.turns] == [StepStatus.FORMAT_ERROR] * 3
    hint = result.turns[0].observations[0]
    assert hint.role == ("user" if turn is PROSE else "tool")
    assert "execute_bash" in hint.content if turn is PROSE else "not valid JSON" in hint.content


async def test_a_usable_turn_refills_the_format_budget() -> None:
    result = await Episode([PROSE, bash("ls"), PROSE, bash("ls"), finish()], format_error_budget=1).run()
    assert result.exit_reason is ExitReason.FINISHED


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (ToolCall("x", "bahs", {}), "bahs"),
        (ToolCall("x", "execute_bash", {}), "command"),
        (ToolCall("x", "execute_bash", {"command": "ls", "comand": "x"}), "comand"),
    ],
    ids=["unknown-tool", "missing-argument", "unknown-argument"],
)
async def test_calls_that_do_not_fit_get_exactly_one_readable_error(call: ToolCall, says: str) -> None:
    result = await Episode([Message("assistant", tool_calls=(call,)), finish()]).run()
    assert result.exit_reason is ExitReason.FINISHED
    (error,) = result.turns[0].results
    assert error.status == "format_error"
    assert says in error.output


async def test_one_bad_call_among_good_ones_runs_the_good_ones() -> None:
    mixed = Message("assistant", tool_calls=(*bash("ls").tool_calls, ToolCall("x", "nope", {})))
    result = await Episode([mixed, finish()]).run()
    assert result.turns[0].status is StepStatus.COMPLETED_WITH_TOOL_ERRORS
    assert [r.status for r in result.turns[0].results] == ["ok", "format_error"]


async def test_timeouts_keep_partial_output_and_the_budget_ends_the_episode() -> None:
    slow = DummyReply(output="before", fault="timeout")
    result = await Episode([bash("slow")], lambda c: slow if c == "slow" else None, action_timeout=0.01).run()
    assert result.exit_reason is ExitReason.TIMEOUT_BUDGET_EXHAUSTED
    assert len(result.turns) == 4  # the default budget of 3, and the one that broke it
    assert result.turns[0].status is StepStatus.TIMEOUT_ERROR
    assert "before" in result.turns[0].results[0].output
    assert "timed out" in result.turns[0].results[0].output


async def test_calls_behind_the_timeout_that_broke_the_budget_are_skipped() -> None:
    slow = DummyReply(fault="timeout")
    episode = Episode(
        [bash("slow", "ls")], lambda c: slow if c == "slow" else None, action_timeout=0.01, timeout_budget=0
    )
    result = await episode.run()
    assert [r.status for r in result.turns[0].results] == ["timeout", "skipped"]


async def test_a_restarted_shell_is_told_to_the_model_and_the_episode_goes_on() -> None:
    """SBX-08."""
    gone = DummyReply(exit_code=3, fault="shell_exits")
    result = await Episode([bash("exit 3"), finish()], lambda c: gone if c == "exit 3" else None).run()
    assert result.exit_reason is ExitReason.FINISHED
    assert "exit code 3" in result.turns[0].results[0].output
    assert "restarted" in result.turns[0].results[0].output


async def test_a_lost_sandbox_is_an_infrastructure_ending_and_every_call_keeps_a_result() -> None:
    """SBX-15: an exit code of a sandbox that was ended is no exit code."""
    ended = DummyReply(exit_code=137, sandbox_state="terminated")
    result = await Episode([bash("kill", "ls")], lambda c: ended if c == "kill" else None).run()
    assert result.exit_reason is ExitReason.SANDBOX_ERROR
    assert not result.exit_reason.trusted
    assert len(result.turns[0].results) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ModelError("down"), ExitReason.MODEL_ERROR),
        (ContextLengthError("full"), ExitReason.TOKEN_LIMIT),
        (TurnTooLongError("slow"), ExitReason.TIMEOUT_ERROR),
        (KeyError("bug"), ExitReason.UNKNOWN_ERROR),
    ],
)
async def test_errors_of_the_model_become_exit_reasons_with_their_cause(error: Exception, reason: ExitReason) -> None:
    result = await Episode([bash("ls"), error]).run()
    assert result.exit_reason is reason
    assert type(error).__name__ in result.error
    assert len(result.turns) == 1


async def test_chat_mode_takes_prose_as_the_answer() -> None:
    result = await Episode([bash("ls"), Message("assistant", "It is 42.")], chat_mode=True).run()
    assert (result.exit_reason, result.answer) == (ExitReason.ANSWERED, "It is 42.")


async def test_the_episode_deadline_is_a_time_limit_and_keeps_what_was_done() -> None:
    slow = DummyReply(seconds=30)
    episode = Episode([bash("ls"), bash("slow", "x")], lambda c: slow if c == "slow" else None, episode_timeout=0.3)
    result = await episode.run()
    assert result.exit_reason is ExitReason.TIME_LIMIT
    assert len(result.turns) == 2
    assert [r.status for r in result.turns[1].results] == ["skipped", "skipped"]


async def test_the_turn_deadline_is_a_timeout_error() -> None:
    slow = DummyReply(seconds=30)
    result = await Episode([bash("slow")], lambda c: slow if c == "slow" else None, turn_timeout=0.2).run()
    assert result.exit_reason is ExitReason.TIMEOUT_ERROR
    assert "turn_timeout" in result.error


async def test_cancellation_is_raised_and_recorded() -> None:
    slow = DummyReply(seconds=30)
    episode = Episode([bash("ls"), bash("slow")], lambda c: slow if c == "slow" else None)
    task = asyncio.create_task(episode.run())
    while len(episode.turns) < 1:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert episode.interaction is not None
    assert episode.interaction.result.exit_reason is ExitReason.CANCELLED
    assert len(episode.interaction.result.turns) == 2


async def test_shell_syntax_errors_have_a_status_and_a_budget() -> None:
    bad = DummyReply(output="bash: line 1: syntax error near unexpected token `('", exit_code=2)
    result = await Episode([bash("f((")], lambda c: bad if c == "f((" else None, syntax_error_budget=1).run()
    assert result.exit_reason is ExitReason.SYNTAX_ERROR
    assert [t.status for t in result.turns] == [StepStatus.SYNTAX_ERROR] * 2


async def test_empty_output_and_exit_codes_are_said() -> None:
    fails = DummyReply(exit_code=1)
    result = await Episode([bash("true", "false"), finish()], lambda c: fails if c == "false" else None).run()
    first, second = result.turns[0].results
    assert first.output == EMPTY_OUTPUT
    assert second.output == "[exit code: 1]"


async def test_a_marker_in_printed_text_ends_nothing() -> None:
    """SBX-11: submission is a tool call that succeeded, never something in the output."""
    result = await Episode(
        [bash("cat README"), finish()], lambda c: "<<<Finished>>> submit" if "cat" in c else None
    ).run()
    assert len(result.turns) == 2
