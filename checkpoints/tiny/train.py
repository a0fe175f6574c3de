"""Trains the bundled model from nothing: the corpus, the tokenizer, the checkpoint, and a measure of what came out.

    python checkpoints/tiny/train.py

Everything follows from the seed: which documents there are, the first weights and the order of the batches. What the
run took and what it reached is written to `training.json`.
"""

import argparse
import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import torch
from corpus import document, long_document
from dataset import IGNORED, groups
from evaluation import accuracies, samples
from tokenization import END_OF_TEXT, TURN_END, render, token_id, train_tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
VOCABULARY = 2560
TOKENIZER_DOCUMENTS = 20_000
VALIDATION_FIRST_DOCUMENT = 9_000_000  # training never reaches it
VALIDATION_GROUPS = 30


@dataclass(frozen=True)
class Recipe:
    """How the model is trained: a step learns from a few groups of documents of like length, the last from long chats.

    Three small groups rather than a large one, so that most steps see documents of several lengths, hence sorts.
    """

    seed: int
    steps: int
    step_groups: int = 3
    group_tokens: int = 1024
    long_share: float = 0.06
    learning_rate: float = 6e-3
    warmup: int = 50
    weight_decay: float = 0.1
    clip: float = 1.0

    def rate(self, step: int) -> float:
        """The learning rate: a linear warm-up, then half a cosine down to a fiftieth of the peak."""
        cosine = 0.5 + 0.5 * math.cos(math.pi * step / self.steps)
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (0.02 + 0.98 * cosine)


def main() -> None:
    """Trains, saves, measures, and writes the record."""
    args = _arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    recipe = Recipe(seed=args.seed, steps=args.steps)
    args.output.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()

    tokenizer = make_tokenizer(recipe.seed)
    model = make_model(tokenizer)
    final_loss = train(model, tokenizer, recipe)
    save(model, tokenizer, args.output)

    model, tokenizer = load(args.output)
    validated, accuracy = validation_loss(model, tokenizer, recipe), accuracies(model, tokenizer, recipe.seed)
    for prompt, continuation in samples(model, tokenizer):
        print(f"\n> {prompt}\n{continuation}")
    record = {
        "seed": recipe.seed,
        "steps": recipe.steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "final_loss": round(final_loss, 4),
        "validation_loss": round(validated, 4),
        "accuracy": accuracy,
        "seconds": round(time.perf_counter() - started),
        "cpu_seconds": round(time.process_time()),
        "threads": args.threads,
        "torch": torch.__version__,
        "corpus_sha256": corpus_digest(tokenizer, recipe.seed),
        "tokenizer_sha256": digest((args.output / "tokenizer.json").read_bytes()),
        "weights_sha256": digest((args.output / "model.safetensors").read_bytes()),
    }
    (args.output / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    print("\n" + json.dumps(record, indent=2))


def make_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The tokenizer, from the first documents of the corpus."""
    documents = (document(seed, i) for i in range(TOKENIZER_DOCUMENTS))
    return train_tokenizer(documents, VOCABULARY, (HERE / "chat_template.jinja").read_text())


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A small Qwen3 with grouped-query attention, head_dim apart from hidden_size / heads, and tied embeddings."""
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=token_id(tokenizer, TURN_END),
        pad_token_id=token_id(tokenizer, END_OF_TEXT),
    )
    # Written out, attention takes half the time that the fused kernel takes on rows this short.
    config._attn_implementation = "eager"
    return Qwen3ForCausalLM(config)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> float:
    """Runs all steps and returns the mean loss of the last twenty."""
    optimizers = make_optimizers(model, recipe)
    model.train()
    losses: list[float] = []
    started = time.perf_counter()
    for step, batch in enumerate(schedule(tokenizer, recipe)):
        learnt = sum(count_of(labels) for _, labels in batch)
        loss = 0.0
        for tokens, labels in batch:
            share = summed_loss(model, tokens, labels) / learnt
            share.backward()  # type: ignore[no-untyped-call]
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate(step)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss)
        if (step + 1) % 20 == 0 or step + 1 == recipe.steps:
            print_progress(recipe, step + 1, losses, time.perf_counter() - started)
    print()
    return fmean(losses[-20:])


