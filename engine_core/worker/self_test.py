"""A test at start-up: with this processor and the loaded layers, a row's result does not depend on its step.

So a request can continue on another engine with exactly the same tokens. Native kernels ensure this by construction;
the test finds faults of a compiler or an untested processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.forward_context import ForwardContext
from engine_core.models.language_model import LanguageModel
from engine_core.worker.input_batch import BatchLimits

_LENGTHS = (37, 1, 6)
"""Tokens of each sequence, if the model takes as many: more than a block, a single one, a few."""

Step = Sequence[tuple[int, int]]
"""Sequences of a step, and the number of next tokens that it computes of each."""


@torch.inference_mode()
def is_bitwise_stable(
    model: LanguageModel, attention: AttentionBackend, limits: BatchLimits, device: torch.device
) -> bool:
    """Whether logits (hidden states if the model has no head) have the same bits however sequences share steps or are
    chunked, and with one thread or all.

    Pass a model cut to one layer of each kind.
    """
    lengths = [min(length, limits.max_model_len) for length in _LENGTHS]

    def logits(steps: Sequence[Step]) -> torch.Tensor:
        return _logits(model, attention, limits.block_size, device, lengths, steps)

    together = logits([list(enumerate(lengths))])
    if not _equal(together, logits(_in_parts(lengths))):
        return False
    with _one_thread():
        return _equal(together, logits(_alone(lengths)))


def _alone(lengths: Sequence[int]) -> Sequence[Step]:
    """One sequence after the other, the single token first: what layers capture for it must hold for many rows."""
    return [[(sequence, length)] for sequence, length in sorted(enumerate(lengths), key=lambda work: work[1])]


def _in_parts(lengths: Sequence[int]) -> Sequence[Step]:
    """Prompts in chunks, then a token of each sequence, as in decoding."""
    rest, _, few = (length - 1 for length in lengths)
    chunk = -(-rest * 5 // 9)
    parts = [[(2, few), (0, chunk)], [(0, rest - chunk)], [(0, 1), (1, 1), (2, 1)]]
    return [step for part in parts if (step := [(sequence, count) for sequence, count in part if count])]


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether finite and infinite values are exactly equal; all NaNs are equal."""
    return torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def _logits(
    model: LanguageModel,
    attention: AttentionBackend,
    block_size: int,
    device: torch.device,
    lengths: Sequence[int],
    steps: Sequence[Step],
) -> torch.Tensor:
    """Logits [all tokens, V] of the sequences, one after the other, computed in ``steps`` on a new cache."""
    blocks, num_groups = [-(-length // block_size) for length in lengths], len(model.kv_cache_groups)
    caches = attention.allocate(model.kv_cache_spec(block_size), num_groups * sum(blocks), device)
    own = torch.split(torch.arange(num_groups * sum(blocks), dtype=torch.int32), blocks * num_groups)
    tables = torch.nn.utils.rnn.pad_sequence(list(own), batch_first=True).view(num_groups, len(blocks), -1)
    tokens = [(torch.arange(length) * 7919 + 31 * place) % model.vocab_size for place, length in enumerate(lengths)]
    computed = [0] * len(lengths)
    logits: list[list[torch.Tensor]] = [[] for _ in lengths]
    for step in steps:
        sequences, counts = [sequence for sequence, _ in step], [count for _, count in step]
        ranges = [torch.arange(computed[sequence], computed[sequence] + count) for sequence, count in step]
        for sequence, count in step:
            computed[sequence] += count
        done = [computed[sequence] for sequence in sequences]
        metadata = [
            AttentionMetadata.of_sequences(done, counts, of_group[sequences], block_size, group).on(device)
            for group, of_group in enumerate(tables)
        ]
        ids = torch.cat([tokens[sequence][places] for sequence, places in zip(sequences, ranges, strict=True)])
        hidden = model.forward(ids.to(device), torch.cat(ranges).to(device), ForwardContext(caches, metadata))
        # A stage before the last returns memory that it reuses.
        rows = model.compute_logits(hidden) if model.has_head else hidden.clone()
        for sequence, part in zip(sequences, torch.split(rows, counts), strict=True):
            logits[sequence].append(part)
    return torch.cat([part for sequence in logits for part in sequence])


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
