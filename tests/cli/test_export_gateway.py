"""`uni-agent export --journal`: what a gateway that was killed had journaled, in every format, and into a run."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.process import gateway_process
from tests.support.cli import uni_agent
from tests.tokens.small import TEMPLATES, train, write_folder
from uni_agent.gateway.archive import read_sessions
from uni_agent.store import RunReader, RunStore
from uni_agent.trajectory import Trajectory
from uni_agent.trajectory.rows import SCHEMA, token_row
from uni_agent.trajectory.sft import sft_example

TITLE = [{"role": "system", "content": "Write a short title"}, {"role": "user", "content": "build it"}]
NAMES = [f"session-{i}" for i in range(6)]
FINALIZED = NAMES[:4]


@dataclass(frozen=True)
class Killed:
    """The folder of the journals of three processes, and what `finalize` answered."""

    folder: Path
    answers: dict[str, Any]

    def trajectories(self, *names: str) -> list[Any]:
        return [trajectory for name in names for trajectory in self.answers[name]["trajectories"]]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Four sessions are finalized, two are active when the gateway is killed; one of these never had a turn."""
    folder = tmp_path_factory.mktemp("gateway")
    model = write_folder(folder / "model", train())
    (model / "chat_template.jinja").write_text((TEMPLATES / "qwen2_5.jinja").read_text())
    script = folder / "script.jsonl"
    script.write_text("".join(json.dumps({"text": f"answer {i} ☃"}) + "\n" for i in range(5)))
    arguments = ["--engine", "scripted", "--script", script, "--tokenizer", model]
    answers: dict[str, Any] = {}
    with gateway_process(*arguments, "--processes", "3", "--journal", folder / "journals") as gateway:
        for name in NAMES:
            metadata = {"task_id": "t", "sample": NAMES.index(name)}
            session = gateway.admin("POST", "/sessions", {"session_id": name, "metadata": metadata})
            talk: list[Any] = [{"role": "user", "content": f"build it, {name} \ud800"}]
            for _ in range(0 if name == NAMES[5] else 2):
                headers = {"Authorization": f"Bearer {session['api_key']}"}
                body = json.dumps({"messages": talk})  # httpx writes no lone surrogates
                answer = gateway.http.post(f"{gateway.url}/v1/chat/completions", content=body, headers=headers)
                assert answer.status_code == 200, answer.text
                talk += [answer.json()["choices"][0]["message"], {"role": "user", "content": "more"}]
            if name in FINALIZED:
                assert gateway.chat(session["api_key"], TITLE, max_tokens=32).status_code == 200
                reward = {"reward": 0.5}
                headers = {"Authorization": f"Bearer {session['reward_key']}"}
                gateway.http.post(f"{session['base_url']}/reward_info", json=reward, headers=headers).raise_for_status()
                answers[name] = gateway.admin("POST", f"/sessions/{name}/finalize")
        gateway.kill()
    assert len(list((folder / "journals").glob("gateway-*.journal"))) == 3
    assert all(len(answers[name]["trajectories"]) == 2 for name in FINALIZED)
    return Killed(folder / "journals", answers)


def lines(path: Path) -> list[Any]:
    """The strict JSON of each line."""
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_bytes().splitlines()]


def sorted_by_id(records: list[Any], key: str = "id") -> list[Any]:
    """The order of sessions depends on their processes, that of their trajectories does not."""
    return sorted(records, key=lambda record: (record["session_id"], record.get(key, "")))


