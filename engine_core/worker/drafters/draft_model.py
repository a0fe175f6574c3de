"""``draft_model``: a small model of the same vocabulary drafts, token by token, with weights and a cache of its own.

Its cache follows the target's tokens by catching up: what it has not seen yet it computes when drafts are wanted, in
steps no larger than the target's. So it starts from nothing after a preemption, or where a request is resumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from engine_core.config import ModelConfig
from engine_core.errors import CheckpointError, ConfigError, OutOfMemoryError
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.loader import load_weights, make_model, model_outline
from engine_core.model_loader.vocabulary import vocabulary_difference
from engine_core.models.language_model import LanguageModel
from engine_core.platforms.base import Platform
from engine_core.platforms.kv_cache_size import size
from engine_core.platforms.selector import choose_platform
from engine_core.sampling.sampler import Sampler
from engine_core.speculation import SpeculativeConfig
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.drafters.draft_cache import DraftCache, DraftRows, draft_cache_spec
from engine_core.worker.drafters.drawer import Drawer, FittedHead
from engine_core.worker.drafters.registry import Target
from engine_core.worker.input_batch import BatchLimits, InputBatch, StepInputs
from engine_core.worker.unsound_part import first_unsound_part

Counts = npt.NDArray[np.int64]


def load_drafter(
    config: SpeculativeConfig, target: Target, on_progress: Callable[[int, int], None]
) -> DraftModelDrafter:
    """As ``registry.LoadDrafter``."""
    try:
        return _load(config, target, on_progress)
    except CheckpointError as error:
        raise _other_model(target, f"one that can be used: {error}") from error


def _load(config: SpeculativeConfig, target: Target, on_progress: Callable[[int, int], None]) -> DraftModelDrafter:
    checkpoint = _open(config, target)
    limits = replace(
        target.limits,
        max_model_len=checkpoint.spec.max_model_len,
        kv_cache_groups=checkpoint.config.groups_of(checkpoint.config.caching_layers),
        keeps_states=False,
        num_speculative_tokens=0,
        vision=None,
    )
    options = target.config.device
    device = choose_platform(replace(options, attention_backend=None), checkpoint, limits)
    model = make_model(checkpoint, device.attention, device.ops, device.torch_device, device.quantization)
    _require_room(model, target)
    load_weights(model, checkpoint, device.torch_device, on_progress)
    if (part := first_unsound_part(model, device.attention, limits, device.torch_device)) is not None:
        raise CheckpointError(f"{checkpoint.path} is damaged: {part} puts out NaN")
    return DraftModelDrafter(model, device, limits, target.limits.max_model_len, target.model.vocab_size)


def drafting_model(config: SpeculativeConfig, target: ModelConfig) -> ModelConfig:
    """How the drafting checkpoint is read, for the ``target`` that is read so."""
    assert config.model is not None  # this method needs it
    return ModelConfig(
        config.model,
        revision=config.revision,
        download_dir=target.download_dir,
        dtype=target.dtype,
        language_model_only=True,
        seed=target.seed,
    )


def _open(config: SpeculativeConfig, target: Target) -> Checkpoint:
    """The drafting checkpoint. Raises ``ConfigError`` where it does not fit the target, ``CheckpointError``."""
    named = drafting_model(config, target.config.model)
    checkpoint = open_checkpoint(named, target.config.load)
    longest = target.limits.max_model_len
    if checkpoint.spec.max_model_len > longest:
        checkpoint = open_checkpoint(replace(named, max_model_len=longest), target.config.load)
    if checkpoint.config.keeps_states:
        states = f"{checkpoint.spec.architecture} keeps states, which cannot be taken back when a draft is rejected"
        raise _other_model(target, f"one whose layers all attend; {states}")
    if not target.limits.kv_cache_groups:
        nothing = "the target has no KV cache, by whose blocks the drafts' are counted"
        given = target.config.scheduler.speculative_config
        raise ConfigError("speculative_config", given, f"no draft_model; {nothing}")
    own, its = (model_outline(each).num_weights for each in (checkpoint, target.checkpoint))
    if own > its:
        counts = f"{config.model} has {own:,} weights, the target {its:,}"
        raise _other_model(target, f"one no larger than the target; {counts}")
    _require_same_vocabulary(named, checkpoint, target)
    return checkpoint


def _require_same_vocabulary(named: ModelConfig, checkpoint: Checkpoint, target: Target) -> None:
    sizes = checkpoint.spec.vocab_size, target.checkpoint.spec.vocab_size
    difference = vocabulary_difference((named, target.config.model), sizes)
    if difference is not None:
        raise _other_model(target, f"one with the target's vocabulary; {difference}")


def _other_model(target: Target, accepted: str) -> ConfigError:
    return ConfigError("speculative_config", target.config.scheduler.speculative_config, f"as model {accepted}")


def _require_room(model: LanguageModel, target: Target) -> None:
    wanted, taken, usable = model.expected_weight_bytes, target.model.weight_bytes, target.device.usable
    if wanted + taken > usable:
        raise OutOfMemoryError(
            f"the drafting model's weights take {size(wanted)}, and the target's {size(taken)}, but this process may "
            f"use {size(usable)}. Give it more memory, or choose a smaller model in --speculative-config."
        )


class DraftModelDrafter(Drafter):
    """Keeps, besides its cache, which drafts of a slot it has computed: some may turn out to be wrong."""

    def __init__(
        self, model: LanguageModel, device: Platform, limits: BatchLimits, max_model_len: int, vocab_size: int
    ) -> None:
        """``limits``: of the steps of ``model``. The target has ``max_model_len`` and ``vocab_size``."""
        self._model = model
        self._device = device
        self._limits = limits
        self._longest = max_model_len
        self._vocab_size = vocab_size
        self._spec = draft_cache_spec(model, limits.block_size)
        self._forward = device.make_forward(model)
        self._computed_drafts: dict[int, tuple[int, list[int]]] = {}
        """By slot: the position of the first draft whose keys and values are in the cache, and these drafts."""
        self._cache: DraftCache
        self._batch: InputBatch
        self._drawer: Drawer

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    @property
    def bytes_per_block(self) -> int:
        return self._device.attention.bytes_per_block(self._spec)

    def allocate(self, num_blocks: int, batch: InputBatch, sampler: Sampler) -> None:
        limits = self._limits
        self._cache = DraftCache(
            self._spec,
            self._device.attention,
            self._device.torch_device,
            num_blocks=num_blocks,
            num_slots=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
            num_groups=len(limits.kv_cache_groups),
        )
        self._batch = batch
        fits = self._model.vocab_size == self._vocab_size
        self._drawer = Drawer(batch, sampler, self._forward if fits else FittedHead(self._forward, self._vocab_size))

    def rehearse(self, batch: InputBatch, sampler: Sampler) -> None:
        """One layer of each kind takes as much as all of them."""
        DraftModelDrafter(
            self._model.one_layer_of_each_kind(), self._device, self._limits, self._longest, self._vocab_size
        )._compute_largest(batch, sampler)

    def _compute_largest(self, batch: InputBatch, sampler: Sampler) -> None:
        """Catch up with as many tokens as may be, in block 0, and draw for all slots."""
        self.allocate(1, batch, sampler)
        limits = self._limits
        seqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)
        counts, left = np.ones(seqs, np.int64), limits.max_num_batched_tokens - seqs
        for slot in range(seqs):
            more = min(left, limits.max_model_len - 2)
            counts[slot] += more
            left -= more
        rows = self._cache.rows(np.arange(seqs), counts)
        self._drawer.draw(rows.slots, 0, self._compute(rows, rows.last_rows))

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        ready, hidden = self._catch_up(wanted)
        if hidden is None:
            return {}
        drafts: dict[int, list[int]] = {slot: [] for slot in ready}
        slots, counts = np.array([*ready], np.intp), np.array([*ready.values()])
        for drawn in range(int(counts.max())):
            if drawn:
                hidden = self._compute(self._cache.rows(slots, np.ones(len(slots), np.int64)))
            for slot, draft in zip(slots.tolist(), self._drawer.draw(slots, drawn, hidden).tolist(), strict=True):
                drafts[slot].append(draft)
            more = counts > drawn + 1
            slots, counts = slots[more], counts[more]
        for slot, each in drafts.items():
            self._computed_drafts[slot] = len(self._batch.known_token_ids(slot)), each[:-1]
        return drafts

    def forget(self, slot: int) -> None:
        self._computed_drafts.pop(slot, None)
        self._cache.forget(slot)

    def _catch_up(self, wanted: Mapping[int, int]) -> tuple[dict[int, int], torch.Tensor | None]:
        """Compute known tokens of the slots in ``wanted``, those that lack fewest first, as many as a step may have.

        Returns the slots that lack none and how many drafts there will be of each, with the hidden states behind their
        last tokens [S, H], or None without any such slot.
        """
        for slot in wanted:
            self._drop_wrong_drafts(slot)
        lacking = {
            slot: len(self._batch.known_token_ids(slot)) - int(self._cache.num_computed[slot]) for slot in wanted
        }
        left = self._limits.max_num_batched_tokens
        counts: dict[int, int] = {}
        ready: dict[int, int] = {}
        for slot in sorted(lacking, key=lacking.__getitem__):
            known, count = len(self._batch.known_token_ids(slot)), min(lacking[slot], left)
            drafts = self._most_drafts(known, wanted[slot])
            length = known + drafts - 1 if count == lacking[slot] else known - lacking[slot] + count
            if not count or drafts < 1 or not self._cache.grow(slot, length):
                continue
            left -= count
            counts[slot] = count
            if count == lacking[slot]:
                ready[slot] = drafts
        if not counts:
            return {}, None
        rows = self._cache.rows(np.array([*counts], np.intp), np.array([*counts.values()]))
        last = rows.last_rows[[slot in ready for slot in counts]]
        hidden = self._compute(rows, last if len(last) else rows.last_rows[:1])
        return ready, hidden if ready else None

    def _most_drafts(self, known: int, wanted: int) -> int:
        """Of a sequence with ``known`` tokens: the target's last token is sampled, and its last but one computed; and
        this model computes no token beyond its own length.
        """
        return min(wanted, self._longest - 1 - known, self._limits.max_model_len - known + 1)

    def _drop_wrong_drafts(self, slot: int) -> None:
        """Keep of the drafts computed only those that the sequence went on with, and nothing of its last token, behind
        which hidden states are needed.
        """
        known = self._batch.known_token_ids(slot)
        first, drafts = self._computed_drafts.pop(slot, (0, []))
        followed = known[first : first + len(drafts)].tolist()
        right = next((at for at, token in enumerate(followed) if token != drafts[at]), len(followed))
        length = len(known) - 1
        self._cache.truncate(slot, min(length, first + right) if drafts else length)

    def _compute(self, rows: DraftRows, wanted: Counts | None = None) -> torch.Tensor:
        """Hidden states of the ``wanted`` rows, or of all; the tokens are in the batch."""
        token_ids = self._batch.token_ids[rows.row_slots, rows.positions].astype(np.int64)
        if self._model.vocab_size < self._vocab_size:
            np.minimum(token_ids, self._model.vocab_size - 1, out=token_ids)
        inputs = _step_inputs(rows, token_ids, self._batch)
        hidden = self._forward(inputs, self._cache.caches, None, wanted)
        self._cache.advance(rows)
        return hidden


def _step_inputs(rows: DraftRows, token_ids: Counts, batch: InputBatch) -> StepInputs:
    """``rows`` with their ``token_ids`` [T] as a step of which every sequence's last row samples."""
    none = np.zeros(len(rows.slots), np.int64)
    return StepInputs(
        input_ids=torch.from_numpy(token_ids),
        positions=torch.from_numpy(rows.positions),
        metadata=rows.metadata,
        state_metadata=None,
        slots=rows.slots,
        first_positions=rows.first_positions,
        lengths=rows.lengths,
        query_starts=rows.query_starts,
        num_drafts=None,
        sampled=np.arange(len(rows.slots)),
        sampled_rows=rows.last_rows,
        sampling_rows=batch.rows_behind(rows.slots, none),
        introductions=0,
    )
