"""A gateway in a process of its own, a client in another, and what the record must say about the two.

Everything goes over HTTP and the command line: a gateway of another make, with the same commands, would do as well.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self, cast

from tokenizers import Tokenizer

TOKEN = "admin-token-of-the-test"
POLICY = Path(__file__).parents[3] / "uni_agent" / "assets" / "quickstart_policy"
"""A tokenizer and a chat template with tool calls in `<tool_call>` tags."""
_LOGPROB = -0.5
"""What the scripted engine says of each token."""


@dataclass(frozen=True, slots=True)
class Session:
    """What `POST /sessions` gives."""

    id: str
    base_url: str
    api_key: str
    reward_key: str


class Gateway:
    """`uni-agent gateway` with a scripted engine, on a free port. Use as a context manager."""

    def __init__(self, script: Sequence[str | Mapping[str, Any]], folder: Path, tokenizer: Path = POLICY) -> None:
        self.script = [{"text": turn} if isinstance(turn, str) else dict(turn) for turn in script]
        self._folder = folder
        self._tokenizer = tokenizer
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / "script.jsonl"
        path.write_text("".join(json.dumps(turn) + "\n" for turn in self.script), encoding="utf-8")
        argv = [sys.executable, "-m", "uni_agent", "gateway", "--host", "127.0.0.1", "--port", "0"]
        argv += [
            "--admin-token",
            TOKEN,
            "--engine",
            "scripted",
            "--script",
            str(path),
            "--tokenizer",
            str(self._tokenizer),
        ]
        with (self._folder / "gateway.log").open("wb") as log:
            self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self._folder)
        try:
            self.url = self._listening(cast("IO[str]", self._process.stdout))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def log(self) -> str:
        """What the gateway wrote to stderr."""
        return (self._folder / "gateway.log").read_text(encoding="utf-8", errors="replace")

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """One call of the admin API: the decoded answer."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        data = None
        if body is not None:
            request.add_header("Content-Type", "application/json")
            data = json.dumps(body).encode()
        with urllib.request.urlopen(request, data, timeout=60) as answer:
            return json.loads(answer.read())

    def open(self) -> Session:
        """A new session."""
        made = self.admin("POST", "/sessions", {})
        return Session(made["session_id"], made["base_url"], made["api_key"], made["reward_key"])

    def finalize(self, session: Session) -> Export:
        """End the session: its record."""
        data = self.admin("POST", f"/sessions/{session.id}/finalize", {})
        said = [turn["text"] for turn in self.script if not {"fault", "fail_after"} & set(turn)]
        return Export(data, said, self._tokenizer, self.log())

    def _listening(self, stdout: IO[str]) -> str:
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=60)
        except queue.Empty:
            raise AssertionError(f"the gateway did not say where it listens:\n{self.log()}") from None
        assert line.startswith("listening on http://"), f"{line!r}\n{self.log()}"
        return line.removeprefix("listening on ").strip()


