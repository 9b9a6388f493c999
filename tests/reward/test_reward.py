"""Reward specs: a verdict says something about the work, and a fault is never a 0 (RWD-02, RWD-10)."""

import asyncio
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from uni_agent.config.base import SourcedStr
from uni_agent.errors import ConfigError
from uni_agent.interaction.prepare import base_commit, prepare
from uni_agent.reward import AbstractRewardSpec, RewardConfig, RewardContext, grade
from uni_agent.types import ExitReason, InteractionResult, Repo, RewardResult, Task

ADAPTER: TypeAdapter[Any] = TypeAdapter(RewardConfig)
PLAIN = Task(id="t", prompt="p")


def spec(**raw: Any) -> AbstractRewardSpec:
    return ADAPTER.validate_python(raw).build()


def context(
    sandbox: Any, task: Task = PLAIN, answer: str = "", reason: ExitReason = ExitReason.FINISHED
) -> RewardContext:
    return RewardContext(task=task, result=InteractionResult([], [], reason, answer=answer), sandbox=sandbox)


async def graded(sandbox: Any, command: str, *, task: Task = PLAIN, answer: str = "", **raw: Any) -> RewardResult:
    return await grade(spec(type="command", command=command, **raw), context(sandbox, task, answer))


def is_no_verdict(result: RewardResult) -> bool:
    return result.score is None and result.resolved is None and not result.trusted and result.error != ""


@pytest.mark.parametrize(("command", "score"), [("true", 1.0), ("false", 0.0), ("exit 7", 0.0), ("false | cat", 0.0)])
async def test_exit_code_is_the_score(sandbox: Any, command: str, score: float) -> None:
    result = await graded(sandbox, command)
    assert (result.score, result.resolved, result.trusted, result.error) == (score, score == 1.0, True, "")


@pytest.mark.parametrize(
    "command",
    ["exit 126", "no-such-program-x", "./not-there.sh | tee log", "timeout 0.1 sleep 5 | tee log", "sleep 9 | tee log"],
)
async def test_rwd_02_a_grader_that_did_not_run_gives_no_verdict(sandbox: Any, command: str) -> None:
    assert is_no_verdict(await graded(sandbox, command, timeout=1.0))


async def test_rwd_02_a_lost_sandbox_gives_no_verdict(sandbox: Any) -> None:
    await sandbox.stop()
    result = await graded(sandbox, "true")
    assert is_no_verdict(result) and "SandboxLostError" in result.error
    assert is_no_verdict(await grade(spec(type="command", command="true"), context(None)))


async def test_rwd_02_work_without_a_change_is_a_true_zero(sandbox: Any) -> None:
    result = await graded(sandbox, "test -f made-by-the-agent")
    assert (result.score, result.trusted) == (0.0, True)


async def test_slow_work_can_be_made_wrong_work_and_codes_can_be_verdicts(sandbox: Any) -> None:
    assert (await graded(sandbox, "sleep 9", timeout=0.3, timeout_score=0.0)).score == 0.0
    assert (await graded(sandbox, "exit 127", error_exit_codes=[])).score == 0.0
    assert is_no_verdict(await graded(sandbox, "exit 3", error_exit_codes=[3]))


async def test_the_answer_comes_by_environment_and_is_never_shell_text(sandbox: Any) -> None:
    answer = "'; touch owned; echo $(touch owned) `touch owned` \"\n é \\ \x01"
    result = await graded(
        sandbox, 'printf %s "$UNI_AGENT_ANSWER" > got; cmp got "$UNI_AGENT_ANSWER_FILE"', answer=answer
    )
    assert result.score == 1.0 and (sandbox.folder / "got").read_text() == answer
    assert not (sandbox.folder / "owned").exists()


@pytest.mark.parametrize("answer", ["é" * 200_000, "a\0b", "\ud800"])
async def test_an_answer_that_no_variable_can_hold_is_whole_in_its_file(sandbox: Any, answer: str) -> None:
    command = 'cp "$UNI_AGENT_ANSWER_FILE" got; [ ${#UNI_AGENT_ANSWER} -gt 0 ]'
    assert (await graded(sandbox, command, answer=answer)).score == 1.0
    assert (sandbox.folder / "got").read_bytes() == answer.encode("utf-8", "backslashreplace")


async def test_nonce_is_new_each_time_and_environment_is_given(sandbox: Any) -> None:
    task = PLAIN.model_copy(update={"env": {"A": "task", "B": "task"}})
    command = 'echo "$UNI_AGENT_NONCE" >> nonces; [ "$A$B" = tasknew ] && [ ${#UNI_AGENT_NONCE} = 32 ]'
    for _ in range(2):
        assert (await graded(sandbox, command, task=task, env={"B": "new"})).score == 1.0
    assert len(set((sandbox.folder / "nonces").read_text().split())) == 2


