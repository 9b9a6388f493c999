from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.engine.conftest import POLICY
from uni_agent.engine import EngineConfig, SamplingParams
from uni_agent.engine.base import OnTokens, TokenOutput
from uni_agent.engine.config import EmbeddedEngineConfig
from uni_agent.engine.embedded import EmbeddedBackend
from uni_agent.errors import ConfigError, MissingExtraError

ENGINE: TypeAdapter[Any] = TypeAdapter(EngineConfig)


class Echo:
    """A plug-in engine that says the last token of the prompt."""

    def __init__(self, window: int = 8) -> None:
        if window < 1:
            raise ValueError("no window")
        self.max_context = window

    async def start(self) -> None: ...

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling: SamplingParams, *, on_tokens: OnTokens | None = None
    ) -> TokenOutput:
        return TokenOutput(prompt_ids[-1:], None, "stop")

    async def release(self, request_id: str) -> None: ...

    async def close(self) -> None: ...


async def test_the_packaged_policy_is_named_by_its_package_path() -> None:
    config = ENGINE.validate_python({"type": "embedded", "path": "pkg://uni_agent/assets/quickstart_policy", "seed": 1})
    engine = config.build()
    assert isinstance(engine, EmbeddedBackend)
    assert engine.max_context == 2048
    await engine.start()
    output = await engine.generate("a", [5, 6], SamplingParams(max_tokens=3))
    assert 1 <= len(output.token_ids) <= 3
    await engine.close()


async def test_a_scripted_engine_can_be_written_in_yaml() -> None:
    engine = ENGINE.validate_python({"type": "scripted", "turns": [{"ids": [1, 2]}], "repeat": True}).build()
    await engine.start()
    for _ in range(2):
        output = await engine.generate("a", [7], SamplingParams(stop_token_ids=(9,)))
        assert output.token_ids == [1, 2, 9]


async def test_a_plug_in_engine_is_named_by_module_and_class() -> None:
    engine = ENGINE.validate_python({"type": f"{__name__}:Echo", "options": {"window": 4}}).build()
    assert engine.max_context == 4
    for reference, options in ((f"{__name__}:Echo", {"window": 0}), ("pathlib:PurePath", {}), ("no.such:Thing", {})):
        with pytest.raises(ConfigError, match=reference.partition(":")[0].replace(".", r"\.")):
            ENGINE.validate_python({"type": reference, "options": options}).build()


@pytest.mark.parametrize(
    "raw",
    [
        {"type": "embeded", "path": "x"},
        {"path": "x"},
        {"type": "embedded"},
        {"type": "embedded", "path": "x", "thread": 2},
        {"type": "embedded", "path": "x", "threads": 0},
        {"type": "embedded", "path": "pkg://no_such_package_here/x"},
        {"type": "scripted", "turns": [{"ids": [1], "fault": "explode"}]},
    ],
)
def test_what_no_engine_reads_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ENGINE.validate_python(raw)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    def failure(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            EmbeddedEngineConfig(path=path).build()
        return str(caught.value)

    assert f"no folder {tmp_path / 'nowhere'}" in failure(tmp_path / "nowhere")
    assert f"{tmp_path} holds no config.json" in failure(tmp_path)
    (tmp_path / "config.json").write_text("{broken")
    assert str(tmp_path / "config.json") in failure(tmp_path)
    (tmp_path / "config.json").write_text((POLICY / "config.json").read_text())
    assert f"{tmp_path} holds no weights" in failure(tmp_path)


async def test_broken_weights_are_a_config_error_that_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((POLICY / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\0" * 64)
    engine = EmbeddedEngineConfig(path=tmp_path).build()
    with pytest.raises(ConfigError, match=str(tmp_path)):
        await engine.start()


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # what Python does for a package that cannot be imported
    with pytest.raises(MissingExtraError, match=rf"'{package}'.*uni-agent\[embedded\]"):
        EmbeddedEngineConfig(path=POLICY).build()


def test_neither_the_package_nor_an_unstarted_engine_imports_torch() -> None:
    program = (
        "import sys; from pathlib import Path; from uni_agent.engine.config import EmbeddedEngineConfig\n"
        f"EmbeddedEngineConfig(path=Path({str(POLICY)!r})).build()\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
