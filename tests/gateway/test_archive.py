"""What gateways journaled, without a gateway: the same trajectories, whatever the journal went through."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.support import ADMIN, Gateway, Opened, call, check_account, serving
from tests.tokens.conftest import MakeRenderer
from uni_agent.engine.scripted import ScriptedBackend, ScriptedTurn
from uni_agent.errors import ConfigError, StoreError
from uni_agent.gateway.archive import is_journal, read_journals, read_sessions, rebuilt_sessions
from uni_agent.gateway.finished import FinishedSession
from uni_agent.gateway.journal import Journal, read_journal, repair_journal
from uni_agent.store import RunReader, RunStore, merge_into
from uni_agent.tokens.renderer import ChatTemplateRenderer
from uni_agent.types import RolloutKey, Task

SYSTEM = {"role": "system", "content": "You are main."}
USER = {"role": "user", "content": "build it"}
THOUGHT = "<think>\nhow?\n</think>\n\n"
SCRIPT = [
    ScriptedTurn(call("ls", before=THOUGHT), weight_version="1"),
    ScriptedTurn(call("pwd", before=THOUGHT) + call("ls"), weight_version="2"),
    ScriptedTurn("Again, shorter.", logprobs=[]),
    ScriptedTurn("half", finish_reason="length"),
    "A title",
]


def data(session: FinishedSession) -> str:
    """Byte for byte: the order of keys counts, too."""
    return json.dumps(session.to_json())


def by_id(path: Path) -> dict[str, str]:
    found = [(session.session_id, data(session)) for session in read_sessions(path)]
    assert len(dict(found)) == len(found), "each session once"
    return dict(found)


async def work(gateway: Gateway, name: str, **settings: Any) -> Opened:
    """A session with calls, a retry, tokens that are dropped, a cut turn, a title, and a reward."""
    session = await gateway.open(name, **settings)
    talk: list[Any] = [SYSTEM, USER]
    for fields in ({}, {"parallel_tool_calls": False}):
        answer = await gateway.chat(session, talk, **fields)
        reply = answer.json["choices"][0]["message"]
        talk += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": f"ok \ud800 {name}"}]
    for headers in ({}, {"x-stainless-retry-count": "1"}):
        assert (await gateway.chat(session, talk, headers=headers)).status == 200
    title = [{"role": "system", "content": "Write a short title"}, {"role": "user", "content": "build it"}]
    assert (await gateway.chat(session, title, tools=None, max_tokens=32)).status == 200
    info = {"reward": 0.5, "why": "tests \ud800"}
    rewarded = await gateway.request("POST", f"/sessions/{name}/reward_info", info, session.reward_key)
    assert rewarded.status == 200
    return session


async def as_it_stands(gateway: Gateway, name: str) -> str:
    """What the gateway holds of an active session, as the archive gives it."""
    answer = await gateway.request("GET", f"/sessions/{name}/trajectories", None, ADMIN)
    assert answer.json["phase"] == "active"
    assert {t.pop("materialization_reason") for t in json.loads(answer.body)["trajectories"]} == {"active"}
    text = json.dumps(answer.json)
    return text.replace('"materialization_reason": "active"', '"materialization_reason": "interrupted"')


async def played(renderer: ChatTemplateRenderer, journal: Path, names: list[str], **settings: Any) -> dict[str, str]:
    """The first session is finalized, the second aborted, the others left as they are: name → what was answered."""
    expected: dict[str, str] = {}
    backend = ScriptedBackend(SCRIPT, encode=renderer.tokenizer.encode)
    async with serving(renderer, backend=backend, journal=journal) as gateway:
        for name in names:
            await work(gateway, name, metadata={"name": name}, **settings)
        first, second, *others = names
        finished = await gateway.request("POST", f"/sessions/{first}/finalize", None, ADMIN)
        check_account(finished.json)
        expected[first] = json.dumps(finished.json)
        aborted = await gateway.request("POST", f"/sessions/{second}/abort", {"reason": "enough"}, ADMIN)
        assert aborted.json["reason"] == "enough"
        answer = await gateway.request("GET", f"/sessions/{second}/trajectories", None, ADMIN)
        expected[second] = json.dumps(answer.json)
        for name in others:
            expected[name] = await as_it_stands(gateway, name)
    return expected


# ---------------------------------------------------------------------------------------------- the same


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"thinking": "template"},
        {"abandoned": "drop"},
        {"matcher": "masked"},
        {"max_turns": 5},
    ],
    ids=lambda value: next(iter(value), "plain"),
)
async def test_sessions_are_as_the_gateway_answered(
    make: MakeRenderer, tmp_path: Path, settings: dict[str, Any]
) -> None:
    expected = await played(make("qwen3"), tmp_path / "gateway-0.journal", ["a", "b", "c"], **settings)
    assert by_id(tmp_path) == by_id(tmp_path / "gateway-0.journal") == expected
    first = json.loads(expected["a"])
    assert first["phase"] == "finalized" and first["metadata"] == {"name": "a"}
    assert {t["scenario"]: t["reward"] for t in first["trajectories"] if not t["abandoned"]} == {
        "main": 0.5,
        "title": None,
    }
    assert "parallel_tool_calls" in first["accounting"]["dropped"]
    assert first["accounting"]["abandoned"] == 1 and ("abandoned_retry" in first["accounting"]["dropped"]) == (
        settings.get("abandoned") == "drop"
    )


async def test_a_thought_that_the_template_drops_leaves_a_tree_that_renders_anew(
    make: MakeRenderer, tmp_path: Path
) -> None:
    renderer = make("qwen3")
    script = [f"{THOUGHT}answer {i}" for i in range(3)]
    async with serving(renderer, script, journal=tmp_path / "gateway-0.journal") as gateway:
        session = await gateway.open("a", thinking="template")
        talk: list[Any] = [USER]
        for i in range(3):
            reply = (await gateway.chat(session, talk)).json["choices"][0]["message"]
            talk += [reply, {"role": "user", "content": f"more {i}"}]
        done = await gateway.finalize(session)
    assert len(done["trajectories"]) > 1, "the policy has something to do here"
    assert by_id(tmp_path) == {"a": json.dumps(done)}


async def test_template_variables_need_no_renderer(make: MakeRenderer, tmp_path: Path) -> None:
    def renderer_for(variables: Mapping[str, Any]) -> ChatTemplateRenderer:
        return make("qwen3", **variables)

    path = tmp_path / "gateway-0.journal"
    async with serving(make("qwen3"), ["one", "two"], journal=path, renderer_for=renderer_for) as gateway:
        session = await gateway.open("a")
        for variables in ({}, {"enable_thinking": False}):
            assert (await gateway.chat(session, [USER], chat_template_kwargs=variables)).status == 200
        done = await gateway.finalize(session)
    assert len(done["trajectories"]) == 2
    assert by_id(path) == {"a": json.dumps(done)}


async def test_a_reward_that_comes_after_the_end_counts(make: MakeRenderer, tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.journal"
    async with serving(make("qwen3"), ["one"], journal=path) as gateway:
        session = await gateway.open("a")
        await gateway.chat(session, [USER])
        await gateway.finalize(session)
        await gateway.request("POST", "/sessions/a/reward_info", {"reward": 2}, session.reward_key)
    [found] = read_sessions(path)
    assert [t.reward for t in found.trajectories] == [2.0]


async def test_the_journals_of_several_processes_are_one_archive(make: MakeRenderer, tmp_path: Path) -> None:
    expected: dict[str, str] = {}
    order: list[str] = []
    for number in (10, 2, 0):
        names = [f"{number}-{i}" for i in range(3)]
        expected |= await played(make("qwen3"), tmp_path / f"gateway-{number}.journal", names)
        order = names + order
    (tmp_path / "layout.json").write_text("{}")
    (tmp_path / "gateway-0.journal.corrupt-1").write_text("what a repair set aside")
    assert by_id(tmp_path) == expected
    assert [session.session_id for session in read_sessions(tmp_path)] == order
    assert [session.session_id for session in read_sessions(tmp_path, only={"2-1", "10-0", "none"})] == ["2-1", "10-0"]


# ------------------------------------------------------------------------------- what a journal goes through


async def test_what_the_gateway_has_let_go_of_is_there_until_it_is_compacted(
    make: MakeRenderer, tmp_path: Path
) -> None:
    path = tmp_path / "gateway-0.journal"
    async with serving(make("qwen3"), ["one"], journal=path) as gateway:
        session, other = await gateway.open("a"), await gateway.open("b")
        for one in (session, other):
            await gateway.chat(one, [USER])
        done = await gateway.finalize(session)
        assert (await gateway.request("DELETE", "/sessions/a", None, ADMIN)).status < 300
        assert list(by_id(path)) == ["a", "b"] and by_id(path)["a"] == json.dumps(done)
    async with serving(make("qwen3"), journal=path):  # a restart compacts
        assert list(by_id(path)) == ["b"]


async def test_an_id_that_is_used_anew_is_another_session(make: MakeRenderer, tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.journal"
    expected = await played(make("qwen3"), path, ["a", "b"])
    entries = [entry for entry in read_journal(path) if entry.session_id == "a"]
    with Journal(path) as journal:
        journal.append("forgotten", "a", {})
        journal.append("drop", "a", {"reason": "disconnected", "count": 3})  # what was under way hears of it late
        for entry in entries:
            journal.append(entry.kind, "a", entry.data)
    assert [data(session) for session in read_sessions(path, only=["a"])] == [expected["a"]] * 2


async def test_sessions_can_be_read_while_the_journal_is_written_and_replaced(
    make: MakeRenderer, tmp_path: Path
) -> None:
    path = tmp_path / "gateway-0.journal"
    expected = await played(make("qwen3"), path, ["a", "b", "c"])
    with Journal(path) as journal:
        sessions = read_sessions(path)
        first = next(sessions)
        journal.append("phase", "c", {"phase": "aborted", "reason": "late", "ended": 1.0})
        journal.compact({"a"})
        assert [data(first), *map(data, sessions)] == list(expected.values()), "as it was when it was opened"
    assert list(by_id(path)) == ["a"]


async def test_a_torn_end_costs_what_was_never_whole(make: MakeRenderer, tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.journal"
    await played(make("qwen3"), path, ["a", "b"])
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    ends = [sum(map(len, lines[: i + 1])) for i in range(len(lines))]
    for entries, end in enumerate(ends):
        for torn in (0, 1, len(lines[entries + 1]) // 2, len(lines[entries + 1]) - 1) if end < len(whole) else (0,):
            path.write_bytes(whole[: end + torn])
            found = list(read_sessions(path))
            committed = [entry for entry in read_journal(path) if entry.kind == "turn"]
            assert sum(session.accounting["turns"] for session in found) == len(committed)
            assert path.read_bytes() == whole[: end + torn], "nothing is changed"
    path.write_bytes(whole[: ends[-1]] + bytes(100))  # what a power cut leaves
    assert len(list(read_sessions(path))) == 2


async def test_a_broken_journal_is_named_with_its_byte_and_its_cure_before_anything_is_read(
    make: MakeRenderer, tmp_path: Path
) -> None:
    path = tmp_path / "gateway-0.journal"
    expected = await played(make("qwen3"), path, ["a", "b", "c"])
    lines = path.read_bytes().splitlines(keepends=True)
    turns = [i for i, line in enumerate(lines) if b'"kind":"turn","session":"b"' in line]
    damaged = lines[turns[1]]
    at = sum(map(len, lines[: turns[1]]))
    lines[turns[1]] = damaged[:200] + b"#" + damaged[201:]
    path.write_bytes(b"".join(lines))
    with pytest.raises(StoreError, match=rf"gateway-0\.journal: broken at byte {at}: .*`repair_journal`"):
        next(read_sessions(tmp_path))
    for _, entries in read_journals(tmp_path):
        with pytest.raises(StoreError, match=f"broken at byte {at}"):
            list(entries)
    repair_journal(path)
    sessions = read_sessions(path)
    assert data(next(sessions)) == expected["a"]
    with pytest.raises(StoreError, match=r"gateway-0\.journal: session b: entry \d+ \(turn\) cannot be replayed"):
        next(sessions)
    assert [data(one) for one in read_sessions(path, only=["a", "c"])] == [expected["a"], expected["c"]]


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        ("turn", {}),
        ("turn", {"record": 3, "response_id": ""}),
        ("session", {"settings": {"max_turns": "many"}}),
        ("drop", {"reason": "x", "count": -1}),
        ("drop", {"reason": "x", "count": "many"}),
        ("phase", {"phase": "eaten", "reason": "", "ended": 1.0}),
    ],
)
async def test_an_entry_that_no_gateway_wrote_is_an_error_that_names_it(
    make: MakeRenderer, tmp_path: Path, kind: str, entry: dict[str, Any]
) -> None:
    path = tmp_path / "gateway-0.journal"
    await played(make("qwen3"), path, ["a", "b"])
    with Journal(path) as journal:
        opening = next(entry for entry in read_journal(path) if entry.session_id == "a")
        journal.append("session", "c", opening.data)
        number = journal.append(kind, "c", entry)
        journal.append("turn", "d", {})
    with pytest.raises(StoreError, match=rf"session c: entry {number} \({kind}\)"):
        list(read_sessions(path, only=["c"]))
    with pytest.raises(StoreError, match=r"session d: .*opened the session is missing"):
        list(read_sessions(path, only=["d"]))


def test_what_is_no_journal_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no gateway-\*\.journal"):
        read_sessions(tmp_path)
    with pytest.raises(StoreError, match="no such journal"):
        read_journals(tmp_path / "gateway-0.journal")
    other = tmp_path / "other"
    other.write_text('{"a": 1}\n')
    with pytest.raises(StoreError, match="broken at byte 0"):
        list(read_sessions(other))
    assert not is_journal(other) and not is_journal(tmp_path) and not is_journal(tmp_path / "nothing")
    Journal(tmp_path / "gateway-0.journal").close()
    (tmp_path / "gateway-1.journal").touch()
    assert list(read_sessions(tmp_path)) == [] and is_journal(tmp_path) and is_journal(tmp_path / "gateway-0.journal")
    assert [list(entries) for _, entries in read_journals(tmp_path)] == [[]], "an empty file has no source yet"


async def test_one_session_at_a_time_is_in_memory(make: MakeRenderer, tmp_path: Path) -> None:
    path = tmp_path / "gateway-0.journal"
    async with serving(make("qwen3"), ["one"], journal=path) as gateway:
        session = await gateway.open("a")
        await gateway.chat(session, [{"role": "user", "content": "long " * 30_000}])
    entries = [entry for entry in read_journal(path) if entry.session_id == "a"]
    with Journal(path) as journal:
        for entry in entries:  # first all are opened, then all have their turns
            for name in range(40):
                journal.append(entry.kind, f"s{name}", entry.data)

    def peak(only: list[str] | None) -> int:
        tracemalloc.start()
        count = sum(1 for _ in read_sessions(path, only=only))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert count == (41 if only is None else 1)
        return most

    peak(["s0"])
    alone = peak(["s0"])
    assert alone > 1_000_000 and peak(None) < 3 * alone


# ---------------------------------------------------------------------------------------------- into a run


def run_of(folder: Path, *samples: int) -> Path:
    with RunStore.create(folder, name="demo", config={"a": 1}, digest="d", clock=lambda: 10.0) as store:
        store.task(Task(id="t", prompt="go"))
        for sample in samples:
            store.rollout_started(RolloutKey("t", sample), 0)
    return folder


def contents(run: Path) -> Any:
    with RunReader(run) as reader:
        return reader.meta(), reader.events(), reader.rollouts(), reader.sessions()


async def test_merging_puts_the_sessions_into_the_run_and_again_changes_nothing(
    make: MakeRenderer, tmp_path: Path
) -> None:
    expected: dict[str, str] = {}
    for number in range(3):
        path = tmp_path / f"gateway-{number}.journal"
        expected |= await played(make("qwen3"), path, [f"{number}-{i}" for i in range(2)])
    written = sum(1 for file in tmp_path.glob("*.journal") for _ in read_journal(file))
    run = run_of(tmp_path / "run")
    before = contents(run)
    assert merge_into(run, read_journals(tmp_path)) == written > 30
    assert contents(run)[:3] == before[:3], "nothing else of the run changes"
    assert {file.name for file in run.iterdir()} == {"run.db", "run.lock"}, "one file, which can be copied"
    stored = (run / "run.db").read_bytes()
    assert merge_into(run / "run.db", read_journals(tmp_path)) == 0
    assert (run / "run.db").read_bytes()[100:] == stored[100:], "but for the counters of SQLite's header"
    with RunReader(run) as reader:
        names = [row.session_id for row in reader.sessions()]
        assert sorted(names) == sorted(expected)
        for name in names:
            assert [data(session) for session in rebuilt_sessions(reader.journal(name))] == [expected[name]]


async def test_merging_goes_on_with_what_a_living_gateway_has_written_since(make: MakeRenderer, tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", 0)
    settings = {"metadata": {"task_id": "t", "sample": 0}}
    async with serving(make("qwen3"), ["one", "two"], journal=tmp_path / "gateway-0.journal") as gateway:
        session = await gateway.open("a", **settings)
        await gateway.chat(session, [USER])
        assert merge_into(run, read_journals(tmp_path)) == 2
        done = await gateway.finalize(session)
        assert merge_into(run, read_journals(tmp_path)) == 1
    with RunReader(run) as reader:
        [row] = reader.sessions()
        [rollout] = reader.rollouts()
        assert row.rollout == rollout.id, "the session's metadata names its rollout"
        assert [data(one) for one in rebuilt_sessions(reader.journal("a"))] == [json.dumps(done)]


async def test_a_run_that_is_written_or_is_none_is_refused(make: MakeRenderer, tmp_path: Path) -> None:
    await played(make("qwen3"), tmp_path / "gateway-0.journal", ["a", "b"])
    with (
        RunStore.create(tmp_path / "run", name="demo", config={}, digest="d") as store,
        pytest.raises(ConfigError, match="is being written by process"),
    ):
        store.flush()
        merge_into(tmp_path / "run", read_journals(tmp_path))
    with RunReader(tmp_path / "run") as reader:
        assert reader.sessions() == []
    with pytest.raises(ConfigError, match="no run to merge into"):
        merge_into(tmp_path / "nowhere", read_journals(tmp_path))
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(StoreError, match="not a database"):
        merge_into(tmp_path / "gateway-0.journal", read_journals(tmp_path))
    assert len(list(read_sessions(tmp_path))) == 2, "the journal is as it was"
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConfigError, match="holds no run"):
        merge_into(tmp_path / "empty.db", read_journals(tmp_path))


async def test_a_run_that_was_killed_stays_one_that_was_killed(make: MakeRenderer, tmp_path: Path) -> None:
    await played(make("qwen3"), tmp_path / "gateway-0.journal", ["a", "b"])
    store = RunStore.create(tmp_path / "run", name="demo", config={}, digest="d")
    store.rollout_started(RolloutKey("t", 0), 0)
    store.flush()
    killed = tmp_path / "killed"
    shutil.copytree(tmp_path / "run", killed)  # with its log, as a kill leaves it
    store.close()
    assert (killed / "run.db-wal").stat().st_size
    before = contents(killed)
    assert merge_into(killed, read_journals(tmp_path)) > 0
    assert contents(killed)[:3] == before[:3] and before[0]["state"] == "running"
    with RunReader(killed) as reader:
        assert [row.session_id for row in reader.sessions()] == ["a", "b"]


async def test_what_stands_before_a_damage_is_merged_and_the_rest_after_the_repair(
    make: MakeRenderer, tmp_path: Path
) -> None:
    path = tmp_path / "gateway-0.journal"
    await played(make("qwen3"), path, ["a", "b"])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[5] = lines[5].replace(b'"kind"', b'"kinD"')
    path.write_bytes(b"".join(lines))
    run = run_of(tmp_path / "run")
    with pytest.raises(StoreError, match="broken at byte"):
        merge_into(run, read_journals(path))
    repair = repair_journal(path)
    assert repair.lost == (range(4, 5),)
    merge_into(run, read_journals(path))
    with RunReader(run) as reader:
        seqs = sorted(entry.seq for name in ("a", "b") for entry in reader.journal(name))
    assert seqs == [n for n in range(len(lines) - 1) if n != 4]
