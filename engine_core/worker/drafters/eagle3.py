"""Drafts by an EAGLE-3 head, which reads hidden states of the target.

For each slot the head's cache holds the positions whose next token is known. The rows that the target has computed
behind them are *pending*: their next tokens are drafts or still to be sampled. When drafts are wanted, pending rows go
through the head first. What the head computes of its own drafts is dropped again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import AsyncCopy, upload
from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.forward_context import ForwardContext
from engine_core.layers.part_factory import PartFactory
from engine_core.model_loader.eagle3_head import HeadCheckpoint, load_head, make_head, open_head
from engine_core.model_loader.loader import further_weights, make_model
from engine_core.models.causal_lm import CausalLM
from engine_core.models.eagle3 import Eagle3Head, Embed
from engine_core.platforms.kv_cache_size import require_room_for_weights
from engine_core.sampling.sampler import Sampler
from engine_core.speculation import SpeculativeConfig
from engine_core.worker.drafters.base import Drafter
from engine_core.worker.drafters.draft_cache import DraftCache, draft_cache_spec
from engine_core.worker.drafters.pending_rows import PendingRows, Piece
from engine_core.worker.drafters.registry import Target
from engine_core.worker.drawing import draw
from engine_core.worker.input_batch import Index, InputBatch, StepInputs

LoadProgress = Callable[[int, int], None]

_FEWEST_PENDING = 8
"""So many rows of a slot may be pending, or more if a step may have more drafts; more go through the head at once."""
_MOST_IDLE = 256
"""A sequence is no longer followed after so many rows for which no drafts were wanted."""
_IDS_AT_ONCE = 4096


def tapped_layers(config: SpeculativeConfig, target: Target) -> tuple[int, ...]:
    """As ``registry.tapped_layers``."""
    return _open(config, target).taps


def load_drafter(config: SpeculativeConfig, target: Target, on_progress: LoadProgress) -> Eagle3Drafter:
    """As ``registry.LoadDrafter``."""
    checkpoint = _open(config, target)
    assert isinstance(target.model, CausalLM)
    try:
        head, weight_bytes = _load(checkpoint, target, target.model, on_progress)
    except CheckpointError as error:
        raise _other_head(target, str(error)) from error
    drafter = Eagle3Drafter(head, target, config.num_speculative_tokens, weight_bytes)
    if not drafter.is_sound():
        raise _other_head(target, f"that in {checkpoint.path} is damaged, as it computes no numbers")
    return drafter


def _open(config: SpeculativeConfig, target: Target) -> HeadCheckpoint:
    """The head's checkpoint. Raises ``ConfigError`` if it does not fit, or the target's layers cannot be read."""
    if not isinstance(target.model, CausalLM) or not target.model.gives_taps:
        architecture = target.checkpoint.choice.architecture
        accepted = f"another method: an EAGLE-3 head cannot read the layers of {architecture}"
        raise ConfigError("speculative_config", target.config.scheduler.speculative_config, accepted)
    assert config.model is not None  # as the method needs one
    try:
        return open_head(config.model, config.revision, target.config.model, target.checkpoint.config)
    except (CheckpointError, UnsupportedModelError) as error:
        raise _other_head(target, str(error)) from error


def _other_head(target: Target, problem: str) -> ConfigError:
    accepted = f"an EAGLE-3 head for this model: {problem}"
    return ConfigError("speculative_config", target.config.scheduler.speculative_config, accepted)


def _load(
    checkpoint: HeadCheckpoint, target: Target, model: CausalLM, on_progress: LoadProgress
) -> tuple[Eagle3Head, int]:
    """The head, and the bytes of all weights that were loaded for it."""
    device, max_model_len = target.device, target.limits.max_model_len

    def parts() -> PartFactory:
        return PartFactory(device.ops, device.attention, model.dtype, device.torch_device)

    expected = model.expected_weight_bytes + make_head(checkpoint, parts(), max_model_len).expected_weight_bytes
    kept_as = f"{target.checkpoint.kept_as}, with the head of --speculative-config"
    require_room_for_weights(expected, kept_as, device.usable, device.limit)
    embed: Embed | None = None
    copied = 0
    if target.config.parallel.tensor_parallel_size == 1:
        embed = model.embed_tokens
    elif not checkpoint.has_embedding:
        embed, copied = _whole_embedding(target)
    head = load_head(checkpoint, parts(), max_model_len, embed, on_progress)
    return head, head.weight_bytes + copied


def _whole_embedding(target: Target) -> tuple[Embed, int]:
    """A copy of the target's embedding, of which this rank has only a part; and its bytes."""
    device = target.device
    whole = make_model(target.checkpoint, device.attention, device.ops, device.torch_device, device.quantization)
    assert isinstance(whole, CausalLM)
    parts = [whole.lm_head, whole.embed_tokens] if whole.config.tie_word_embeddings else [whole.embed_tokens]
    shapes = {name: shape for part in parts for name, shape in part.tensors().items()}
    weights = further_weights(target.checkpoint, shapes, device.torch_device)
    for part in parts:
        part.load(weights)
    return whole.embed_tokens, sum(part.nbytes for part in parts)


