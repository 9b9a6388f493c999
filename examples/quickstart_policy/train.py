"""Train the quickstart policy from nothing: first to copy, then on demonstrations. About six minutes on one CPU core.

python examples/quickstart_policy/train.py --out /tmp/policy
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demos import TOOLS, Message, demo
from policy import END, PAD, export, initial_text, new_model, observation_text, train_tokenizer

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import Qwen2ForCausalLM

CONTEXT_LOSS = 0.1  # weight of the tokens that the model only reads: they teach what names look like


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids of one episode; `mask` is 1 on what the assistant says, its end token included."""

    ids: list[int]
    mask: list[int]


def encode_episode(tokenizer: Tokenizer, episode: list[Message], tools: list[str]) -> Sample:
    """The ids of `episode`, encoded piece by piece as they come about in a rollout."""
    first = next(i for i, message in enumerate(episode) if message.role == "assistant")
    ids = tokenizer.encode(initial_text(episode[:first], tools)).ids
    mask = [0] * len(ids)
    for message in episode[first:]:
        trained = message.role == "assistant"
        text = f"{message.text}{END}" if trained else observation_text([message])
        piece = tokenizer.encode(text).ids
        ids += piece
        mask += [int(trained)] * len(piece)
    return Sample(ids, mask)


def _cosine(step: int, steps: int, peak: float) -> float:
    return peak * min(1, (step + 1) / 40) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def _optimiser(model: Qwen2ForCausalLM, rate: float) -> torch.optim.AdamW:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01, betas=(0.9, 0.95))


def _descend(model: Qwen2ForCausalLM, optimiser: torch.optim.AdamW, loss: torch.Tensor, rate: float) -> None:
    import torch

    for group in optimiser.param_groups:
        group["lr"] = rate
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()


def learn_to_copy(model: Qwen2ForCausalLM, steps: int, rate: float, seed: int) -> None:
    """Repeated random tokens: without this phase names are never copied from the prompt."""
    import torch
    from torch.nn import functional

    generator = torch.Generator().manual_seed(seed)
    optimiser = _optimiser(model, rate)
    vocab = model.config.vocab_size

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    for step in range(steps):
        length, gap = draw(6, 28), draw(0, 12)
        first = torch.randint(3, vocab, (48, length), generator=generator)
        between = torch.randint(3, vocab, (48, gap), generator=generator)
        ids = torch.cat([first, between, first], 1)
        logits = model(ids[:, :-1]).logits[:, length + gap :]
        loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, length + gap + 1 :].flatten())
        _descend(model, optimiser, loss, _cosine(step, steps, rate))
        if step % 100 == 99:
            print(f"copy step {step + 1}: loss {loss.item():.3f}", flush=True)
        if loss.item() < 0.05:
            break


def _batches(samples: list[Sample], size: int, rng: random.Random) -> Iterator[list[Sample]]:
    # Batches of similar length waste little on padding.
    while True:
        pool = rng.sample(samples, min(len(samples), size * 16))
        pool.sort(key=lambda sample: len(sample.ids))
        groups = [pool[i : i + size] for i in range(0, len(pool), size)]
        rng.shuffle(groups)
        yield from groups


def imitate(model: Qwen2ForCausalLM, samples: list[Sample], steps: int, size: int, rate: float, seed: int) -> None:
    """Supervised training on the demonstrations; the assistant's tokens count fully, the others a little."""
    import torch
    from torch.nn import functional

    optimiser = _optimiser(model, rate)
    batches = _batches(samples, size, random.Random(seed))
    pad = model.config.pad_token_id
    for step in range(steps):
        batch = next(batches)
        longest = max(len(sample.ids) for sample in batch)
        ids = torch.tensor([s.ids + [pad] * (longest - len(s.ids)) for s in batch])
        mask = torch.tensor([s.mask + [0] * (longest - len(s.ids)) for s in batch])[:, 1:].float()
        real = torch.tensor([[1] * len(s.ids) + [0] * (longest - len(s.ids)) for s in batch])[:, 1:].float()
        logits = model(ids[:, :-1]).logits
        each = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view_as(mask)
        said = (each * mask).sum() / mask.sum()
        loss = said + CONTEXT_LOSS * (each * real).sum() / real.sum()
        _descend(model, optimiser, loss, _cosine(step, steps, rate))
        if step % 50 == 49:
            print(f"imitation step {step + 1}: loss {said.item():.3f} per assistant token", flush=True)


def main() -> None:
    """Train and export."""
    import torch

    parser = argparse.ArgumentParser(description="Train the quickstart policy.")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vocab", type=int, default=1024, help="upper bound; the corpus gives fewer")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--demos", type=int, default=8000)
    parser.add_argument("--copy-steps", type=int, default=900)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=32)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    started = time.monotonic()

    tokenizer = train_tokenizer(options.vocab, options.seed)
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    model = new_model(tokenizer.get_vocab_size(), end, pad, options.layers, options.width)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    learn_to_copy(model, options.copy_steps, 3e-3, options.seed)
    print(f"{time.monotonic() - started:.0f} s: making demonstrations", flush=True)
    rng = random.Random(options.seed)
    samples = [encode_episode(tokenizer, demo(rng), _shown_tools(rng)) for _ in range(options.demos)]
    print(f"{time.monotonic() - started:.0f} s: imitation", flush=True)
    imitate(model, samples, options.steps, options.batch, 2e-3, options.seed)
    export(model, tokenizer, options.out)
    print(f"{time.monotonic() - started:.0f} s: written to {options.out}", flush=True)


def _shown_tools(rng: random.Random) -> list[str]:
    return TOOLS if rng.random() < 0.9 else TOOLS[::-1]


if __name__ == "__main__":
    main()