async def test_regex_takes_the_last_match_and_scales(sandbox: Any) -> None:
    score = {"regex": r"^score: ([-\d.]+)$", "scale": 0.01}
    result = await graded(sandbox, "echo 'score: 99'; echo 'score: 40'", score=score)
    assert result.score == pytest.approx(0.4) and result.resolved is False
    assert (await graded(sandbox, "echo 'score: 50'", score=score, resolved_at=0.5)).resolved is True
    assert (await graded(sandbox, "echo 'score: -5'; exit 1", score=score)).score == pytest.approx(-0.05)


@pytest.mark.parametrize("output", ["", "score: many", "score: nan", "score: inf"])
async def test_regex_without_a_number_gives_no_verdict(sandbox: Any, output: str) -> None:
    assert is_no_verdict(await graded(sandbox, f"echo '{output}'", score={"regex": r"score: (\w+)"}))


async def test_a_forged_line_without_the_nonce_does_not_count(sandbox: Any) -> None:
    score = {"regex": r"^{nonce} (\d+)$"}
    forged = "echo 0123456789abcdef0123456789abcdef 1"
    assert is_no_verdict(await graded(sandbox, forged, score=score))
    assert (await graded(sandbox, f'{forged}; echo "$UNI_AGENT_NONCE 0"; {forged}', score=score)).score == 0.0


async def test_json_file_is_read_and_a_stale_one_never_counts(sandbox: Any) -> None:
    score = {"json_file": "out/result.json", "key": "a.score"}
    (sandbox.folder / "sub/out").mkdir(parents=True)
    stale = sandbox.folder / "sub/out/result.json"
    stale.write_text('{"a": {"score": 1}}')
    assert is_no_verdict(await graded(sandbox, "true", score=score, cwd="sub"))
    stale.mkdir()
    result = await graded(sandbox, """echo '{"a": {"score": 0.25}}' > out/result.json""", score=score, cwd="sub")
    assert (result.score, result.resolved) == (0.25, False)
    assert (await graded(sandbox, "echo 1 > r", score={"json_file": "r"})).score == 1.0


@pytest.mark.parametrize("text", ["", "{", "{}", '{"score": "1"}', '{"score": true}', '{"score": NaN}', "[1]", "null"])
async def test_json_without_a_number_gives_no_verdict(sandbox: Any, text: str) -> None:
    assert is_no_verdict(await graded(sandbox, f"printf '%s' '{text}' > r.json", score={"json_file": "r.json"}))


async def test_hidden_files_arrive_at_grading_and_replace_what_is_there(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "local.sh").write_text("exit 0\n")
    task = PLAIN.model_copy(update={"base_dir": str(tmp_path)})
    (sandbox.folder / "elsewhere").write_text("mine")
    (sandbox.folder / "check.sh").symlink_to("elsewhere")
    (sandbox.folder / "note").mkdir()
    files = {"check.sh": {"path": "local.sh", "mode": 0o755}, "note": "text", "b": {"base64": "AP8="}}
    result = await graded(sandbox, './check.sh && [ "$(cat note)" = text ] && [ -f b ]', task=task, files=files)
    assert result.score == 1.0, result
    assert (sandbox.folder / "elsewhere").read_text() == "mine"
    from_yaml = {"check.sh": {"path": SourcedStr.at("local.sh", tmp_path)}}
    assert (await graded(sandbox, "bash check.sh", files=from_yaml)).score == 1.0
    assert is_no_verdict(await graded(sandbox, "true", files={"x": {"path": str(tmp_path / "gone")}}))


async def test_rwd_10_weakened_tests_and_planted_files_are_put_back(sandbox: Any, tmp_path: Path) -> None:
    (tmp_path / "repo/tests").mkdir(parents=True)
    (tmp_path / "repo/tests/check.sh").write_text("exit 1\n")
    task = Task(id="t", prompt="p", repo=Repo(path="repo"), base_dir=str(tmp_path), files={"tests/data": "given"})
    await prepare(sandbox, task)
    await base_commit(sandbox)
    cheat = """
    echo 'exit 0' > tests/check.sh; echo x > conftest.py; mkdir tests/more; echo y > tests/more/z; echo q > tests/data
    git add -A; git commit -qm x; git replace -f HEAD~1 HEAD"""
    assert (await sandbox.execute(cheat, timeout=30)).exit_code == 0
    assert (await graded(sandbox, "bash tests/check.sh", task=task)).score == 1.0
    result = await graded(sandbox, "bash tests/check.sh", task=task, restore=["tests", "conftest.py"])
    assert result.score == 0.0
    assert not (sandbox.folder / "conftest.py").exists() and not (sandbox.folder / "tests/more").exists()
    assert (sandbox.folder / "tests/data").read_text() == "given"


