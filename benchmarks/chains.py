"""Models of a real shape whose answers are known: each token has one successor, and nearly all of the probability.

Random weights continue no text, so their drafts would show nothing. Here layers are random too, and cost what trained
ones cost, but add little to a token's embedding; the row of the head for a token is the embedding of the token before
it. So a prompt decides how much of the answer can be found in it, and a second model agrees with the first for as many
tokens as it is made to.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3Config

from benchmarks.shapes import SHAPES, write_tokenizer

PERIOD = 1024
"""Tokens until a chain comes back to its first: more than any answer has."""
_LOGIT = 64.0
"""Of a token's successor; others have at most half of it."""
_LAYERS = 1e-3
"""What is left of what a layer adds."""
_COMPLETE = "tokenizer.json"
"""The last file that is written."""
_EDIT, _PHRASE = 0.05, 6
"""The share of a prompt's tokens that the answer has otherwise, and tokens that it has in the same order."""


def successors(vocabulary: int, share: float = 1.0) -> list[int]:
    """The token after each; for tokens outside ``share``, another than in the whole chains."""
    ids, drawn = list(range(vocabulary)), random.Random("chains")
    drawn.shuffle(ids)
    after = list(range(vocabulary))
    for begin in range(0, vocabulary - vocabulary % PERIOD, PERIOD):
        chain = ids[begin : begin + PERIOD]
        for token, following in zip(chain, [*chain[1:], chain[0]], strict=True):
            after[token] = following
    others = drawn.sample(ids, k=round((1 - share) * vocabulary))
    moved = [after[token] for token in others]
    for token, following in zip(others, [*moved[1:], *moved[:1]], strict=True):
        after[token] = following
    return after


def find_chain(models: Path, shape: str = "qwen3-0.6b") -> Path:
    """The directory of the model of ``shape``, written if missing."""
    return _written(SHAPES[shape](), models / f"{shape}-chains", 1.0)


def find_drafting_chain(models: Path, share: float, shape: str = "qwen3-0.6b") -> Path:
    """The directory of a model with two narrow layers, which agrees on ``share`` of the tokens."""
    return _written(_narrow(SHAPES[shape]().vocab_size), models / f"{shape}-chains-{share:g}", share)


def _narrow(vocabulary: int) -> PretrainedConfig:
    """A step reads a fourteenth of what one of Qwen3-0.6B reads."""
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=16_384,
        bos_token_id=0,
        eos_token_id=0,
    )


def _written(config: PretrainedConfig, directory: Path, share: float) -> Path:
    if not (directory / _COMPLETE).exists():
        print(f"making {directory}", flush=True)
        write_chain(config, directory, share)
        write_tokenizer(directory)
    return directory.resolve()


def write_chain(config: PretrainedConfig, directory: Path, share: float = 1.0) -> None:
    """Write a checkpoint of ``config``, with a head of its own, for the chains of its vocabulary."""
    torch.manual_seed(0)
    config.tie_word_embeddings = False
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.bfloat16)
    after = torch.tensor(successors(config.vocab_size, share))
    with torch.no_grad():
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        embedding.normal_(std=_LOGIT / config.hidden_size)  # as norms make hidden states √H long
        head[after] = embedding
        for name, weight in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.mul_(_LAYERS)
    model.save_pretrained(directory)


@dataclass(frozen=True, slots=True)
class ChainTask:
    """Prompts of ``length`` tokens, and how much of what follows is in them."""

    name: str
    length: int = 160
    tokens: int = 128
    temperature: float = 0.0

    def prompts(self, directory: Path, count: int, skipped: int = 0) -> list[list[int]]:
        """Token ids of ``count`` prompts after the first ``skipped``, for the model in ``directory``."""
        vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
        after = successors(vocabulary)
        return [self._prompt(after, random.Random(f"{self.name} {skipped + place}")) for place in range(count)]

    def _prompt(self, after: Sequence[int], drawn: random.Random) -> list[int]:
        answer = [drawn.choice([token for token, following in enumerate(after) if token != following])]
        while len(answer) < self.length:
            answer.append(after[answer[-1]])
        asked, begin = answer[:2], answer[2:]
        if self.name == "edits":
            begin = [drawn.randrange(len(after)) if drawn.random() < _EDIT else token for token in begin]
        elif self.name == "summaries":
            phrases = [begin[place : place + _PHRASE] for place in range(0, len(begin), _PHRASE)]
            drawn.shuffle(phrases)
            begin = [token for phrase in phrases for token in phrase]
        elif self.name == "stories":
            begin = [drawn.randrange(len(after)) for _ in begin]
        return [*asked, *begin, *asked]


TASKS = tuple(ChainTask(name) for name in ("copies", "edits", "summaries", "stories"))
