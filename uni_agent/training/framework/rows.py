"""verl's batch of prompts as one mapping for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from uni_agent.errors import ConfigError
from uni_agent.optional import load


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call of the trainer asks for: the rows with their columns, and whether they validate."""

    rows: list[dict[str, Any]]
    validate: bool


def read_batch(prompts: Any) -> Batch:
    """The rows of a TensorDict as verl's v1 trainer makes it; each has `uid` as text and `global_steps` as a number.

    Raises ConfigError for the DataProto of verl's v0 trainer, and for rows that verl's replay buffer could not follow.
    """
    if hasattr(prompts, "non_tensor_batch"):
        raise ConfigError("the gateway's rollouts need verl's v1 trainer: set trainer.use_v1=true")
    columns = {str(key): value for key, value in prompts.items()}
    validate = bool(_value(columns.pop("validate"), 0)) if "validate" in columns else False
    rows = [{key: _value(value, i) for key, value in columns.items()} for i in range(len(prompts))]
    for row in rows:
        if "uid" not in row:
            raise ConfigError("a batch of prompts has no column `uid`, by which results are told apart")
        row["uid"] = str(row["uid"])
        if not row["uid"] or "_" in row["uid"]:
            raise ConfigError(f"uid {row['uid']!r}: verl splits keys at `_`, so a uid has none")
        row["global_steps"] = int(row.get("global_steps", 0))
    return Batch(rows, validate)


def _value(column: Any, index: int) -> Any:
    torch = load("torch", extra="train", needed_for="verl's batches")
    tensordict = load("tensordict", extra="train", needed_for="verl's batches")
    if isinstance(column, torch.Tensor):
        return column[index]
    if isinstance(column, tensordict.NonTensorStack):
        return column[index].data
    if isinstance(column, tensordict.NonTensorData):
        return column.data
    if isinstance(column, list | tuple):
        return cast("list[Any]", column)[index]
    return column
