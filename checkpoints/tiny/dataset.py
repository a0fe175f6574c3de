"""Documents as batches of tokens: rendered, encoded, masked, and laid side by side, a document a row.

A document never shares a row with another, so nothing but itself is there to attend to. Documents of like length share
a group of rows, which leaves little padding; being at the ends of causal rows, padding needs no mask. Chats learn only
what the assistant says; plain text learns every token.
"""

from collections.abc import Callable, Iterator
from itertools import count
from random import Random

import torch
from corpus import Document
from tokenization import END_OF_TEXT, TURN_END, TURN_START, render, token_id
from torch import Tensor
from transformers import PreTrainedTokenizerFast

IGNORED = -100  # cross_entropy's ignore_index
CHUNK = 2000  # documents that are sorted by length together

Encoded = tuple[list[int], list[int]]


def groups(
    tokenizer: PreTrainedTokenizerFast, make: Callable[[int], Document], order: Random, *, tokens: int, longest: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens, labels), each int64 [rows, length] of at most `tokens` elements.

    The documents are `make`'s, from 0 on; those of more than `longest` tokens are left out, so `longest` must be at
    most `tokens`. `order` shuffles what is sorted by length. A label is −100 where nothing is learnt.
    """
    padding = token_id(tokenizer, END_OF_TEXT)
    for start in count(0, CHUNK):
        encoded = _encode(tokenizer, [make(i) for i in range(start, start + CHUNK)])
        fitting = sorted((e for e in encoded if len(e[0]) <= longest), key=lambda e: len(e[0]))
        cut = list(_cut(fitting, tokens))
        order.shuffle(cut)
        for group in cut:
            length = len(group[-1][0])
            yield (
                torch.tensor([document + [padding] * (length - len(document)) for document, _ in group]),
                torch.tensor([labels + [IGNORED] * (length - len(labels)) for _, labels in group]),
            )


def _cut(documents: list[Encoded], tokens: int) -> Iterator[list[Encoded]]:
    """Consecutive documents in groups that have at most `tokens` elements once padded; the last few are left out."""
    group: list[Encoded] = []
    for document in documents:
        if group and (len(group) + 1) * len(document[0]) > tokens:
            yield group
            group = []
        group.append(document)


def _encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[Encoded]:
    """Each document's tokens and labels."""
    encoded = tokenizer([render(tokenizer, d) for d in documents], add_special_tokens=False)["input_ids"]
    return [
        (tokens, list(tokens) if source.text is not None else _assistant_only(tokenizer, tokens))
        for source, tokens in zip(documents, encoded, strict=True)
    ]


def _assistant_only(tokenizer: PreTrainedTokenizerFast, tokens: list[int]) -> list[int]:
    """The labels of a chat: what the assistant says and the end of its turn."""
    start = token_id(tokenizer, TURN_START)
    end = token_id(tokenizer, TURN_END)
    header = tokenizer.encode("assistant\n", add_special_tokens=False)
    labels = [IGNORED] * len(tokens)
    position = 0
    while position < len(tokens):
        said = position + 1 + len(header)
        if tokens[position] == start and tokens[position + 1 : said] == header:
            position = tokens.index(end, said) + 1
            labels[said:position] = tokens[said:position]
        else:
            position += 1
    return labels
