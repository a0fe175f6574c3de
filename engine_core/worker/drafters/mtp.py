"""Drafts by the layer for multi-token prediction in the target's own checkpoint (``models.mtp``).

The layer reads the target's final hidden states, so it follows the target from step to step: ``observe`` computes its
rows for the chunks of a prompt, and keeps the hidden states of tokens whose successors are not known yet; ``propose``
computes the rows for what was sampled since, and goes on from there by the layer's own outputs.

What was not observed (a prefix found in the cache, pictures, steps of a full batch) is missing in the layer's cache,
which then begins later: drafts get worse, and tokens stay the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import torch

from engine_core.async_copy import upload
from engine_core.errors import ConfigError
from engine_core.forward_context import ForwardContext
from engine_core.layers.part_factory import PartFactory
from engine_core.model_loader.loader import further_weights, stored_names
from engine_core.models.causal_lm import CausalLM
from engine_core.models.mtp import MultiTokenPredictor, mtp_config, mtp_names
from engine_core.platforms.kv_cache_size import require_room_for_weights
from engine_core.sampling.sampler import Sampler
from engine_core.speculation import SpeculativeConfig
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.drafters.draft_cache import Counts, DraftCache, Index
from engine_core.worker.drafters.drawer import Drawer
from engine_core.worker.drafters.registry import Target
from engine_core.worker.input_batch import InputBatch, StepInputs

_MOST_WAITING = 16
"""Hidden states of a sequence that wait for drafts to be asked for, before the layer's rows are computed."""


def load_drafter(config: SpeculativeConfig, target: Target, on_progress: Callable[[int, int], None]) -> MtpDrafter:
    """As ``registry.LoadDrafter``."""
    checkpoint, device, model = target.checkpoint, target.device, target.model

    def refused(reason: str) -> ConfigError:
        return ConfigError(
            "speculative_config", target.config.scheduler.speculative_config, f"another method: {reason}"
        )

    if not isinstance(model, CausalLM) or (names := mtp_names(model)) is None:
        raise refused(f"{checkpoint.choice.architecture} has no such layer, or none that is known")
    if checkpoint.is_gguf:
        raise refused("such layers are not read from GGUF files")
    is_dummy = checkpoint.load_format == "dummy"
    stored = set[str]() if is_dummy else stored_names(checkpoint)
    if not is_dummy and names.witness not in stored:
        raise refused(f"{checkpoint.path} is without such a layer (no {names.witness})")
    config_of_layer = mtp_config(model.config, names, stored)
    parts = PartFactory(device.ops, device.attention, checkpoint.dtype, device.torch_device, device.quantization)
    has_shares = target.config.parallel.tensor_parallel_size > 1
    predictor = MultiTokenPredictor(config_of_layer, names, parts, model, has_shares=has_shares)
    kept_as = f"{checkpoint.kept_as}, with the layer for --speculative-config"
    require_room_for_weights(model.weight_bytes + predictor.expected_weight_bytes, kept_as, device.usable, device.limit)
    predictor.load(further_weights(checkpoint, predictor.tensors(), device.torch_device, on_progress))
    return MtpDrafter(predictor, target, config.num_speculative_tokens)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Hidden states of a slot that the layer has not read yet."""

    first: int
    """The position of the first."""
    hidden: torch.Tensor
    """[n, H]"""

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.first + len(self.hidden)

    def since(self, first: int) -> _Waiting:
        """Those from the position ``first`` on."""
        return _Waiting(first, self.hidden[first - self.first :])


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Rows of the layer for successive tokens of a slot, the next ones that its cache has to hold."""

    slot: int
    previous: torch.Tensor
    """[n, H]: the hidden state before each of them."""