class Eagle3Drafter(Drafter):
    """A head, its cache, and the rows that are pending."""

    def __init__(self, head: Eagle3Head, target: Target, num_drafts: int, weight_bytes: int) -> None:
        """``num_drafts``: the most of a sequence and step. ``weight_bytes``: of all that was loaded for the head."""
        self._head = head
        self._device, self._limits = target.device, target.limits
        self._most_pending = max(_FEWEST_PENDING, 1 + num_drafts, 1 + target.limits.num_speculative_tokens)
        self._weight_bytes = weight_bytes
        self._batch: InputBatch
        self._sampler: Sampler
        self._cache: DraftCache
        self._pending: PendingRows
        self._idle = np.zeros(target.limits.max_num_seqs, np.int64)
        """[slots]: rows since drafts were wanted."""

    @property
    def weight_bytes(self) -> int:
        return self._weight_bytes

    @property
    def bytes_per_block(self) -> int:
        return self._device.attention.bytes_per_block(draft_cache_spec(self._head, self._limits.block_size))

    @property
    def kept_bytes(self) -> int:
        """Pending rows, and the inputs of layers until they are side by side."""
        limits = self._limits
        rows = limits.max_num_seqs * self._most_pending + limits.max_rows
        return rows * self._head.num_taken * self._head.dtype.itemsize

    def allocate(self, num_blocks: int, batch: InputBatch, sampler: Sampler) -> None:
        self._batch, self._sampler = batch, sampler
        self._cache = self._new_cache(num_blocks)
        width = self._head.num_taken
        slots, device = self._limits.max_num_seqs, self._device.torch_device
        self._pending = PendingRows(slots, self._most_pending, width, self._head.dtype, device)

    def _new_cache(self, num_blocks: int) -> DraftCache:
        limits, device = self._limits, self._device
        return DraftCache(
            draft_cache_spec(self._head, limits.block_size),
            device.attention,
            device.torch_device,
            num_blocks=num_blocks,
            num_slots=limits.max_num_seqs,
            max_model_len=limits.max_model_len,
        )

    @torch.inference_mode()
    def is_sound(self) -> bool:
        """Whether the head computes numbers, and an embedding of its own has only numbers."""
        head, device = self._head, self._device.torch_device
        for first in range(0, head.vocab_size if head.has_embedding else 0, _IDS_AT_ONCE):
            rows = head.embed(torch.arange(first, min(first + _IDS_AT_ONCE, head.vocab_size), device=device))
            if not rows.isfinite().all():
                return False
        cache = self._new_cache(1)
        cache.grow(0, 1)
        features = head.combine(torch.ones(1, head.num_taken, dtype=head.dtype, device=device))
        output = self._compute(cache, np.zeros(1, np.intp), np.ones(1, np.int64), np.zeros(1, np.int64), features)
        logits = head.lm_head.logits(head.norm(output))
        return bool(logits.isfinite().all())

    def rehearse(self, batch: InputBatch, sampler: Sampler) -> None:
        """Follow as many rows as a step has, in block 0, and draw for all slots."""
        self._batch, self._sampler, self._cache = batch, sampler, self._new_cache(1)
        limits, head = self._limits, self._head
        slots = np.arange(min(limits.max_num_seqs, limits.max_num_batched_tokens))
        counts, left = np.ones(len(slots), np.int64), limits.max_num_batched_tokens - len(slots)
        for slot in slots.tolist():
            more = min(left, limits.max_model_len - 2)
            counts[slot] += more
            left -= more
        rows = int(counts.sum())
        features = head.combine(torch.zeros(rows, head.num_taken, dtype=head.dtype, device=self._device.torch_device))
        output = self._compute(self._cache, slots, counts, np.zeros(rows, np.int64), features)
        self._draw(slots.tolist(), {slot: [] for slot in slots.tolist()}, output)

    def observe(self, inputs: StepInputs, hidden: torch.Tensor) -> None:
        """``hidden`` [T, taps · H]. Rows whose next tokens are known, those of prompts, go through the head at once."""
        counts = np.diff(inputs.query_starts)
        decoding = np.zeros(len(counts), np.bool_)
        decoding[inputs.sampled] = True
        decoding &= counts == 1
        if decoding.any():
            self._keep_newest(inputs, np.flatnonzero(decoding), hidden)
        pieces: list[Piece] = []
        for place in np.flatnonzero(~decoding).tolist():
            slot, first, row = int(inputs.slots[place]), int(inputs.first_positions[place]), inputs.query_starts[place]
            own = hidden[row : row + counts[place]]
            self._pending.align(np.array([slot]), np.array([first]))
            followed = min(len(own), len(self._batch.known_token_ids(slot)) - 1 - first)
            if followed > 0 or self._pending.count[slot] + len(own) > self._pending.most:
                pieces.append(self._pending.take(slot, own[:followed]))
            self._pending.append(slot, own[followed:])
            self._idle[slot] = 0
        self._follow(pieces)

    def _keep_newest(self, inputs: StepInputs, places: Index, hidden: torch.Tensor) -> None:
        """Keep the only rows of the sequences at ``places``, whose next tokens this step samples."""
        slots, positions = inputs.slots[places], inputs.first_positions[places]
        self._pending.align(slots, positions)
        self._idle[slots] += 1
        pieces: list[Piece] = []
        for slot in slots[self._pending.count[slots] == self._pending.most].tolist():
            piece = self._pending.take_all_but_last(slot)  # the last one's next token may be in flight
            if self._idle[slot] <= _MOST_IDLE:
                pieces.append(piece)
            else:
                self._cache.forget(slot)
        self._follow(pieces)
        (rows,) = upload([inputs.query_starts[places].astype(np.int64)], hidden.device)
        self._pending.append_one(slots, hidden.index_select(0, rows))

    def forget(self, slot: int) -> None:
        self._cache.forget(slot)
        self._pending.clear(slot)
        self._idle[slot] = 0

    def propose(self, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        known: dict[int, int] = {}
        pieces: list[Piece] = []
        for slot in wanted:
            self._idle[slot] = 0
            known[slot] = len(self._batch.known_token_ids(slot))
            piece = (
                self._pending.take_until(slot, known[slot] - 1) if known[slot] < self._limits.max_model_len else None
            )
            if piece is not None:
                pieces.append(piece)
        slots, hidden = self._follow(pieces)
        drafts: dict[int, list[int]] = {slot: [] for slot in slots}
        while slots:
            going = self._draw(slots, drafts, hidden)
            places = [
                place
                for place, slot in enumerate(slots)
                if going[place] and len(drafts[slot]) < wanted[slot] and self._has_room(slot, known, drafts)
            ]
            slots = [slots[place] for place in places]
            if slots:
                hidden = self._extend(slots, drafts, hidden, places)
        for slot in drafts:
            self._cache.truncate(slot, known[slot] - 1)
        return {slot: tokens for slot, tokens in drafts.items() if tokens}

    def _has_room(self, slot: int, known: Mapping[int, int], drafts: Mapping[int, list[int]]) -> bool:
        """Whether another draft may follow: of use to the longest sequence, and with blocks for the last one."""
        length = known[slot] + len(drafts[slot])
        return length < self._limits.max_model_len - 1 and self._cache.grow(slot, length)

    def _draw(self, slots: list[int], drafts: dict[int, list[int]], hidden: torch.Tensor) -> list[bool]:
        """Add a draft for each of ``slots`` by the head's outputs ``hidden`` [S, H]; False: none could be drawn."""
        count = len(drafts[slots[0]])  # all have as many
        rows = self._batch.rows_behind(np.array(slots, np.intp), np.full(len(slots), count))
        sampled = draw(_DraftHead(self._head), self._sampler, self._batch.sampling, rows, hidden, reports=False)
        drawn, greatest = AsyncCopy([sampled.token_ids, sampled.greatest]).wait()
        # None where the head can draft no token that the request allows.
        possible: list[bool] = (greatest > -torch.inf).tolist()
        for slot, length, token, is_drawn in zip(
            slots, rows.num_tokens.tolist(), drawn.tolist(), possible, strict=True
        ):
            if is_drawn:
                self._batch.token_ids[slot, length] = token
                drafts[slot].append(token)
        return possible

    def _extend(
        self, slots: list[int], drafts: Mapping[int, list[int]], hidden: torch.Tensor, places: list[int]
    ) -> torch.Tensor:
        """The head's outputs [S, H] for the last drafts of ``slots``; its own outputs ``hidden``, those at ``places``,
        stand for the target's.
        """
        (chosen,) = upload([np.array(places, np.int64)], hidden.device)
        features = hidden.index_select(0, chosen)
        newest = np.array([drafts[slot][-1] for slot in slots], np.int64)
        return self._compute(self._cache, np.array(slots, np.intp), np.ones(len(slots), np.int64), newest, features)

    def _follow(self, pieces: Sequence[Piece]) -> tuple[list[int], torch.Tensor]:
        """Let ``pieces``, whose next tokens are known, go through the head: slots [S], and the outputs [S, H] of their
        last rows. Slots for which there are no blocks are left out, and begin again with their next piece.
        """
        pieces = [piece for piece in pieces if len(piece.hidden) and self._makes_room(piece)]
        if not pieces:
            return [], torch.empty(0)
        next_tokens = [self._batch.token_ids[piece.slot, piece.first + 1 : piece.end + 1] for piece in pieces]
        features = self._head.combine(torch.cat([piece.hidden for piece in pieces]))
        slots = [piece.slot for piece in pieces]
        counts = np.array([len(piece.hidden) for piece in pieces], np.int64)
        token_ids = np.concatenate(next_tokens).astype(np.int64)
        return slots, self._compute(self._cache, np.array(slots, np.intp), counts, token_ids, features)

    def _makes_room(self, piece: Piece) -> bool:
        cache, slot = self._cache, piece.slot
        if not cache.start[slot] <= piece.first <= cache.num_computed[slot]:
            cache.begin(slot, piece.first)
        cache.truncate(slot, piece.first)
        if cache.grow(slot, piece.end):
            return True
        cache.forget(slot)
        return False

    def _compute(
        self,
        cache: DraftCache,
        slots: Index,
        counts: npt.NDArray[np.int64],
        token_ids: npt.NDArray[np.int64],
        features: torch.Tensor,
    ) -> torch.Tensor:
        """The head's outputs [S, H] for the last of the next ``counts`` [S] rows of ``slots`` [S]: [T] ``token_ids``,
        which follow them, and ``features`` [T, H]; valid until the next call.
        """
        rows, attention = cache.rows(slots, counts), self._device.attention
        ids, positions, last = upload([token_ids, rows.positions, rows.last_rows], features.device)
        [metadata] = rows.metadata
        attention.plan(metadata)
        wanted = last if len(slots) < len(token_ids) else None
        context = ForwardContext(cache.caches.kv, [metadata.on(features.device)], wanted, per_layer=features)
        output = self._head.forward(ids, positions, context)
        cache.advance(rows)
        return output


class _DraftHead:
    """What ``draw`` needs of a head."""

    masks_argmax = False

    def __init__(self, head: Eagle3Head) -> None:
        self.logits, self.greatest = head.compute_logits, head.greatest