async def test_rwd_10_restore_of_a_git_source_and_of_an_image(sandbox: Any, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        return subprocess.run(command, cwd=tmp_path / "up", capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "up").mkdir()
    (tmp_path / "up/check.sh").write_text("exit 1\n")
    (tmp_path / "up/.gitattributes").write_text("check.sh export-ignore filter=x\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "up/check.sh").write_text("exit 0\n")
    git("commit", "-qam", "two")
    task = Task(id="t", prompt="p", repo=Repo(path=str(tmp_path / "up"), commit=commit))
    await prepare(sandbox, task)
    cheat = "echo 'exit 0' > check.sh; git config filter.x.smudge 'echo exit 0 #'; git commit -qam x; touch new.py"
    image = Task(id="t", prompt="p", metadata={"base_commit": commit})
    for each in (task, image):
        assert (await sandbox.execute(cheat, timeout=30)).exit_code in (0, 1)
        assert (await graded(sandbox, "bash check.sh", task=each)).score == 1.0
        assert (await graded(sandbox, "bash check.sh", task=each, restore=["check.sh", "new.py"])).score == 0.0
        assert not (sandbox.folder / "new.py").exists()
    assert is_no_verdict(await graded(sandbox, "true", task=PLAIN, restore=["check.sh"]))


@pytest.mark.parametrize("path", ["/etc", "..", "a/../..", "", ".", ".git", ".git/config"])
def test_restore_stays_inside(path: str) -> None:
    with pytest.raises(ValidationError, match="inside the working directory"):
        spec(type="command", command="true", restore=[path])


async def test_the_log_keeps_head_and_tail(sandbox: Any) -> None:
    result = await graded(sandbox, "echo first; seq 100000; echo last >&2", log_bytes=2048)
    assert result.log.startswith("first\n1\n") and result.log.endswith("last\n")
    assert len(result.log) < 2200 and "bytes left out" in result.log
    assert (await graded(sandbox, "echo é; exit 1")).log == "é\n"


async def test_nothing_of_grading_stays_behind(sandbox: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    await graded(sandbox, "true", answer="x")
    await graded(sandbox, "sleep 9", timeout=0.2)
    assert list((tmp_path / "tmp").iterdir()) == []


async def test_dummy_scores_by_ending_or_as_told() -> None:
    free = spec(type="dummy")
    assert (await grade(free, context(None))).score == 1.0
    assert (await grade(free, context(None, reason=ExitReason.ANSWERED))).resolved is True
    assert (await grade(free, context(None, reason=ExitReason.TOKEN_LIMIT))).score == 0.0
    assert (await grade(spec(type="dummy", score=0.3), context(None))) == RewardResult(0.3, False)


class Own(AbstractRewardSpec):
    """A plug-in that does what it is told."""

    needs_sandbox = False

    def __init__(self, act: Any = None, timeout: float = 5.0) -> None:
        self.act, self.timeout = act, timeout

    async def compute_reward(self, context: RewardContext) -> RewardResult:
        if isinstance(self.act, BaseException):
            raise self.act
        if self.act == "sleep":
            await asyncio.sleep(60)
        return self.act  # pyright: ignore[reportReturnType] - wrong results are tried too


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (KeyError("id"), "RewardError: Own: KeyError: 'id'"),
        (TimeoutError("inner"), "RewardError: Own: TimeoutError: inner"),
        (None, "gave NoneType, not a RewardResult"),
        (0.5, "gave float"),
        (RewardResult(float("nan"), True), "the score nan"),
        (RewardResult(None, None), "gave no score"),
    ],
)
async def test_rwd_02_any_fault_of_a_spec_is_no_verdict_with_its_reason(act: Any, message: str) -> None:
    result = await grade(Own(act), context(None))
    assert is_no_verdict(result) and message in result.error


async def test_a_spec_that_hangs_ends_at_its_deadline_and_cancellation_passes() -> None:
    result = await grade(Own("sleep", timeout=0.05), context(None))
    assert is_no_verdict(result) and result.error == "Own: ran past 0.05 s"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await grade(Own("sleep"), context(None))


async def test_a_plugin_is_loaded_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("own_rewards")
    module.Own = Own  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_rewards", module)
    built = spec(type="own_rewards:Own", options={"act": RewardResult(0.5, False)})
    assert (await grade(built, context(None))).score == 0.5
    with pytest.raises(ConfigError, match="not a subclass"):
        spec(type="pathlib:Path")


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "command"},
        {"type": "command", "command": "true", "socre": "exit_code"},
        {"type": "command", "command": "true", "score": {"regex": "("}},
        {"type": "command", "command": "true", "score": "exit"},
        {"type": "command", "command": "true", "files": {"a": {"text": "1", "path": "b"}}},
        {"type": "comand", "command": "true"},
    ],
)
def test_a_faulty_block_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        spec(**raw)
