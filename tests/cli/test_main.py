"""The command line's own behaviour: help, usage errors, exit codes, cost of starting."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import ARGV, uni_agent
from uni_agent.cli import main as module_of_main
from uni_agent.cli.main import COMMANDS, _ended, main  # pyright: ignore[reportPrivateUsage]
from uni_agent.errors import ConfigError, ModelError


async def test_without_arguments_it_prints_help_and_exits_2() -> None:
    done = await uni_agent()
    assert done.code == 2
    for command in ("run", "check", "schema", "list", "doctor"):
        assert f"\n    {command} " in done.out
    assert done.err == ""


async def test_version() -> None:
    from uni_agent import __version__

    done = await uni_agent("--version")
    assert (done.code, done.out) == (0, f"uni-agent {__version__}\n")


def test_an_unknown_command_exits_2_and_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc", "x.yaml"]) == 2
    assert capsys.readouterr().err == "uni-agent: unknown command 'chekc', did you mean `check`?\n"
    assert main(["zzz"]) == 2
    assert "commands: run, check" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["check"], ["check", "--nope"], ["list", "nothing"], ["--nope"], ["schema", "x"]])
def test_wrong_usage_exits_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "usage: uni-agent" in capsys.readouterr().err


def test_help_of_a_command_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--help"]) == 0
    assert "--online" in capsys.readouterr().out


def test_every_command_that_is_offered_has_a_module() -> None:
    for name in COMMANDS:
        if importlib.util.find_spec(f"uni_agent.cli.{name}"):
            module = importlib.import_module(f"uni_agent.cli.{name}")
            assert callable(module.add_arguments)
            assert callable(module.execute)


# ------------------------------------------------------------------------------------------ how commands end


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ConfigError("a.yaml:1  x: bad"), 2, "a.yaml:1  x: bad\n"),
        (ModelError("the model is gone"), 1, "the model is gone\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ExceptionGroup("tasks", [ConfigError("bad"), ExceptionGroup("more", [ConfigError("bad")])]), 2, "bad\n"),
        (ExceptionGroup("tasks", [ModelError("gone"), ConfigError("bad")]), 2, "gone\nbad\n"),
        (BaseExceptionGroup("tasks", [ModelError("gone"), KeyboardInterrupt()]), 130, "interrupted\n"),
    ],
)
def test_an_error_is_a_message_and_an_exit_code(
    error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _ended(error, debug=False) == code
    assert capsys.readouterr().err == told


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "no_such.yaml"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    for words in (["--debug", "check", "no_such.yaml"], ["check", "no_such.yaml", "--debug"]):
        assert main(words) == 2
        assert "Traceback" in capsys.readouterr().err


def test_an_error_that_is_not_ours_is_not_hidden() -> None:
    group = ExceptionGroup("tasks", [ModelError("gone"), ZeroDivisionError()])
    with pytest.raises(ExceptionGroup):
        _ended(group, debug=False)


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", '"$@" list --json | true', "_", *ARGV], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stderr == ""


async def test_output_in_a_narrow_encoding_is_no_error() -> None:
    done = await uni_agent("list", env={"PYTHONIOENCODING": "ascii"})
    assert done.code == 0


# ------------------------------------------------------------------------------------------ cost


def test_starting_imports_nothing_heavy() -> None:
    code = (
        "import json, sys\n"
        "from uni_agent.cli import main\n"
        "main(['--version'])\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    heavy = {"pydantic_settings", "openai", "swerex", "torch", "transformers", "yaml", "rich", "jinja2", "aiohttp"}
    assert not loaded & heavy


def test_main_is_the_entry_point() -> None:
    assert module_of_main is main


async def test_what_the_machine_refuses_is_one_line_without_a_traceback() -> None:
    done = await uni_agent("show", "x" * 5000)
    assert (done.code, "Traceback" in done.err) == (1, False)


def test_a_closed_stdout_is_no_error() -> None:
    script = "import os, subprocess, sys; os.close(1); raise SystemExit(subprocess.run(sys.argv[1:]).returncode)"
    closed = subprocess.run(
        [sys.executable, "-c", script, *ARGV, "list"], check=False, stderr=subprocess.PIPE, text=True
    )
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_behind_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([*ARGV, "list"], check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["[Errno 28] No space left on device"]
