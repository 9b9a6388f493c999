from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.helpers import CONFIG, chain, record, turn
from uni_agent.errors import ConfigError, DataError, StoreError
from uni_agent.store import RolloutRecord, RunReader, RunStore
from uni_agent.store.text import dumps, utf8
from uni_agent.types import (
    ExitReason,
    InteractionResult,
    Message,
    RewardResult,
    RolloutKey,
    StepStatus,
    Task,
    TokenAccount,
    Turn,
)

KEY = RolloutKey("task-1", 0)


def create(run_dir: Path, **fields: Any) -> RunStore:
    values: dict[str, Any] = {"name": "demo", "config": CONFIG, "digest": "d1", **fields}
    return RunStore.create(run_dir, **values)


def resume(run_dir: Path, **fields: Any) -> RunStore:
    values: dict[str, Any] = {"config": CONFIG, "digest": "d1", **fields}
    return RunStore.resume(run_dir, **values)


def finish(store: RunStore, key: RolloutKey = KEY, result: RolloutRecord | None = None, attempt: int = 0) -> str:
    rollout = store.rollout_started(key, attempt)
    store.turn(rollout, turn(0))
    store.chains(rollout, [chain()])
    store.finished(rollout, result or record())
    return rollout


def test_what_is_recorded_is_read_back(tmp_path: Path) -> None:
    with create(tmp_path, versions={"uni-agent": "1"}) as store:
        store.task(Task(id="task-1", prompt="do it", metadata={"gold": [1, {"a": None}]}, env={"API_KEY": "s3cret"}))
        store.meta("planned", 7)
        rollout = store.rollout_started(KEY, 2)
        store.state(rollout, "running")
        store.turn(rollout, turn(0))
        store.turn(rollout, turn(1, output="later"))
        cache = chain()
        store.chains(rollout, [cache, chain([4], [5], "r-2")])
        cache.append_context([77], turn=1)  # the store keeps what it was given
        store.finished(rollout, record(answer="42"))
    with RunReader(tmp_path) as reader:
        row = reader.rollout(rollout)
        assert reader.rollouts() == [row] == [reader.find("task-1", 0)]
        assert (row.task_id, row.sample, row.attempt, row.state, row.superseded) == ("task-1", 0, 2, "done", False)
        assert (row.exit_reason, row.exit_class, row.answer, row.turns) == ("finished", "finished", "42", 2)
        assert (row.score, row.resolved, row.trusted, row.reward_log) == (1.0, True, True, "passed")
        assert row.reward_breakdown == {"tests": 1.0}
        assert row.tokens == {"sampled": 10, "trained": 6, "masked": 1, "dropped": 3}
        assert row.dropped_reasons == {"cut": 3}
        assert row.time == {"start": 1.0, "model": 2.0, "tools": 3.0, "reward": 4.0, "teardown": 5.0}
        assert [m["content"] for m in row.opening] == ["be good", "do it"]
        first, second = reader.turns(rollout)
        assert (first.index, first.status, first.finish_reason, first.span) == (0, "completed", "tool_calls", (0, 1))
        assert first.message["tool_calls"][0]["arguments"] == {"command": "hello"}
        assert first.usage == {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 2}
        assert second.results[0]["output"] == second.observations[0]["content"] == "later"
        assert reader.turns(rollout, after=0) == [second]
        one, two = reader.chains(rollout)
        assert (one.prompt_ids, one.response_ids, one.response_mask) == ([1, 2, 3], [7, 8, 9], [1, 1, 0])
        assert one.response_logprobs == [-0.5, -0.5, 0.0]
        assert one.spans == [["sampled", 0, 0, 2], ["observation", 0, 2, 3]]
        assert one.weight_spans == [["step-1", 0, 2]]
        assert one.metrics == {"seconds": None}
        assert (two.request_id, two.prompt_ids) == ("r-2", [4])
        assert reader.task("task-1")["metadata"] == {"gold": [1, {"a": None}]}
        assert reader.task("task-1")["spec"]["env"] == {"API_KEY": "(redacted)"}
        assert reader.meta()["planned"] == 7
        assert reader.meta()["versions"] == {"uni-agent": "1"}
        assert [tool.name for tool in reader.tools()] == ["execute_bash"]


