"""Agent programs as people run them: each session ends as one trajectory in which every sampled token trains."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

import pytest

from tests.gateway.clients.conftest import Serve
from tests.gateway.clients.harness import Clients, Session, call, run_client

# Some clients import for ten seconds, and for minutes on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = "policy"
TURNS = 9


def claude_env(session: Session) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": session.base_url,
        "ANTHROPIC_API_KEY": session.api_key,
        "ANTHROPIC_MODEL": MODEL,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": "200000",
        "IS_SANDBOX": "1",  # it refuses to skip permissions as root elsewhere
    }


def claude(clients: Clients, folder: Path, session: Session, task: str, **env: str) -> str:
    """Run Claude Code on `task`: its last answer."""
    argv = [clients.claude, "-p", task, "--dangerously-skip-permissions"]
    argv += ["--output-format", "json", "--session-id", str(uuid.uuid4())]
    return json.loads(run_client(argv, folder, claude_env(session) | env).stdout)["result"]


def test_ten_turns_of_claude_code_are_one_main_trajectory(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    commands = [f"echo line {i} >> made.txt" for i in range(TURNS)]
    gateway = serve([*(call("Bash", {"command": command}, "Next.") for command in commands), "All lines are written."])
    session = gateway.open()
    assert claude(clients, tmp_path, session, "Write nine lines to made.txt.") == "All lines are written."
    assert (tmp_path / "work" / "made.txt").read_text() == "".join(f"line {i}\n" for i in range(TURNS))
    gateway.finalize(session).check("main")


def test_claude_code_s_thinking_comes_back_and_stays(
    clients: Clients, serve: Serve, tmp_path: Path, thinker: Path
) -> None:
    gateway = serve(
        [
            "<think>\nFirst the file.\n</think>\n\n" + call("Bash", {"command": "echo one > made.txt"}, "I make it."),
            "<think>\nThen a look.\n</think>\n\n" + call("Bash", {"command": "cat made.txt"}),
            "<think>\nIt is there.\n</think>\n\nDone.",
        ],
        thinker,
    )
    session = gateway.open()
    assert claude(clients, tmp_path, session, "Make made.txt.") == "Done."
    gateway.finalize(session).check("main", drift=("new", "clean", "realigned"))


def test_claude_code_goes_on_after_the_engine_failed(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    """A turn that failed before its first token is asked for again; the record has it once."""
    gateway = serve(
        [
            call("Bash", {"command": "echo one >> made.txt"}, "I make it."),
            {"fault": "raise", "text": "lost"},
            call("Bash", {"command": "echo two >> made.txt"}),
            "Done.",
        ]
    )
    session = gateway.open()
    assert claude(clients, tmp_path, session, "Make made.txt.") == "Done."
    assert (tmp_path / "work" / "made.txt").read_text() == "one\ntwo\n"
    gateway.finalize(session).check("main")


def test_a_sub_agent_of_claude_code_is_a_trajectory_of_its_own(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    task = {"description": "make a file", "prompt": "Create sub.txt.", "subagent_type": "general-purpose"}
    gateway = serve(
        [
            call("Agent", task, "I delegate."),
            call("Bash", {"command": "echo sub > sub.txt"}),
            "The file is made.",
            "All done.",
        ]
    )
    session = gateway.open()
    # In the background the two would race for the turns of the script.
    env = {"CLAUDE_CODE_DISABLE_BACKGROUND_TASKS": "1"}
    assert claude(clients, tmp_path, session, "Have sub.txt made.", **env) == "All done."
    assert (tmp_path / "work" / "sub.txt").read_text() == "sub\n"
    gateway.finalize(session).check("sub_agent", "main", turns=[2, 2])


def test_a_compaction_of_claude_code_is_tagged_and_the_main_conversation_goes_on(
    clients: Clients, serve: Serve, tmp_path: Path
) -> None:
    """It compacts by the reported usage and keeps its last turn, by which the record says what continues what."""
    count = call("Bash", {"command": "seq 1 5500"}, "I count.")  # some 26,000 tokens
    gateway = serve(
        [
            call("Bash", {"command": "echo one > made.txt"}, "I make the file, then I count a while."),
            count,
            count,
            call("Bash", {"command": "seq 1 5500"}, "I count for the third time."),
            "<analysis>\nA file.\n</analysis>\n\n<summary>\nmade.txt was made.\n</summary>",
            "Done.",
        ]
    )
    session = gateway.open()
    env = {"CLAUDE_CODE_AUTO_COMPACT_WINDOW": "100000"}  # less is taken for this
    assert claude(clients, tmp_path, session, "Make made.txt.", **env) == "Done."
    export = gateway.finalize(session)
    export.check("main", "compaction", "main", turns=[4, 1, 1], drift=("new", "clean", "forked"))
    assert [one["continues"] for one in export.trajectories] == [None, None, export.trajectories[0]["id"]]


def codex_home(folder: Path, session: Session) -> dict[str, str]:
    home = folder / "codex"
    home.mkdir(parents=True)
    (home / "config.toml").write_text(
        f"""
