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
from engine_core.kv_cache_interface import NO_STATE
from engine_core.models.language_model import LanguageModel
from engine_core.models.vision_model import VisionModel
from engine_core.states.base import StateMetadata
from engine_core.worker.caches import allocate_caches
from engine_core.worker.input_batch import BatchLimits

_LENGTHS = (37, 1, 6)
"""Tokens of each sequence, if the model takes as many: more than a block, a single one, a few."""
_PICTURE_TOKENS = 16
"""Of the picture that is encoded, if there are such small ones."""

Step = Sequence[tuple[int, int, int]]
"""Sequences of a step, and for each the first of the tokens that it computes, and the end after the last."""


@torch.inference_mode()
def is_bitwise_stable(
    model: LanguageModel, attention: AttentionBackend, limits: BatchLimits, device: torch.device
) -> bool:
    """Whether logits (hidden states if the model has no head) have the same bits however sequences share steps or are
    chunked (if the model allows that), and with one thread or all.

    Pass a model cut to one layer of each kind.
    """
    lengths = [min(length, limits.max_model_len) for length in _LENGTHS]

    def logits(steps: Sequence[Step]) -> torch.Tensor:
        return _logits(model, attention, limits.block_size, device, lengths, steps)

    together = logits([[(sequence, 0, length) for sequence, length in enumerate(lengths)]])
    if not limits.attends_both_ways and not _equal(
        together, logits(_in_parts(lengths, goes_back=model.state_cache_spec is not None))
    ):
        return False
    with _one_thread():
        return _equal(together, logits(_alone(lengths)))


@torch.inference_mode()
def is_encoding_stable(vision: VisionModel) -> bool:
    """Whether a small picture's embeddings have the same bits with one thread or all."""
    picture = vision.example(_PICTURE_TOKENS)
    together = vision.encode(picture)
    with _one_thread():
        alone = vision.encode(picture)
    stable = _equal(together.embeddings, alone.embeddings)
    if together.deepstack is not None and alone.deepstack is not None:
        stable &= _equal(together.deepstack, alone.deepstack)
    return stable


def _alone(lengths: Sequence[int]) -> Sequence[Step]:
    """One sequence after the other, the single token first: what layers capture for it must hold for many rows."""
    return [[(sequence, 0, length)] for sequence, length in sorted(enumerate(lengths), key=lambda work: work[1])]


def _in_parts(lengths: Sequence[int], *, goes_back: bool) -> Sequence[Step]:
    """Prompts in chunks, then a token of each sequence, as in decoding.

    ``goes_back``: the second chunk begins within the first, at a state that is saved there, as after rejected drafts.
    """
    rest, _, few = (length - 1 for length in lengths)
    chunk = -(-rest * 5 // 9)
    again = chunk // 2 if goes_back else chunk
    parts = [[(2, 0, few), (0, 0, chunk)], [(0, again, rest)], [(0, rest, rest + 1), (1, 0, 1), (2, few, few + 1)]]
    return [step for part in parts if (step := [work for work in part if work[1] < work[2]])]


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
    """Logits [all tokens, V] of the sequences, one after the other, computed in ``steps`` on new caches."""
    blocks, num_groups = [-(-length // block_size) for length in lengths], len(model.kv_cache_groups)
    num_blocks, (states, num_states) = num_groups * sum(blocks), _states_of(steps)
    caches = allocate_caches(model, attention, block_size, device, num_blocks=num_blocks, num_states=num_states)
    tables = list[torch.Tensor]()
    if num_groups:
        own = torch.split(torch.arange(num_blocks, dtype=torch.int32), blocks * num_groups)
        tables = list(torch.nn.utils.rnn.pad_sequence(list(own), batch_first=True).view(num_groups, len(blocks), -1))
    tokens = [(torch.arange(length) * 7919 + 31 * place) % model.vocab_size for place, length in enumerate(lengths)]
    logits: list[dict[int, torch.Tensor]] = [{} for _ in lengths]
    for step, of_states in zip(steps, states, strict=True):
        sequences, done = [sequence for sequence, _, _ in step], [end for _, _, end in step]
        counts = [end - first for _, first, end in step]
        metadata = [
            AttentionMetadata.of_sequences(done, counts, of_group[sequences], block_size, group).on(device)
            for group, of_group in enumerate(tables)
        ]
        ids = torch.cat([tokens[sequence][first:end] for sequence, first, end in step])
        positions = torch.cat([torch.arange(first, end) for _, first, end in step])
        context = ForwardContext(
            caches.kv, metadata, states=caches.states, state_metadata=of_states.on(device) if caches.states else None
        )
        hidden = model.forward(ids.to(device), positions.to(device), context)
        # A stage before the last returns memory that it reuses.
        rows = model.compute_logits(hidden) if model.has_head and model.pooler is None else hidden.clone()
        for (sequence, first, end), part in zip(step, torch.split(rows, counts), strict=True):
            logits[sequence] |= dict(zip(range(first, end), part, strict=True))
    return torch.stack([row for sequence in logits for _, row in sorted(sequence.items())])


def _states_of(steps: Sequence[Step]) -> tuple[list[StateMetadata], int]:
    """Each step's metadata of states, and the number of slots.

    A state from which no further step begins is overwritten by the next one of its sequence.
    """
    slots: dict[tuple[int, int], int] = {}
    states, count = list[StateMetadata](), 0
    for number, step in enumerate(steps):
        begins = {(sequence, first) for later in steps[number + 1 :] for sequence, first, _ in later}
        sources, targets, saves = list[int](), list[int](), list[list[tuple[int, int]]]()
        for sequence, first, end in step:
            sources.append(slots[sequence, first] if first else NO_STATE)
            within = [place for place in range(first + 1, end) if (sequence, place) in begins]
            slots |= {(sequence, place): count + at for at, place in enumerate(within)}
            saves.append([(place - first, slots[sequence, place]) for place in within])
            count += len(within)
            if first and (sequence, first) not in begins:
                slots[sequence, end] = slots[sequence, first]
            else:
                slots[sequence, end], count = count, count + 1
            targets.append(slots[sequence, end])
        states.append(StateMetadata.of_sequences([end - first for _, first, end in step], sources, targets, saves))
    return states, count


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
