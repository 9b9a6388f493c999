"""Loads a Hugging Face folder, and proves that our own cache gives the model's own logits."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from uni_agent.engine.local.kv import BatchKv, KvShape, PrefillKv
from uni_agent.errors import ConfigError, boundary


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A loaded causal language model. `eos_ids` end a turn when a request names no stop ids."""

    module: Any
    shape: KvShape
    vocab_size: int
    eos_ids: tuple[int, ...]
    cache_argument: str

    def prefill(self, prompts: list[list[int]], kv: torch.Tensor, starts: list[int], ends: list[int]) -> torch.Tensor:
        """Compute tokens [start, end) of each of n prompts into its row of `kv`; the logits [n, vocabulary] after them.

        `kv` has one token place more than the longest prompt.
        """
        cache = PrefillKv(kv, starts, ends)
        new = [prompt[start:end] for prompt, start, end in zip(prompts, starts, ends, strict=True)]
        padded = [[0] * (cache.width - len(ids)) + ids for ids in new]
        return self._forward(torch.tensor(padded, device=self.shape.device), cache.positions, cache.mask, cache)

    def decode(self, last_ids: list[int], batch: BatchKv) -> torch.Tensor:
        """Compute one token per row of `batch`; the logits [n, vocabulary] after them."""
        positions, mask = batch.begin_step()
        logits = self._forward(torch.tensor(last_ids, device=self.shape.device)[:, None], positions, mask, batch)
        batch.end_step()
        return logits

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: Any) -> torch.Tensor:
        output = self.module(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: cache},
        )
        return output.logits[:, -1]


def load(path: Path, device: str, dtype: str) -> LocalModel:
    """The model in the folder `path`. Raises ConfigError when it cannot be loaded or cannot be run exactly."""
    transformers: Any = importlib.import_module("transformers")  # its types are too partial for strict checking
    where = _device(device)
    number = _dtype(dtype, where)
    with boundary(ConfigError, f"cannot load the model in {path}"), torch.inference_mode():
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
        _refuse_windows(config.get_text_config(), path)
        with _no_progress_bars(transformers.utils.logging):
            module = transformers.AutoModelForCausalLM.from_pretrained(
                path, config=config, dtype=number, local_files_only=True
            )
        module = module.to(where).eval()
        model = _described(module, config.get_text_config(), number, where)
        _prove(model, path)
    return model


@contextmanager
def _no_progress_bars(logging: Any) -> Generator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device is 'cuda', but torch sees no GPU: use 'auto' or 'cpu'")
    return torch.device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


def _refuse_windows(config: Any, path: Path) -> None:
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    if not kinds and window is not None and window < config.max_position_embeddings:
        kinds = {"sliding_attention"}
    foreign = kinds - {"full_attention"}
    if foreign:
        raise ConfigError(
            f"{path}: the model has layers of the kind {', '.join(sorted(foreign))}; the embedded engine runs only "
            "full attention. Serve it with engine.type: vllm"
        )


def _described(module: Any, config: Any, dtype: torch.dtype, device: torch.device) -> LocalModel:
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    eos: Any = getattr(module.generation_config, "eos_token_id", None)
    if eos is None:
        eos = config.eos_token_id
    # transformers renamed the argument within version 5.
    arguments = inspect.signature(module.forward).parameters
    return LocalModel(
        module=module,
        shape=KvShape(config.num_hidden_layers, heads, size, dtype, device),
        vocab_size=module.get_output_embeddings().weight.shape[0],
        eos_ids=() if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
        cache_argument="cache" if "cache" in arguments else "past_key_values",
    )


def _prove(model: LocalModel, path: Path) -> None:
    """Two sequences of unequal length, prefilled in pieces and decoded together, against the model's own full pass."""
    generator = torch.Generator().manual_seed(0)
    drawn: Any = torch.randint(0, model.vocab_size, (2, 9), generator=generator)
    sequences: list[list[int]] = [drawn[0, :4].tolist(), drawn[1].tolist()]
    batch = BatchKv(model.shape)
    kv = model.shape.empty(2, 10)
    model.prefill(sequences, kv, [0, 0], [2, 5])
    model.prefill(sequences, kv, [2, 5], [3, 8])
    for row, ids in enumerate(sequences):
        batch.join(kv[:, :, row, :, : len(ids) - 1])
    ours = model.decode([ids[-1] for ids in sequences], batch)
    theirs = torch.stack(
        [model.module(input_ids=torch.tensor([ids], device=model.shape.device)).logits[0, -1] for ids in sequences]
    )
    gap = (ours.float() - theirs.float()).abs().max().item()
    scale = theirs.float().abs().max().item()
    tolerance = (1e-4 if model.shape.dtype is torch.float32 else 5e-2) * max(1.0, scale)
    if not gap <= tolerance:  # also when the gap is NaN
        raise ConfigError(
            f"{path}: {type(model.module).__name__} gives other logits with a cache than without (gap {gap:.2g}); "
            "the embedded engine cannot run it exactly. Serve it with engine.type: vllm"
        )