model = "{MODEL}"
model_provider = "gateway"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.gateway]
name = "gateway"
base_url = "{session.base_url}/v1"
env_key = "GATEWAY_KEY"
wire_api = "responses"
""",
        encoding="utf-8",
    )
    return {"CODEX_HOME": str(home), "GATEWAY_KEY": session.api_key}


def test_a_session_of_codex_is_one_main_trajectory(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    gateway = serve(
        [
            call("exec_command", {"cmd": "echo one > made.txt"}, "I make the file."),
            call("exec_command", {"cmd": "echo two >> made.txt"}) + "\n" + call("exec_command", {"cmd": "echo three"}),
            call("exec_command", {"cmd": "cat made.txt"}, "I look at it."),
            "The file has two lines.",
        ]
    )
    session = gateway.open()
    assert codex(clients, tmp_path, session, "Write two lines to made.txt.") == "The file has two lines."
    assert (tmp_path / "work" / "made.txt").read_text() == "one\ntwo\n"
    gateway.finalize(session).check("main")


def codex(clients: Clients, folder: Path, session: Session, task: str) -> str:
    """Run Codex on `task`: its last answer."""
    argv = [clients.codex, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", task]
    return run_client(argv, folder, codex_home(folder, session)).stdout.strip()


def test_codex_s_reasoning_comes_back_and_stays(clients: Clients, serve: Serve, tmp_path: Path, thinker: Path) -> None:
    gateway = serve(
        [
            "<think>\nFirst the file.\n</think>\n\n"
            + call("exec_command", {"cmd": "echo one > made.txt"}, "I make it."),
            "<think>\nThen a look.\n</think>\n\n" + call("exec_command", {"cmd": "cat made.txt"}),
            "<think>\nIt is there.\n</think>\n\nDone.",
        ],
        thinker,
    )
    session = gateway.open()
    assert codex(clients, tmp_path, session, "Make made.txt.") == "Done."
    gateway.finalize(session).check("main", drift=("new", "clean", "realigned"))


@pytest.mark.parametrize("agent", ["claude", "codex"])
def test_an_agent_goes_on_after_a_stream_broke_off(clients: Clients, serve: Serve, tmp_path: Path, agent: str) -> None:
    """What was sampled before the break is dropped with a reason, and the answer that counts is there once."""
    tool, key = ("Bash", "command") if agent == "claude" else ("exec_command", "cmd")
    gateway = serve(
        [
            call(tool, {key: "echo one >> made.txt"}, "I make it."),
            {"fail_after": 4, "text": "I say something that never comes to its end."},
            call(tool, {key: "echo two >> made.txt"}, "I go on."),
            "Done.",
        ]
    )
    session = gateway.open()
    run = claude if agent == "claude" else codex
    assert run(clients, tmp_path, session, "Make made.txt.").endswith("Done.")
    assert (tmp_path / "work" / "made.txt").read_text() == "one\ntwo\n"
    gateway.finalize(session).check("main", dropped=4)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_session_of_mini_swe_agent_is_one_main_trajectory(
    clients: Clients, serve: Serve, tmp_path: Path, api: str
) -> None:
    gateway = serve(
        [
            call("bash", {"command": "echo one > made.txt"}, "I make the file."),
            call("bash", {"command": "cat made.txt"}, "I look at it."),
            call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat made.txt"}, "Done."),
        ]
    )
    session = gateway.open()
    env = {
        "OPENAI_API_BASE": f"{session.base_url}/v1",
        "OPENAI_API_KEY": session.api_key,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices
    }
    argv = [clients.python, "-m", "minisweagent.run.mini", "-m", f"openai/{MODEL}", "-t", "Make the file made.txt."]
    argv += ["-y", "-l", "0", "--exit-immediately", "-o", str(tmp_path / "trajectory.json"), "-c", "mini.yaml"]
    if api == "responses":
        argv += ["--model-class", "litellm_response"]
    run_client(argv, tmp_path, env)
    assert json.loads((tmp_path / "trajectory.json").read_text())["info"]["exit_status"] == "Submitted"
    assert (tmp_path / "work" / "made.txt").read_text() == "one\n"
    gateway.finalize(session).check("main")


def openai_options(*sessions: Session) -> dict[str, str]:
    return {"SESSIONS": json.dumps([{"base_url": f"{one.base_url}/v1", "api_key": one.api_key} for one in sessions])}


def test_sessions_of_openai_agents_are_one_main_trajectory_each(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    runs = ["chat whole", "chat stream", "responses whole", "responses stream"]
    gateway = serve([call("add", {"a": 2, "b": 3}, "I add."), call("add", {"a": 5, "b": 8.0}), "The sum is 13."])
    sessions = [gateway.open() for _ in runs]
    done = run_client(clients.driver("openai_agents", *runs), tmp_path, openai_options(*sessions))
    said = {"calls": [[2, 3], [5, 8]], "final": "The sum is 13."}
    assert [json.loads(line) for line in done.stdout.splitlines()] == [said] * len(runs)
    for session in sessions:
        gateway.finalize(session).check("main")


def test_a_sub_agent_of_openai_agents_is_a_trajectory_of_its_own(
    clients: Clients, serve: Serve, tmp_path: Path
) -> None:
    """PROTO-05 with a real client that marks nothing."""
    gateway = serve(
        [
            call("adder", {"input": "add 2 and 3"}, "I ask the adder."),
            call("add", {"a": 2, "b": 3}),
            "It is 5.",
            "The adder says 5.",
        ]
    )
    session = gateway.open()
    done = run_client(clients.driver("openai_agents", "responses nested"), tmp_path, openai_options(session))
    assert json.loads(done.stdout) == {"calls": [[2, 3]], "final": "The adder says 5."}
    gateway.finalize(session).check("sub_agent", "main", turns=[2, 2])


def test_a_session_is_found_by_its_key_under_the_fixed_address(clients: Clients, serve: Serve, tmp_path: Path) -> None:
    """The other identity: one base URL for all, and the key says which session it is."""
    gateway = serve([call("Bash", {"command": "echo one > made.txt"}), "Done."])
    session = gateway.open()
    argv = [clients.claude, "-p", "Make made.txt.", "--dangerously-skip-permissions", "--bare"]
    run_client(argv, tmp_path, claude_env(session) | {"ANTHROPIC_BASE_URL": gateway.url})
    assert (tmp_path / "work" / "made.txt").read_text() == "one\n"
    gateway.finalize(session).check("main")


def test_the_variable_points_at_a_whole_installation(clients: Clients) -> None:
    for program in (clients.claude, clients.codex, clients.python):
        assert os.access(program, os.X_OK), program