class Export:
    """The record of a finalized session, checked against the script that was played."""

    def __init__(self, data: Mapping[str, Any], script: Sequence[str], tokenizer: Path, log: str) -> None:
        self.data = data
        self.trajectories = cast("list[dict[str, Any]]", data["trajectories"])
        self.accounting = cast("dict[str, Any]", data["accounting"])
        self._script = script
        self._log = log
        cls: Any = Tokenizer
        self._tokenizer: Any = cls.from_file(str(tokenizer / "tokenizer.json"))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def says(self) -> str:
        """The record in short, for messages of failed checks."""
        lines = [json.dumps(self.accounting)]
        for trajectory in self.trajectories:
            about = {key: trajectory.get(key) for key in ("id", "scenario", "tags", "num_turns", "branched_from")}
            lines.append(json.dumps(about))
            lines.append(self._decode(trajectory["prompt_ids"])[-300:])
            lines.append(self._decode(trajectory["response_ids"])[:1500])
        return "\n".join([*lines, self._log[-2000:]])

    def check(
        self,
        *scenarios: str,
        turns: Sequence[int] | None = None,
        drift: Sequence[str] = ("new", "clean"),
        dropped: int = 0,
    ) -> None:
        """Hold the record to what must be: one trajectory for each of `scenarios`, every sampled token trained once.

        `turns` are the numbers of turns that each trains; None: one trajectory with the whole script. `drift` is how
        histories may have been recognised, `dropped` the number of sampled tokens that never became a turn.
        """
        assert [one["scenario"] for one in self.trajectories] == list(scenarios), self.says()
        runs = [self._trained(trajectory) for trajectory in self.trajectories]
        assert [len(one) for one in runs] == (list(turns) if turns is not None else [len(self._script)]), self.says()
        stop = self._tokenizer.token_to_id("<|im_end|>")
        sampled = [run for one in runs for run in one]
        played = [[*self._encode(text), stop] for text in self._script[: len(sampled)]]
        assert sorted(sampled) == sorted(played), self.says()
        total = sum(map(len, played))
        account = self.accounting
        assert (account["sampled"], account["trained"], account["masked"]) == (total + dropped, total, 0), self.says()
        assert sum(account["dropped"].values()) == dropped, self.says()
        assert sum(account["drift"].values()) == len(played), self.says()
        assert {kind for kind, count in account["drift"].items() if count} <= set(drift), self.says()

    def _trained(self, trajectory: Mapping[str, Any]) -> list[list[int]]:
        """The runs that one trajectory trains; mask, logprobs and tags are exactly theirs."""
        ids = trajectory["response_ids"]
        runs: list[list[int]] = []
        expected = [0] * len(ids)
        for kind, turn, start, end in trajectory["spans"]:
            if kind == "sampled":
                assert trajectory["tags"][turn] == trajectory["scenario"], self.says()
                expected[start:end] = [1] * (end - start)
                runs.append(ids[start:end])
        assert trajectory["response_mask"] == expected, self.says()
        assert trajectory["response_logprobs"] == [_LOGPROB if one else 0.0 for one in expected], self.says()
        return runs


@dataclass(frozen=True, slots=True)
class Clients:
    """Where the clients are installed (`.ci/clients/install`)."""

    root: Path

    @property
    def claude(self) -> str:
        return str(self.root / "node_modules" / "@anthropic-ai" / "claude-code-linux-x64" / "claude")

    @property
    def codex(self) -> str:
        return str(self.root / "node_modules" / ".bin" / "codex")

    @property
    def python(self) -> str:
        return str(self.root / "venv" / "bin" / "python")

    def driver(self, name: str, *arguments: str) -> list[str]:
        """The command line of a program in `drivers/`."""
        return [self.python, str(Path(__file__).parent / "drivers" / f"{name}.py"), *arguments]


def run_client(
    argv: Sequence[str], folder: Path, env: Mapping[str, str], *, timeout: float = 200.0
) -> subprocess.CompletedProcess[str]:
    """Run a client to its end in `folder`/work, with a fresh home and nothing of this process's environment.

    Fails when it does not exit with 0 in time, and shows what it said.
    """
    work, home = folder / "work", folder / "home"
    for one in (work, home):
        one.mkdir(parents=True, exist_ok=True)
    whole = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        done = subprocess.run(
            argv,
            cwd=work,
            env=whole | dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise AssertionError(f"{argv[0]} ran past {timeout:g} s:\n{late.stdout!r}\n{late.stderr!r}") from None
    assert done.returncode == 0, f"{argv[0]} exited with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done


def call(name: str, arguments: Mapping[str, Any], text: str = "") -> str:
    """What a model writes to call a tool, in the form of the policy's template."""
    written = json.dumps({"name": name, "arguments": arguments})
    return f"{text}\n<tool_call>\n{written}\n</tool_call>" if text else f"<tool_call>\n{written}\n</tool_call>"