def test_events_have_rising_numbers_and_a_cursor(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        rollout = finish(store)
        store.event("sandbox", rollout, image="x", load=float("inf"))
    with RunReader(tmp_path) as reader:
        events = reader.events()
        assert [event.kind for event in events] == [
            "run_started",
            "rollout_started",
            "turn",
            "rollout_finished",
            "sandbox",
            "run_ended",
        ]
        assert [event.seq for event in events] == sorted({event.seq for event in events})
        assert events[4].data == {"image": "x", "load": None}
        assert (events[4].rollout, events[0].rollout) == (rollout, None)
        assert reader.events(after=events[3].seq, limit=1) == [events[4]]
        assert reader.events(kind="sandbox") == [events[4]]


def test_the_summary_adds_up(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        for sample, (reason, score) in enumerate(
            [
                (ExitReason.FINISHED, 1.0),
                (ExitReason.FINISHED, 0.0),
                (ExitReason.TOKEN_LIMIT, 0.0),
                (ExitReason.SANDBOX_ERROR, 0.0),
                (ExitReason.REWARD_ERROR, None),
            ]
        ):
            finish(store, RolloutKey("task-1", sample), record(reason, score))
        store.rollout_started(RolloutKey("task-2", 0), 0)
        store.flush()
        with RunReader(tmp_path) as reader:
            summary = reader.summary()
            assert (summary.state, summary.running, summary.unfinished) == ("running", 1, 0)
    with RunReader(tmp_path) as reader:
        summary = reader.summary()
        assert summary.state == "done"
        assert summary.rollouts == sum(summary.exit_reasons.values()) == 5
        assert summary.exit_reasons == {"finished": 2, "reward_error": 1, "sandbox_error": 1, "token_limit": 1}
        assert summary.reward_mean == summary.resolved_rate == pytest.approx(1 / 3)
        assert summary.trusted == 3
        assert summary.tokens == {"sampled": 50, "trained": 30, "masked": 5, "dropped": 15}
        assert summary.dropped_reasons == {"cut": 15}
        assert summary.time["model"] == 10.0
        assert summary.turns_mean == 2.0
        assert reader.exit_reasons()[0].reward_mean == 0.5
        assert reader.time_quantiles()["tools"] == {"p50": 3.0, "p95": 3.0}
        json.loads(dumps(summary.to_dict()))


def test_an_empty_run_has_a_summary(tmp_path: Path) -> None:
    create(tmp_path).close("failed")
    with RunReader(tmp_path) as reader:
        summary = reader.summary()
        assert (summary.state, summary.rollouts, summary.reward_mean, summary.turns_mean) == ("failed", 0, None, None)
        assert reader.time_quantiles()["start"] == {"p50": None, "p95": None}


def test_rollouts_are_paged_by_cursor_and_filtered(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        for index in range(12):
            reason = ExitReason.FORMAT_ERROR if index % 3 == 0 else ExitReason.FINISHED
            finish(store, RolloutKey(f"t{index}", 0), record(reason, float(index % 2)))
    with RunReader(tmp_path) as reader:
        everything = reader.rollouts()
        paged = reader.rollouts(limit=5)
        while page := reader.rollouts(after=paged[-1].id, limit=5):
            paged += page
        assert paged == everything == list(reader.each_rollout())
        assert reader.rollouts(before="", limit=20) == everything[::-1]
        assert reader.rollouts(before=everything[3].id, limit=2) == [everything[2], everything[1]]
        assert len(reader.rollouts(exit_reason="format_error")) == 4
        assert [row.task_id for row in reader.rollouts(task="t3")] == ["t3"]
        assert all(row.resolved for row in reader.rollouts(resolved=True))
        assert {row.task_id for row in reader.rollouts(failed=True)} == {f"t{i}" for i in (0, 2, 3, 4, 6, 8, 9, 10)}
        (light,) = reader.rollouts(task="t3", texts=False)
        assert (light.reward_log, light.opening, light.exit_reason) == ("", [], "format_error")
        with pytest.raises(StoreError, match="no rollout"):
            reader.rollout("999")
        with pytest.raises(StoreError, match="no rollout"):
            reader.rollout("'; drop table rollouts --")


text = st.text(st.characters(), max_size=40)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=text, output=text, name=text, error=text, task_id=text.filter(lambda t: t.strip() != ""))
def test_hostile_text_is_stored_and_read_back_as_strict_json(
    tmp_path_factory: pytest.TempPathFactory, content: str, output: str, name: str, error: str, task_id: str
) -> None:
    run_dir = tmp_path_factory.mktemp("run")
    key = RolloutKey(task_id, 0)
    with create(run_dir) as store:
        rollout = store.rollout_started(key, 0)
        store.turn(rollout, turn(0, content, output, name))
        store.event(name, rollout, text=content)
        store.finished(rollout, record(error=error, answer=content))
    with RunReader(run_dir) as reader:
        row, stored = reader.find(task_id, 0), reader.turns(rollout)[0]
        assert stored.message["content"] == utf8(content)
        assert stored.results[0]["output"] == utf8(output)
        assert row.error == utf8(error).replace("\0", "\\x00")
        for item in (row, stored, *reader.events()):
            json.dumps(item.to_dict(), ensure_ascii=False, allow_nan=False).encode("utf-8", "strict")
    again = resume(run_dir)
    assert again.completed() == {key}
    again.close()


def test_ids_that_read_alike_stay_different(tmp_path: Path) -> None:
    keys = [RolloutKey("a\0", 0), RolloutKey("a\\x00", 0)]
    with create(tmp_path) as store:
        for key in keys:
            finish(store, key)
    store = resume(tmp_path)
    assert store.completed() == set(keys)
    store.close()


def test_numbers_that_json_cannot_hold_do_not_reach_it(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        for sample, score in enumerate((float("nan"), float("inf"), 0.5)):
            reward = RewardResult(score, True, breakdown={"x": score})
            finish(store, RolloutKey("t", sample), record(reward=reward))
    with RunReader(tmp_path) as reader:
        assert reader.summary().reward_mean == 0.5
        assert [row.score for row in reader.rollouts()] == [None, None, 0.5]
        json.dumps([row.to_dict() for row in reader.rollouts()], allow_nan=False)


# ---------------------------------------------------------------------------------------------- once


def test_a_retry_takes_the_place_of_the_attempt_before(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        finish(store, KEY, record(ExitReason.SANDBOX_ERROR, None), attempt=0)
        assert store.completed() == set()
        finish(store, KEY, record(), attempt=1)
        assert store.completed() == {KEY}
    with RunReader(tmp_path) as reader:
        assert [(row.attempt, row.superseded) for row in reader.rollouts(superseded=True)] == [(0, True), (1, False)]
        assert reader.summary().exit_reasons == {"finished": 1}
        assert reader.summary().superseded == 1


def test_an_attempt_that_ends_late_does_not_count(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        old = store.rollout_started(KEY, 0)
        new = store.rollout_started(KEY, 1)
        store.finished(old, record())
        assert store.completed() == set()
        store.finished(new, record(ExitReason.SANDBOX_ERROR, None))
        assert store.completed() == set()
    with RunReader(tmp_path) as reader:
        assert reader.summary().exit_reasons == {"sandbox_error": 1}


def test_a_rollout_ends_once(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        rollout = finish(store)
        for again in (lambda: store.finished(rollout, record()), lambda: store.chains("77", [])):
            with pytest.raises(StoreError, match="never started, or has been finished"):
                again()
        store.state(rollout, "running")  # a late report changes nothing
    with RunReader(tmp_path) as reader:
        assert reader.rollout(rollout).state == "done"


def test_the_file_itself_refuses_two_rollouts_that_count(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        finish(store)
    with sqlite3.connect(tmp_path / "run.db") as db, pytest.raises(sqlite3.IntegrityError):
        db.execute("INSERT INTO rollouts (task_key, task_id, sample, attempt, state, started) SELECT"
                   " task_key, task_id, sample, 9, 'done', 0 FROM rollouts")  # fmt: skip


# ---------------------------------------------------------------------------------------------- resume


def test_resume_keeps_what_counts_and_redoes_the_rest(tmp_path: Path) -> None:
    endings = {
        "good": record(),
        "limit": record(ExitReason.TOKEN_LIMIT, 0.0),
        "ungraded": record(score=None),
        "broken": record(ExitReason.MODEL_ERROR, None),
        "stopped": record(ExitReason.CANCELLED, None),
        "grader": record(trusted=False),
    }
    store = create(tmp_path)
    for name, ending in endings.items():
        finish(store, RolloutKey(name, 0), ending)
    store.turn(store.rollout_started(RolloutKey("half", 0), 0), turn())
    store.close("interrupted")

    store = resume(tmp_path)
    assert store.completed() == {RolloutKey(name, 0) for name in ("good", "limit", "ungraded")}
    run_id = store.run_id
    finish(store, RolloutKey("half", 0))
    store.close()
    with RunReader(tmp_path) as reader:
        summary = reader.summary()
        assert summary.run_id == run_id
        assert summary.state == "done"
        assert summary.rollouts == 4
        assert summary.unfinished == 0
        assert len(reader.rollouts(superseded=True)) == 8


def test_resume_refuses_a_changed_configuration_and_names_the_keys(tmp_path: Path) -> None:
    create(tmp_path).close()
    changed = {"name": "demo", "model": {"type": "tokens", "temperature": 1.0, "top_p": 0.9}, "run": {"concurrency": 8}}
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path, config=changed, digest="d2", ignore={"run.concurrency"})
    message = str(caught.value)
    assert "model.temperature: was 0.7, is now 1.0" in message
    assert "model.top_p: was (absent), is now 0.9" in message
    assert "concurrency" not in message


def test_resume_allows_what_is_ignored_and_remembers_it(tmp_path: Path) -> None:
    create(tmp_path).close()
    changed = {**CONFIG, "run": {"concurrency": 8}, "running": 1}
    with pytest.raises(ConfigError, match="running: was"):
        resume(tmp_path, config=changed, digest="d2", ignore={"run"})
    del changed["running"]
    resume(tmp_path, config=changed, digest="d2", ignore={"run"}).close()
    with RunReader(tmp_path) as reader:
        assert reader.meta()["config"]["run"] == {"concurrency": 8}
        assert reader.meta()["digest"] == "d2"


def test_secrets_are_neither_stored_nor_compared(tmp_path: Path) -> None:
    secret = {
        "model": {"api_key": "sk-1", "api_key_env": "OPENAI_API_KEY", "url": "https://me:pw@host/v1"},
        "token": "t",
    }
    create(tmp_path, config=secret).close()
    assert b"sk-1" not in (tmp_path / "run.db").read_bytes()
    assert b"me:pw" not in (tmp_path / "run.db").read_bytes()
    rotated = {**secret, "model": {**secret["model"], "api_key": "sk-2"}}  # pyright: ignore
    resume(tmp_path, config=rotated, digest="d2").close()
    with RunReader(tmp_path) as reader:
        assert reader.meta()["config"]["model"]["api_key_env"] == "OPENAI_API_KEY"


def test_a_folder_is_not_reused_by_accident(tmp_path: Path) -> None:
    assert not RunStore.exists(tmp_path)
    with pytest.raises(ConfigError, match="no run to resume"):
        resume(tmp_path / "missing")
    assert not (tmp_path / "missing").exists()
    create(tmp_path).close()
    assert RunStore.exists(tmp_path)
    with pytest.raises(ConfigError, match="holds a run already"):
        create(tmp_path)


def test_a_file_left_by_a_start_that_died_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.db").touch()
    assert not RunStore.exists(tmp_path)
    create(tmp_path).close()
    assert RunStore.exists(tmp_path)


def test_a_changed_task_is_refused(tmp_path: Path) -> None:
    task = Task(id="t", prompt="one", base_dir="/here")
    with create(tmp_path) as store:
        store.task(task)
        store.task(task)
    store = resume(tmp_path)
    store.task(task.model_copy(update={"base_dir": "/moved"}))
    with pytest.raises(DataError, match="'t' is not the one"):
        store.task(Task(id="t", prompt="two"))
    store.close()
    with RunReader(tmp_path) as reader:
        assert reader.summary().tasks == 1


# ---------------------------------------------------------------------------------------------- misuse


def test_chains_whose_arrays_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    with create(tmp_path) as store:
        rollout = store.rollout_started(KEY, 0)
        for spoil in ("response_ids", "response_mask", "response_logprobs"):
            cache = chain()
            getattr(cache, spoil).append(1)
            with pytest.raises(StoreError, match="differ in length"):
                store.chains(rollout, [cache])
        empty = chain()
        empty.response_logprobs = []
        with pytest.raises(StoreError, match="differ in length"):
            store.chains(rollout, [empty])
        bad = chain([-1])
        with pytest.raises(StoreError, match="not a token id"):
            store.chains(rollout, [bad])
        store.finished(rollout, record())


def test_chains_without_logprobs_stay_without(tmp_path: Path) -> None:
    cache = chain()
    cache.response_logprobs = None
    with create(tmp_path) as store:
        rollout = store.rollout_started(KEY, 0)
        store.chains(rollout, [cache])
        store.finished(rollout, record())
    with RunReader(tmp_path) as reader:
        assert reader.chains(rollout)[0].response_logprobs is None


def test_leaving_the_block_with_an_error_marks_the_run(tmp_path: Path) -> None:
    for name, error, state in (("a", ValueError, "failed"), ("b", KeyboardInterrupt, "interrupted")):
        with pytest.raises(error), create(tmp_path / name):
            raise error
        with RunReader(tmp_path / name) as reader:
            assert reader.summary().state == state


def test_closing_twice_is_fine_and_writing_afterwards_is_not(tmp_path: Path) -> None:
    store = create(tmp_path)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.event("late")


def test_threads_may_record_at_once(tmp_path: Path) -> None:
    with create(tmp_path) as store:

        def many(number: int) -> None:
            for sample in range(20):
                finish(store, RolloutKey(f"t{number}", sample))

        threads = [threading.Thread(target=many, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with RunReader(tmp_path) as reader:
        assert reader.summary().rollouts == 160
        assert all(len(reader.chains(row.id)) == 1 for row in reader.rollouts(limit=200))


def test_the_opening_of_a_record_is_what_came_before_the_turns() -> None:
    opening = [Message("system", "s"), Message("user", "u"), Message("assistant", "an example"), Message("user", "now")]
    one = Turn(0, Message("assistant", "a"), (), (Message("tool", "r"),), StepStatus.COMPLETED)
    two = Turn(1, Message("assistant", "b"), (), (), StepStatus.COMPLETED)
    messages = [*opening, one.message, *one.observations, two.message]
    result = InteractionResult(messages, [one, two], ExitReason.FINISHED, answer="x")
    made = RolloutRecord.of(result, account=TokenAccount(3, 3))
    assert made.opening == tuple(opening)
    assert (made.turns, made.answer, made.account.sampled) == (2, "x", 3)
    assert RolloutRecord.of(InteractionResult(opening, [], ExitReason.SANDBOX_ERROR)).opening == tuple(opening)