def make_optimizers(model: Qwen3ForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms.

    Muon is by Jordan et al. (2024); the scaling of Liu et al. (2025) lets both share one learning rate. In short
    trials on an earlier corpus (0.6 M tokens, rate 3e-3, the same first weights) it reached a validation loss of 0.78,
    AdamW alone 2.47, or 1.10 with first weights three times as large. Muon's rate was tuned then (6e-3: 0.73),
    AdamW's was not.
    """
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    norms = [p for p in model.parameters() if p.ndim == 1]
    muon = torch.optim.Muon(
        matrices, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(
        [model.model.embed_tokens.weight, *norms], lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    return [muon, adamw]


def print_progress(recipe: Recipe, step: int, losses: list[float], elapsed: float) -> None:
    """Rewrites the progress line."""
    line = f"step {step}/{recipe.steps}  loss {fmean(losses[-20:]):.4f}  {elapsed:.0f} s"
    print(f"\r{line}", end="", flush=True)


def schedule(tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """The groups of every step of the run: documents of every sort first, long chats at the end."""
    long_steps = int(recipe.steps * recipe.long_share)
    for make, steps in ((document, recipe.steps - long_steps), (long_document, long_steps)):
        source = groups(
            tokenizer,
            partial(make, recipe.seed),
            Random(recipe.seed),
            tokens=recipe.group_tokens,
            longest=recipe.group_tokens,
        )
        for _ in range(steps):
            yield list(islice(source, recipe.step_groups))


def summed_loss(model: Qwen3ForCausalLM, tokens: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of the next token, summed over what is learnt, in bfloat16 where that is safe."""
    learnt = labels[:, 1:] != IGNORED
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
        logits = model.lm_head(hidden[learnt])
    return cross_entropy(logits.float(), labels[:, 1:][learnt], reduction="sum")


def count_of(labels: Tensor) -> int:
    """How many tokens of a group are learnt."""
    return int((labels[:, 1:] != IGNORED).sum())


def validation_loss(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> float:
    """The loss per token on documents that training never saw."""
    unseen = groups(
        tokenizer,
        lambda i: document(recipe.seed, VALIDATION_FIRST_DOCUMENT + i),
        Random(recipe.seed),
        tokens=recipe.group_tokens,
        longest=recipe.group_tokens,
    )
    drawn = list(islice(unseen, VALIDATION_GROUPS))
    with torch.inference_mode():
        total = sum(summed_loss(model, tokens, labels).item() for tokens, labels in drawn)
    return total / sum(count_of(labels) for _, labels in drawn)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes the checkpoint in bfloat16. A chat ends with its turn, plain text with the end of the document."""
    ends = [token_id(tokenizer, TURN_END), token_id(tokenizer, END_OF_TEXT)]
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=ends,
        pad_token_id=ends[1],
        do_sample=True,
        temperature=0.8,
        top_p=0.95,  # degenerate.py says why
    )
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tokenizer.backend_tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def load(folder: Path) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast]:
    """The checkpoint as a user gets it, computed in float32."""
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


def corpus_digest(tokenizer: PreTrainedTokenizerFast, seed: int, documents: int = 500) -> str:
    """A digest of the corpus's head, so that a change of the corpus shows."""
    return digest("".join(render(tokenizer, document(seed, i)) for i in range(documents)).encode())


def digest(data: bytes) -> str:
    """SHA-256, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description="Train the bundled model from nothing.")
    parser.add_argument("--output", type=Path, default=HERE, help="folder for the checkpoint (default: this folder)")
    parser.add_argument("--seed", type=int, default=7, help="decides the corpus, the first weights and the order")
    parser.add_argument("--steps", type=int, default=1700, help="optimizer steps of up to 3,072 tokens each")
    parser.add_argument("--threads", type=int, default=1, help="threads to compute with")
    return parser.parse_args()


if __name__ == "__main__":
    main()
