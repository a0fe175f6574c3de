"""Documents as rows of tokens: rendered, encoded, masked and packed.

Whole documents are packed into rows of one length, best fit first, so that every row starts with a document, as a
prompt does. Chats learn only what the assistant says; plain text learns every token.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import torch
from corpus import document
from tokenization import END_OF_TEXT, TURN_END, TURN_START, render, token_id
from torch import Tensor
from transformers import PreTrainedTokenizerFast

IGNORED = -100  # cross_entropy's ignore_index
OPEN_ROWS = 64
CHUNK = 2000


@dataclass
class _Row:
    """A row that is being filled."""

    tokens: list[int]
    labels: list[int]


def rows(
    tokenizer: PreTrainedTokenizerFast, seed: int, first_document: int, length: int
) -> Iterator[tuple[list[int], list[int]]]:
    """Endless rows of `length` tokens and their labels (−100 where nothing is learnt), in order."""
    open_rows: list[_Row] = []
    padding = token_id(tokenizer, END_OF_TEXT)
    for tokens, labels in _encoded(tokenizer, seed, first_document):
        fitting = [row for row in open_rows if len(row.tokens) + len(tokens) <= length]
        if fitting:
            row = max(fitting, key=lambda row: len(row.tokens))
            row.tokens += tokens
            row.labels += labels
        elif len(tokens) <= length:
            open_rows.append(_Row(list(tokens), list(labels)))
        if len(open_rows) > OPEN_ROWS:
            fullest = max(open_rows, key=lambda row: len(row.tokens))
            open_rows.remove(fullest)
            missing = length - len(fullest.tokens)
            yield fullest.tokens + [padding] * missing, fullest.labels + [IGNORED] * missing


def batches(
    tokenizer: PreTrainedTokenizerFast, seed: int, first_document: int, *, batch: int, length: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (tokens, labels), each int64 [batch, length]."""
    source = rows(tokenizer, seed, first_document, length)
    while True:
        drawn = [next(source) for _ in range(batch)]
        yield torch.tensor([tokens for tokens, _ in drawn]), torch.tensor([labels for _, labels in drawn])


def _encoded(tokenizer: PreTrainedTokenizerFast, seed: int, first: int) -> Iterator[tuple[list[int], list[int]]]:
    """Each document's tokens and labels, encoded many at a time."""
    for start in count(first, CHUNK):
        documents = [document(seed, i) for i in range(start, start + CHUNK)]
        encoded = tokenizer([render(tokenizer, d) for d in documents], add_special_tokens=False)["input_ids"]
        for source, tokens in zip(documents, encoded, strict=True):
            yield tokens, list(tokens) if source.text is not None else _assistant_only(tokenizer, tokens)


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
