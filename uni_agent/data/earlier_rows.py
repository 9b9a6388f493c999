"""Rows of the datasets of an earlier Uni-Agent: `extra_info.tools_kwargs` of one row as a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from uni_agent.data.readers import without_none
from uni_agent.data.source import validate_task
from uni_agent.errors import DataError
from uni_agent.types import Task

_AT = "extra_info.tools_kwargs"

_INSTEAD = {
    "model": "the trainer's policy is the model",
    "tools": "set `tools:` in the pipeline's YAML",
    "interaction": "set `interaction:` in the pipeline's YAML",
    "task": "rows of an agent framework's own tasks have no counterpart; convert their source with `columns`",
    "env.deployment": "set `deployment:` in the pipeline's YAML",
    "env.tool_install_dir": "tools are placed by the deployment",
}
"""Key below `tools_kwargs` → what to do in its place."""


def earlier_task(tools: Any, prompt: Any, info: Mapping[str, Any], data_source: str, where: str) -> Task:
    """The task that `tools_kwargs` describes; keys that are null are as if they were not there.

    `env.deployment.image`, `env.post_setup_cmd` and `env.env_variables` become `image`, `setup` and `env`;
    `reward.metadata` becomes the metadata, `reward.ground_truth` a key of it; `reward.name`, where it is `dummy` or a
    class (`module:Class`), becomes an override. The id is `extra_info.task_id`, else the metadata's `instance_id` or
    `task_id`, else the data source and the row's index. Raises DataError that names the key for everything else.
    """
    given = _mapping(without_none(tools), _AT, where)
    env = _taken(given, "env", where)
    deployment = _taken(env, "deployment", where, "env.")
    reward = _taken(given, "reward", where)
    metadata = _taken(reward, "metadata", where, "reward.")
    if "ground_truth" in reward:
        metadata["ground_truth"] = reward.pop("ground_truth")
    raw: dict[str, Any] = {
        "id": _id(info, metadata, data_source, where),
        "prompt": without_none(prompt),
        "image": deployment.pop("image", None),
        "setup": env.pop("post_setup_cmd", None) or [],
        "env": env.pop("env_variables", {}),
        "overrides": _overrides(reward, where),
        "metadata": metadata,
    }
    for prefix, rest in (("", given), ("env.", env), ("env.deployment.", deployment), ("reward.", reward)):
        for key in rest:
            raise DataError(f"{where}: {_AT}.{prefix}{key}: has no counterpart in a task; {_cure(prefix + key)}")
    return validate_task(raw, where)


def _overrides(reward: dict[str, Any], where: str) -> dict[str, Any]:
    name = reward.pop("name", None)
    if name is None:
        return {}
    if not isinstance(name, str) or not (name == "dummy" or ":" in name):
        raise DataError(
            f"{where}: {_AT}.reward.name: there is no reward {name!r} here; name a class as `module:Class`, or remove "
            "the key and set `reward:` in the pipeline's YAML"
        )
    return {"reward": {"type": name}}


def _id(info: Mapping[str, Any], metadata: Mapping[str, Any], data_source: str, where: str) -> str:
    for value in (info.get("task_id"), metadata.get("instance_id"), metadata.get("task_id")):
        if value not in (None, ""):
            return str(value)
    if data_source and info.get("index") is not None:
        return f"{data_source}-{info['index']}"
    raise DataError(
        f"{where}: no id: neither extra_info.task_id nor reward.metadata.instance_id is there, nor data_source with "
        "extra_info.index; add one of them"
    )


def _taken(parent: dict[str, Any], key: str, where: str, prefix: str = "") -> dict[str, Any]:
    return _mapping(parent.pop(key, {}), f"{_AT}.{prefix}{key}", where)


def _mapping(value: Any, key: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{where}: {key}: expected keys and values, got {type(value).__name__}")
    return dict(cast("dict[str, Any]", value))


def _cure(key: str) -> str:
    while key:
        if key in _INSTEAD:
            return _INSTEAD[key]
        key = key.rpartition(".")[0]
    return "remove it from the row"
