"""Train the quickstart policy from nothing: first to copy, then on demonstrations. About seven minutes on one CPU core.

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

from demos import demonstration
from policy import END, PAD, new_model, save_model, save_tokenizer, train_tokenizer
from rehearsal import Box, Chain, reply_to, toolset
from world import KINDS, SYSTEM, make_task

from uni_agent.tokens.config import RendererConfig
from uni_agent.types import Message

if TYPE_CHECKING:
    import torch
    from transformers import Qwen2ForCausalLM

CONTEXT_LOSS = 0.1  # weight of the tokens that the model only reads: they teach what names look like


@dataclass(frozen=True, slots=True)
class Sample:
    """Token ids of one episode; `mask` is 1 on what the assistant says, its end token included."""

    ids: list[int]
    mask: list[int]


def make_samples(folder: Path, count: int, seed: int) -> list[Sample]:
    """Demonstrations as the tokenizer and the chat template of `folder` encode them."""
    renderer, tools = RendererConfig().build(folder), toolset()
    end = renderer.stop_token_ids[:1]
    rng = random.Random(seed)
    samples: list[Sample] = []
    for _ in range(count):
        task = make_task(rng, rng.choice(KINDS), "train")
        user = Message("user", task.question)
        chain = Chain(renderer, tools, [user] if rng.random() < 0.1 else [Message("system", SYSTEM), user])
        box = Box(task.files)
        script = demonstration(task, rng)
        text = next(script)
        try:
            while True:
                parsed = chain.say([*renderer.tokenizer.encode(text), *end])
                reply = reply_to(parsed, box, tools)
                if reply.messages:
                    chain.hear(reply.messages)
                text = script.send(reply.messages[-1].content if reply.messages else "")
        except StopIteration:
            samples.append(Sample(chain.ids, chain.mask))
        finally:
            box.close()
    return samples


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
    save_tokenizer(tokenizer, options.out)
    end, pad = tokenizer.token_to_id(END), tokenizer.token_to_id(PAD)
    model = new_model(tokenizer.get_vocab_size(), end, pad, options.layers, options.width)
    print(f"{sum(p.numel() for p in model.parameters())} parameters, {tokenizer.get_vocab_size()} tokens", flush=True)
    learn_to_copy(model, options.copy_steps, 3e-3, options.seed)
    print(f"{time.monotonic() - started:.0f} s: making demonstrations", flush=True)
    samples = make_samples(options.out, options.demos, options.seed)
    print(f"{time.monotonic() - started:.0f} s: imitation", flush=True)
    imitate(model, samples, options.steps, options.batch, 2e-3, options.seed)
    save_model(model, options.out)
    print(f"{time.monotonic() - started:.0f} s: written to {options.out}", flush=True)


if __name__ == "__main__":
    main()
