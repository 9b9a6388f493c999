"""`uni-agent gateway`: what flags, file and `-o` state together."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from uni_agent.cli.gateway import add_arguments, read_config
from uni_agent.cli.main import main
from uni_agent.gateway.app_config import GatewayAppConfig

FLAGS = ["--engine", "scripted", "--script", "turns.jsonl", "--tokenizer", "folder"]


def read(*words: str) -> GatewayAppConfig:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return read_config(parser.parse_args(list(words)))


def test_overrides_reach_any_key_without_a_file() -> None:
    config = read(*FLAGS, "-o", "gateway.session.max_turns=3", "-o", "gateway.session.sampling.seed=7")
    assert (config.gateway.session.max_turns, config.gateway.session.sampling.seed) == (3, 7)
    assert config.script == Path.cwd() / "turns.jsonl"


def test_flags_go_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text("engine: {type: vllm, url: http://127.0.0.1:1}\ngateway: {port: 5, heartbeat: 3}\n")
    config = read(str(path), "--port", "6")
    assert (config.engine.type, config.gateway.port, config.gateway.heartbeat) == ("vllm", 6, 3)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["gateway.port=1", "gateway.port.x=2"], "expected an integer"),
        (["gateway.port=[1"], "not valid YAML"),
        (["port"], "expected key=value"),
        (["gateway.sesion.ttl=5"], "did you mean `gateway.session.ttl`"),
    ],
    ids=["below a value", "broken YAML", "no value", "a slip"],
)
def test_an_override_that_cannot_be_is_named_and_exits_2(
    overrides: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["gateway", *FLAGS, *(word for text in overrides for word in ("-o", text))]) == 2
    assert said in capsys.readouterr().err