async def test_jsonl_has_the_trajectories_that_finalize_answered(killed: Killed, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    done = await uni_agent("export", "--journal", killed.folder, "--output", target)
    assert done.code == 0, done.err
    found = lines(target)
    assert done.err.strip() == f"{target}: {len(found)} records" and done.out == ""
    finalized = [t for t in found if t["session_id"] in FINALIZED]
    assert sorted_by_id(finalized) == sorted_by_id(killed.trajectories(*FINALIZED))
    [active] = [t for t in found if t["session_id"] not in FINALIZED]
    assert active["session_id"] == NAMES[4] and active["materialization_reason"] == "interrupted"
    assert active["num_turns"] == 2 and sum(active["response_mask"]) > 0
    assert all(Trajectory.from_json(t).to_json() == t for t in found)


async def test_sessions_are_whole_answers_of_finalize(killed: Killed) -> None:
    done = await uni_agent("export", "--journal", killed.folder, "--format", "sessions")
    found = {session["session_id"]: session for session in map(json.loads, done.out.splitlines())}
    assert found.keys() == set(NAMES)
    assert {name: found[name] for name in FINALIZED} == killed.answers
    assert (found[NAMES[5]]["phase"], found[NAMES[5]]["trajectories"]) == ("active", [])


async def test_rows_and_parquet_and_sft_are_those_of_the_converters(killed: Killed, tmp_path: Path) -> None:
    pq: Any = importlib.import_module("pyarrow.parquet")
    files: dict[str, Path] = {}
    for form in ("rows", "parquet", "sft"):
        files[form] = tmp_path / form
        done = await uni_agent("export", "--journal", killed.folder, "--format", form, "--output", files[form])
        assert done.code == 0, done.err
    trajectories = [t for session in read_sessions(killed.folder) for t in session.trajectories]
    assert lines(files["rows"]) == [token_row(t) for t in trajectories]
    assert lines(files["sft"]) == [sft_example(t) for t in trajectories]
    table = pq.read_table(files["parquet"])
    assert table.column_names == list(SCHEMA) and table.to_pylist() == lines(files["rows"])
    assert {row["reward"] for row in lines(files["rows"]) if row["scenario"] == "main"} == {0.5, None}


async def test_sessions_and_scenarios_can_be_chosen(killed: Killed, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    chosen = ["--session", NAMES[1], "--session", NAMES[3]]
    done = await uni_agent("export", "--journal", killed.folder, *chosen, "--scenario", "main", "-o", target)
    assert done.code == 0, done.err
    wanted = [t for t in killed.trajectories(NAMES[1], NAMES[3]) if t["scenario"] == "main"]
    assert len(wanted) == 2 and sorted_by_id(lines(target)) == sorted_by_id(wanted)
    done = await uni_agent("export", "--journal", killed.folder, "--scenario", "title", "--scenario", "search")
    assert {json.loads(line)["scenario"] for line in done.out.splitlines()} == {"title"}


async def test_one_file_of_the_folder_is_a_journal_too(killed: Killed) -> None:
    count = 0
    for number in range(3):
        done = await uni_agent("export", "--journal", killed.folder / f"gateway-{number}.journal")
        assert done.code == 0
        count += len(done.out.splitlines())
    assert count == 9


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--journal", "{journals}", "latest"], "takes the place of RUN"),
        (["--journal", "{journals}", "--merged"], "takes the place of RUN"),
        (["--journal", "{journals}", "--resolved"], "--resolved is for rollouts"),
        (["--journal", "{journals}", "--scenario", "mian"], "did you mean 'main'?"),
        (["--journal", "{journals}", "--scenario", "main", "--format", "sessions"], "leave out --scenario"),
        (["--journal", "{journals}", "--session", "nobody", "-o", "{out}"], "no session 'nobody' is there"),
        (["--journal", "{journals}", "-o", "{journals}/gateway-0.journal"], "is a gateway's journal and would be"),
        (["--journal", "{journals}", "-o", "{run}/run.db"], "is a run's store and would be replaced"),
        (["--journal", "{out}"], "no such journal"),
        (["--journal", "{run}"], "holds no gateway-*.journal"),
        (["--journal", "{run}/run.db"], "run.db: "),
        (["--journal", "{journals}", "--into", "{out}"], "no such run"),
        (["--journal", "{journals}", "--into", "{run}", "-o", "{out}"], "and nothing else"),
        (["{run}", "--into", "{run}"], "give it with --journal"),
        (["{run}", "--scenario", "main"], "add --journal PATH, or --merged"),
        (["{run}", "--format", "rows"], "add --journal PATH, or --merged"),
        (["{run}", "-o", "{run}/run.db"], "is a run's store and would be replaced"),
        (["{journals}"], "name it with --journal"),
        (["{journals}/gateway-0.journal"], "name it with --journal"),
    ],
)
def test_what_cannot_be_done_is_said_and_exits_with_2(
    killed: Killed, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from uni_agent.cli.main import main

    RunStore.create(tmp_path / "run", name="demo", config={}, digest="d").close()
    shutil.copytree(killed.folder, tmp_path / "journals")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    names = {name: str(tmp_path / name) for name in ("journals", "run", "out")}
    assert main(["export", *(option.format_map(names) for option in options)]) == 2
    told = capsys.readouterr().err
    assert words in told and told.startswith("uni-agent export: ") and told.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


async def test_a_broken_journal_leaves_no_file_and_names_its_cure(killed: Killed, tmp_path: Path) -> None:
    folder, target = tmp_path / "journals", tmp_path / "out.jsonl"
    shutil.copytree(killed.folder, folder)
    path = folder / "gateway-1.journal"
    path.write_bytes(path.read_bytes().replace(b'"kind":"turn"', b'"kind":"tern"', 1))
    done = await uni_agent("export", "--journal", folder, "--output", target)
    assert done.code == 2 and "gateway-1.journal: broken at byte" in done.err and "repair_journal" in done.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["journals"]


async def test_journals_are_merged_into_a_run_once_and_exported_from_it(killed: Killed, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "demo"
    RunStore.create(run, name="demo", config={}, digest="d").close()
    env = {"UNI_AGENT_RUNS_DIR": str(run.parent)}
    told: list[str] = []
    for _ in range(2):
        done = await uni_agent("export", "--journal", killed.folder, "--into", "demo", env=env)
        assert done.code == 0, done.err
        told.append(done.err.strip())
    assert told[0].startswith(f"{run / 'run.db'}: ") and told[0].endswith(" new entries of 3 journals")
    assert told[1] == f"{run / 'run.db'}: 0 new entries of 3 journals"
    with RunReader(run) as reader:
        assert sorted(row.session_id for row in reader.sessions()) == NAMES
    merged = await uni_agent("export", "latest", "--merged", "--format", "sessions", env=env)
    direct = await uni_agent("export", "--journal", killed.folder, "--format", "sessions")
    assert sorted(merged.out.splitlines()) == sorted(direct.out.splitlines()), "byte for byte"
    order = [json.loads(line)["session_id"] for line in merged.out.splitlines()]
    assert order == NAMES, "as they were opened, whichever process had them"
    one = await uni_agent("export", "demo", "--merged", "--session", NAMES[0], "--scenario", "title", env=env)
    assert [json.loads(line) for line in one.out.splitlines()] == [
        t for t in killed.trajectories(NAMES[0]) if t["scenario"] == "title"
    ]
    with RunStore.resume(run, config={}, digest="d"):
        done = await uni_agent("export", "--journal", killed.folder, "--into", "demo", env=env)
    assert done.code == 2 and "is being written by process" in done.err
