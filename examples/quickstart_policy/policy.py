"""The tokenizer and the model of the quickstart policy, before any training, and how they are written to disk."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from demos import demonstration
from rehearsal import Box, reply_to, toolset
from world import KINDS, SYLLABLES, SYSTEM, WORDS, make_task

from uni_agent.tokens.parsers import build_parser

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import Qwen2ForCausalLM

END = "<|im_end|>"
PAD = "<|endoftext|>"
CONTROL = (PAD, "<|im_start|>", END)
MARKUP = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
TEMPLATE = Path(__file__).with_name("chat_template.jinja")
MAX_CONTEXT = 2048


def train_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """A byte-level BPE in which every name is two syllable tokens, so that unseen names are made of seen tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKUP),
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(random.Random(seed)), trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP])
    return tokenizer


def _corpus(rng: random.Random) -> Iterable[str]:
    # Syllables come alone and most often: their merges get the first ranks, so no merge of English text splits one.
    alone = "\n".join(SYLLABLES)
    for _ in range(4000):
        yield alone
    names = set(WORDS["train"])
    for _ in range(300):
        text = "\n".join(_episode_texts(rng))
        for name in {word for word in _letters(text) if word in names}:
            text = text.replace(name, name[:2])  # one syllable: no merge across two is ever seen
        yield f"system\nuser\nassistant\n{SYSTEM}\nTools: execute_bash finish\n{text}"


def _episode_texts(rng: random.Random) -> list[str]:
    task = make_task(rng, rng.choice(KINDS), "train")
    tools, parser, box = toolset(), build_parser("hermes"), Box(task.files)
    script = demonstration(task, rng)
    texts = [task.question, next(script)]
    try:
        while True:
            reply = reply_to(parser.parse(texts[-1], tools.schemas()), box, tools)
            texts += [message.content for message in reply.messages]
            texts.append(script.send(texts[-1]))
    except StopIteration:
        return texts
    finally:
        box.close()


def _letters(text: str) -> list[str]:
    return "".join(c if c.isalpha() else " " for c in text).split()


def new_model(vocab_size: int, end_id: int, pad_id: int, layers: int, width: int) -> Qwen2ForCausalLM:
    """A fresh Qwen2 with tied embeddings (untied ones do not learn to copy in the time given here)."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=width * 8 // 3 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=pad_id,
    )
    return Qwen2ForCausalLM(config)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer and chat template as a Hugging Face folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PAD,
            "additional_special_tokens": ["<|im_start|>", END],
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_CONTEXT,
        },
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE.read_text("utf-8"), encoding="utf-8")


def save_model(model: Qwen2ForCausalLM, folder: Path) -> None:
    """Write configuration and weights, rounded to bfloat16, as a Hugging Face folder has them.

    The embeddings are untied: some engines keep the old output layer when they reload tied ones.
    """
    import torch
    from safetensors.torch import save_file

    tensors = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in model.state_dict().items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    weights = folder / "model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)
    config = {**model.config.to_dict(), "tie_word_embeddings": False, "architectures": ["Qwen2ForCausalLM"]}
    config.pop("_name_or_path", None)
    config["dtype"] = "float32"  # loaded in full precision: sampled and re-scored logprobs agree
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {
            "do_sample": True,
            "temperature": 1.0,
            "eos_token_id": model.config.eos_token_id,
            "pad_token_id": model.config.pad_token_id,
        },
    )


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
