"""verl's own dataset, collation and batches keep the tasks. verl takes seconds to import: all of it is here."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.data.test_verl_rows import PLAIN, RICH, SUITES
from uni_agent.data import JsonlDataConfig, task_of, write_verl_parquet
from uni_agent.types import Task

POLICY = SUITES.parents[1] / "assets" / "quickstart_policy"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def load(name: str) -> Any:
    return importlib.import_module(name)  # untyped: verl, datasets, transformers


def dataset(files: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    if importlib.util.find_spec("verl") is None:
        pytest.skip("verl is not installed: pip install 'uni-agent[train]'")
    monkeypatch.setattr(load("datasets").config, "HF_DATASETS_CACHE", str(cache))
    settings = {"max_prompt_length": 512, "filter_overlong_prompts": True, "filter_overlong_prompts_workers": None}
    config = load("omegaconf").OmegaConf.create({**settings, "return_raw_chat": True, **options})
    tokenizer = load("transformers").AutoTokenizer.from_pretrained(str(POLICY))
    return load("verl.utils.dataset.rl_dataset").RLHFDataset(files, tokenizer, config)


def test_tasks_come_through_verls_dataset_and_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = JsonlDataConfig(type="jsonl", path=SUITES / "shell_basics_heldout.jsonl").build().load()
    swe = JsonlDataConfig(type="jsonl", path=SUITES / "mini_swe.jsonl").build().load()
    long = Task(id="long", prompt="word " * 5000)
    files = [str(tmp_path / "one.parquet"), str(tmp_path / "two.parquet")]
    write_verl_parquet(shell, Path(files[0]), split="train", data_source="shell", group_by="kind")
    write_verl_parquet([*swe, RICH, PLAIN, long], Path(files[1]), split="train", data_source="other")

    data = dataset(files, tmp_path / "cache", monkeypatch, max_prompt_length=4096)
    rows = [data[at] for at in range(len(data))]
    assert [task_of(row) for row in rows] == [*shell, *swe, RICH, PLAIN]
    assert rows[0]["raw_prompt"] == shell[0].prompt
    assert rows[1]["index"] == 1

    batch = load("verl.utils.dataset.rl_dataset").collate_fn(rows)
    tasks = [task_of({key: column[at] for key, column in batch.items()}) for at in range(len(rows))]
    assert tasks == [*shell, *swe, RICH, PLAIN]

    batch["uid"] = load("numpy").array([str(at) for at in range(len(rows))], dtype=object)
    tensordict = load("verl.utils.tensordict_utils").get_tensordict(batch)
    samples: list[dict[str, Any]] = [
        {key: value[at].data if hasattr(value[at], "data") else value[at] for key, value in tensordict.items()}
        for at in range(len(rows))
    ]
    assert [task_of(sample) for sample in samples] == [*shell, *swe, RICH, PLAIN]
    assert task_of({"extra_info": tensordict.get("extra_info")[2]}) == shell[2]