class MtpDrafter(Drafter):
    """Its positions are those of the tokens that the layer's rows take: 1 and later."""

    def __init__(self, predictor: MultiTokenPredictor, target: Target, num_drafts: int) -> None:
        """``num_drafts``: the most of a sequence and step."""
        limits = target.limits
        self._most_kept = _MOST_WAITING + 1 + max(num_drafts, limits.num_speculative_tokens)
        """Hidden states of a sequence that are kept between steps."""
        self.predictor = predictor
        self._attention = target.device.attention
        self._device = target.device.torch_device
        self._limits = limits
        self._spec = predictor.kv_cache_spec(limits.block_size)
        self._waiting: dict[int, _Waiting] = {}
        """By slot; the first one's successor is the next token that the slot's cache has to hold."""
        self._shifts = np.zeros(limits.max_num_seqs, np.int64)
        """[slots]: what is added to a token's position before it is rotated, because of pictures in front of it."""
        self._cache: DraftCache
        self._batch: InputBatch
        self._drawer: Drawer

    @property
    def weight_bytes(self) -> int:
        return self.predictor.weight_bytes

    @property
    def bytes_per_block(self) -> int:
        return self._attention.bytes_per_block(self._spec)

    @property
    def kept_bytes(self) -> int:
        return self._limits.max_num_seqs * self._most_kept * self.predictor.hidden_width * self.predictor.dtype.itemsize

    def allocate(self, num_blocks: int, batch: InputBatch, sampler: Sampler) -> None:
        limits = self._limits
        self._cache = DraftCache(
            self._spec,
            self._attention,
            self._device,
            num_blocks=num_blocks,
            num_slots=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
        )
        self._batch = batch
        self._drawer = Drawer(batch, sampler, self.predictor)

    def rehearse(self, batch: InputBatch, sampler: Sampler) -> None:
        """As many rows as may be, in block 0."""
        self.allocate(1, batch, sampler)
        limits, model = self._limits, self.predictor
        seqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        counts, left = np.ones(seqs, np.int64), limits.max_num_batched_tokens - seqs
        for slot in range(seqs):
            counts[slot] += min(left, limits.max_model_len - 2)
            left -= int(counts[slot]) - 1
        previous = torch.zeros(int(counts.sum()), model.hidden_width, dtype=model.dtype, device=self._device)
        hidden = self._compute(np.arange(seqs), counts, previous)
        self._drawer.draw(np.arange(seqs), 0, hidden)

    def observe(self, inputs: StepInputs, hidden: torch.Tensor) -> None:
        is_small = len(hidden) <= self._limits.max_num_seqs
        if is_small:  # one copy, instead of one for each sequence
            hidden = hidden.clone()
        self._shifts[inputs.slots] = inputs.positions.numpy()[inputs.query_starts[1:] - 1] - (inputs.lengths - 1)
        chunks: list[_Chunk] = []
        for place, slot in enumerate(inputs.slots.tolist()):
            rows = range(*inputs.query_starts[place : place + 2].tolist())
            waiting = self._with_rows(slot, int(inputs.first_positions[place]), hidden[rows.start : rows.stop])
            if inputs.spans:
                waiting = self._behind_pictures(slot, waiting, rows, inputs)
            known = _known_until(inputs, place)
            if len(waiting.hidden) > _MOST_WAITING and known - 1 > waiting.first:
                chunks += self._chunk(slot, waiting, known)
                waiting = waiting.since(known - 1)
            self._waiting[slot] = waiting
        if chunks:
            self._read(chunks)
        if not is_small:
            for slot in inputs.slots.tolist():
                waiting = self._waiting[slot]
                self._waiting[slot] = _Waiting(waiting.first, waiting.hidden.clone())

    def _with_rows(self, slot: int, first: int, hidden: torch.Tensor) -> _Waiting:
        """What waits with ``hidden`` [n, H], the states from the position ``first`` on, computed just now.

        Older ones from there on were of drafts that were rejected. If some are missing in between, the cache begins
        anew.
        """
        waiting = self._waiting.get(slot)
        if waiting is not None and waiting.first < first <= waiting.end:
            return _Waiting(waiting.first, torch.cat([waiting.hidden[: first - waiting.first], hidden]))
        if int(self._cache.num_computed[slot]) != first + 1:
            self._cache.begin(slot, first + 1)
        return _Waiting(first, hidden)

    def _behind_pictures(self, slot: int, waiting: _Waiting, rows: range, inputs: StepInputs) -> _Waiting:
        """What remains of ``waiting`` where ``rows`` of the step have pictures.

        The layer takes embeddings of tokens, which those of pictures lack, so the cache begins anew behind them.
        """
        ends = [span.first_row + span.count for span in inputs.spans if span.first_row in rows]
        if not ends:
            return waiting
        last = waiting.end - 1 - (rows.stop - ends[-1])
        self._cache.begin(slot, last + 1)
        return waiting.since(last)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        counts: dict[int, int] = {}
        chunks: list[_Chunk] = []
        for slot, most in wanted.items():
            length, waiting = len(self._batch.known_token_ids(slot)), self._waiting.get(slot)
            # No token may be drafted behind which the target could not sample any more.
            count = min(most, self._limits.max_model_len - 1 - length)
            if waiting is not None and count > 0 and waiting.first < length - 1 <= waiting.end:
                del self._waiting[slot]
                chunk = self._chunk(slot, waiting, length, count - 1)
                chunks += chunk
                counts |= {each.slot: count for each in chunk}
        if not chunks:
            return {}
        hidden = self._read(chunks)
        drafts = self._draw(counts, hidden)
        for slot in drafts:  # the rows of drafts are made anew, from the target's own hidden states
            self._cache.truncate(slot, len(self._batch.known_token_ids(slot)))
        return drafts

    def forget(self, slot: int) -> None:
        self._waiting.pop(slot, None)
        self._cache.forget(slot)

    def _draw(self, counts: Mapping[int, int], hidden: torch.Tensor) -> dict[int, list[int]]:
        """So many drafts as in ``counts`` by slot; ``hidden`` [S, H] is the layer's output for the newest tokens."""
        drafts: dict[int, list[int]] = {slot: [] for slot in counts}
        slots, left, drawn = np.array([*counts], np.intp), np.array([*counts.values()]), 0
        while True:
            for slot, draft in zip(slots.tolist(), self._drawer.draw(slots, drawn, hidden).tolist(), strict=True):
                drafts[slot].append(draft)
            drawn += 1
            more = np.flatnonzero(left > drawn)
            if not len(more):
                return drafts
            if len(more) < len(slots):
                slots, left, hidden = slots[more], left[more], hidden[upload([more], self._device)[0]]
            hidden = self._compute(slots, np.ones(len(slots), np.int64), hidden)

    def _chunk(self, slot: int, waiting: _Waiting, length: int, drafts: int = 0) -> list[_Chunk]:
        """The rows for the tokens before the position ``length``, with blocks for these and for ``drafts``; none if
        there are not enough blocks: then the cache begins anew behind them.
        """
        if self._cache.grow(slot, length + drafts):
            return [_Chunk(slot, waiting.hidden[: length - 1 - waiting.first])]
        self._cache.begin(slot, length)
        return []

    def _read(self, chunks: Sequence[_Chunk]) -> torch.Tensor:
        """The layer's output [S, H] for the last row of each of ``chunks``; computed in steps hardly larger than the
        target's.
        """
        outputs: list[torch.Tensor] = []
        most = self._limits.max_num_batched_tokens
        ends = np.cumsum([len(chunk.previous) for chunk in chunks])
        for _, group in groupby(zip(chunks, ends // most, strict=True), key=lambda pair: pair[1]):
            taken = [chunk for chunk, _ in group]
            slots, counts = np.array([each.slot for each in taken]), np.array([len(each.previous) for each in taken])
            outputs.append(self._compute(slots, counts, torch.cat([each.previous for each in taken])))
            if len(taken) < len(chunks):
                outputs[-1] = outputs[-1].clone()
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]

    def _compute(self, slots: Index, counts: Counts, previous: torch.Tensor) -> torch.Tensor:
        """The layer's output [S, H] for the last of the next ``counts`` tokens of ``slots``; valid until the next call.

        ``previous`` [T, H]: the hidden state before each of the tokens, which are in the batch.
        """
        rows = self._cache.rows(slots, counts)
        self._cache.advance(rows)
        token_ids = self._batch.token_ids[rows.row_slots, rows.positions].astype(np.int64)
        positions = rows.positions + self._shifts[rows.row_slots]
        (metadata,) = rows.metadata
        self._attention.plan(metadata)
        of_sequences = [metadata.query_starts, metadata.seq_lens, metadata.block_tables, metadata.slot_mapping]
        arrays = [token_ids, positions, rows.last_rows, *(each.numpy() for each in of_sequences)]
        ids, places, wanted, starts, lengths, tables, kept_in = upload(arrays, self._device)
        metadata = replace(metadata, query_starts=starts, seq_lens=lengths, block_tables=tables, slot_mapping=kept_in)
        context = ForwardContext(self._cache.caches.kv, [metadata], wanted)
        return self.predictor.forward(ids, places, previous, context)


def _known_until(inputs: StepInputs, place: int) -> int:
    """The position behind the last token of the sequence at ``place`` that will certainly not be rolled back, and that
    the host knows: a single row may be of a token that the previous step samples.
    """
    first, length = int(inputs.first_positions[place]), int(inputs.lengths[place])
    own = length - first - (0 if inputs.num_drafts is None else int(inputs.num_drafts[place]))
    return first + (own if own > 1 else 0)
