"""Logits processors: each is one way in which a request's parameters change logits before a token is sampled.

A new one is a class, here or in its own file, and a line in ``PROCESSORS`` of metadata. Its effect on a row must be a
function of the sequence's parameters and the tokens before the row: all state must be rebuildable from these, as a
sequence may be preempted, or continued by another engine, at any token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from engine_core.request import SamplingParams
from engine_core.sampling.base import LEAST_LOGIT, Array, Ids, Index, SamplingOps, pairs_of

if TYPE_CHECKING:
    from engine_core.structured_output.compiler import GrammarCompiler

F32 = npt.NDArray[np.float32]
Tokens = npt.NDArray[np.int32]

T = TypeVar("T")

FOREVER = int(np.iinfo(np.int64).max)


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """The R rows to sample, aligned with the rows of the logits; rows of one sequence are adjacent."""

    slots: Index
    """[R]: the slot of each row's sequence in the batch."""
    token_ids: Tokens
    """[slots, longest]: the tokens of every slot."""
    num_tokens: Ids
    """[R]: number of tokens before the sampled one, which is its absolute position."""
    num_prompt_tokens: Ids
    """[R]"""
    num_drafts: Ids
    """[R]: how many of ``num_tokens``, at the end, are drafts."""

    def part(self, chosen: slice) -> SamplingRows:
        return SamplingRows(
            self.slots[chosen],
            self.token_ids,
            self.num_tokens[chosen],
            self.num_prompt_tokens[chosen],
            self.num_drafts[chosen],
        )

    def tokens_before(self, row: int) -> Tokens:
        """Prompt and output, drafts included, before ``row``."""
        return self.token_ids[self.slots[row], : self.num_tokens[row]]


class Applies(NamedTuple):
    """How a processor applies to a sequence."""

    until: int = FOREVER
    """Number of output tokens from which it no longer applies."""
    reads_tokens: bool = False
    """Whether it depends on which tokens came before, not only on how many."""


@dataclass(frozen=True, slots=True)
class ProcessorSetup:
    """The batch and model that processors are made for."""

    num_slots: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    grammars: GrammarCompiler | None = None
    """None if grammars cannot be used, or another rank samples."""


class LogitsProcessor(ABC, Generic[T]):
    """Keeps, for each slot of the batch, what it needs of its sequence's parameters."""

    def __init__(self, setup: ProcessorSetup) -> None:
        self._setup = setup
        self._of_slot: dict[int, T] = {}

    def most_bytes(self, max_model_len: int) -> int:
        """Bytes it may keep of all slots' tokens, at ``max_model_len`` each."""
        return 0

    @abstractmethod
    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        """Put a sequence into ``slot``; None if its parameters do not ask for this processor."""

    def remove(self, slot: int) -> None:
        """Free what ``slot`` holds, if anything."""
        self._of_slot.pop(slot, None)

    @abstractmethod
    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        """Change the ``chosen`` rows of ``logits`` [R, V] in place, by ``ops``; their sequences ask for it.

        Must not wait for the device. Other rows must keep their bits, and a row must not depend on other rows.
        """


class _Shared:
    """Made once from a part of a request's parameters, and shared by its choices and by processors."""

    _known: ClassVar[WeakValueDictionary[tuple[Any, ...], Any]] = WeakValueDictionary()
    """By the identity of the object that each is made from, which lives as long as the entry."""

    def __init__(self, source: object) -> None:
        self._source = source

    @classmethod
    def of(cls, source: Any, *further: Hashable) -> Self:
        """The instance for ``source``. ``further``: more arguments of the constructor."""
        key: tuple[Any, ...] = (cls, id(source), *further)
        known: Self | None = cls._known.get(key)
        if known is None:
            known = cls._known[key] = cls(source, *further)
        return known


class _DistinctIds(_Shared):
    """Token ids as an array."""

    def __init__(self, token_ids: tuple[int, ...]) -> None:
        super().__init__(token_ids)
        self.ids = np.unique(np.asarray(token_ids, np.int32))
        """Ascending."""


class AllowedTokenIds(LogitsProcessor[_DistinctIds]):
    """``allowed_token_ids``: bans all other tokens."""

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        if params.allowed_token_ids is None:
            return None
        self._of_slot[slot] = _DistinctIds.of(params.allowed_token_ids)
        return Applies()

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        ids = [self._of_slot[slot].ids for slot in rows.slots[chosen].tolist()]
        ops.keep_only(logits, chosen, pairs_of(chosen, ids))


class _Bans(_Shared):
    """Tokens banned for the choices of one request. In arrays, as the lists may be long."""

    def __init__(self, params: SamplingParams, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
        super().__init__(params)
        self._min_tokens = params.min_tokens
        stop_ids = set(params.stop_token_ids)
        if params.grammar is not None or not params.ignore_eos:
            stop_ids.update(eos_token_ids)
        self._stop_ids = array("i", sorted(token for token in stop_ids if token < vocab_size))
        self._always = array("i", sorted({word[-1] for word in params.bad_words_token_ids if len(word) == 1}))
        # Words are sorted by their last token but one: a step compares only words that its token could complete.
        words = sorted((word for word in params.bad_words_token_ids if len(word) > 1), key=lambda word: word[-2])
        self._before_last = array("i", [word[-2] for word in words])
        self._starts = array("q", accumulate(map(len, words), initial=0))
        self._words = array("i", chain.from_iterable(words))

    def after(self, token_ids: Tokens, num_prompt_tokens: int) -> Ids:
        """Ids that must not follow ``token_ids`` (prompt and output).

        A bad word may begin in the prompt, but is never completed in the output.
        """
        banned = set(self._always)
        before = int(token_ids[-1])
        for place in range(bisect_left(self._before_last, before), bisect_right(self._before_last, before)):
            *prefix, last = self._words[self._starts[place] : self._starts[place + 1]]
            if token_ids[-len(prefix) :].tolist() == prefix:
                banned.add(last)
        if len(token_ids) - num_prompt_tokens < self._min_tokens:
            banned.update(self._stop_ids)
        return np.fromiter(banned, np.int64, len(banned))


class BannedTokens(LogitsProcessor[_Bans]):
    """``bad_words_token_ids``, and stop tokens before ``min_tokens``.

    A single processor, after those that allow tokens: if its bans together leave no token, they are lifted.
    """

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        words = params.bad_words_token_ids
        if not words and not params.min_tokens:
            return None
        self._of_slot[slot] = _Bans.of(params, self._setup.eos_token_ids, self._setup.vocab_size)
        return Applies(FOREVER if words else params.min_tokens, any(len(word) > 1 for word in words))

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        ids = [
            self._of_slot[int(rows.slots[row])].after(rows.tokens_before(row), int(rows.num_prompt_tokens[row]))
            for row in chosen.tolist()
        ]
        ops.ban(logits, pairs_of(chosen, ids))


class _Biases(_Shared):
    """Token ids, and the biases of their logits."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        super().__init__(biases)
        self.ids = np.fromiter(biases, np.int32, len(biases))
        self.values = np.fromiter(biases.values(), np.float32, len(biases))


class LogitBias(LogitsProcessor[_Biases]):
    """``logit_bias``."""

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        if not params.logit_bias:
            return None
        self._of_slot[slot] = _Biases.of(params.logit_bias)
        return Applies()

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        biases = [self._of_slot[slot] for slot in rows.slots[chosen].tolist()]
        values = np.concatenate([each.values for each in biases])
        ops.change(
            logits, pairs_of(chosen, [each.ids for each in biases]), lambda xp, logits, bias: logits + bias, values
        )


class TokenCounts:
    """The distinct tokens of one sequence and their counts in its output (0: only in the prompt)."""

    BYTES_PER_TOKEN = 9
    """An id, a count, and what arrays allocate ahead as they grow."""

    def __init__(self, prompt: Tokens, output: Tokens) -> None:
        """Count ``output``; tokens only in ``prompt`` count 0 (leave it empty if only output matters)."""
        ids, places = np.unique(np.concatenate([prompt, output]), return_inverse=True)
        counts = np.bincount(places[len(prompt) :], minlength=len(ids))
        self.num_output_tokens = len(output)
        # Arrays, as a dictionary takes ten times as much, and prompts may be long.
        self._ids = array("i", ids.astype(np.int32).tobytes())
        """Ascending."""
        self._counts = array("f", counts.astype(np.float32).tobytes())

    def add(self, token_ids: Sequence[int]) -> None:
        """Count further output tokens."""
        self.num_output_tokens += len(token_ids)
        for token_id in token_ids:
            place = bisect_left(self._ids, token_id)
            if place == len(self._ids) or self._ids[place] != token_id:
                self._ids.insert(place, token_id)
                self._counts.insert(place, 0.0)
            self._counts[place] += 1

    def with_drafts(self, drafts: Sequence[int]) -> tuple[Tokens, F32]:
        """Distinct token ids and their counts, ``drafts`` included but not recorded; valid until ``add``."""
        ids, counts = np.array(self._ids, copy=False), np.array(self._counts, copy=False)
        if not drafts:
            return ids, counts
        counts = counts.copy()
        others: dict[int, int] = {}
        for token_id in drafts:
            place = bisect_left(self._ids, token_id)
            if place == len(self._ids) or self._ids[place] != token_id:
                others[token_id] = others.get(token_id, 0) + 1
            else:
                counts[place] += 1
        return (
            np.concatenate([ids, np.fromiter(others, np.int32, len(others))]),
            np.concatenate([counts, np.fromiter(others.values(), np.float32, len(others))]),
        )


class Penalties(LogitsProcessor[TokenCounts]):
    """``repetition_penalty``, ``frequency_penalty`` and ``presence_penalty``.

    Repetition (Keskar et al., "CTRL", 2019): positive logits of tokens in prompt or output are divided, negative ones
    multiplied. Then frequency · count and presence are subtracted for tokens in the output.
    """

    def __init__(self, setup: ProcessorSetup) -> None:
        super().__init__(setup)
        self._repetition, self._frequency, self._presence = np.zeros((3, setup.num_slots), np.float32)

    def most_bytes(self, max_model_len: int) -> int:
        return TokenCounts.BYTES_PER_TOKEN * len(self._repetition) * min(max_model_len, self._setup.vocab_size)

    def add(self, slot: int, params: SamplingParams) -> Applies | None:
        if params.repetition_penalty == 1.0 and not params.frequency_penalty and not params.presence_penalty:
            return None
        self._repetition[slot] = params.repetition_penalty
        self._frequency[slot] = params.frequency_penalty
        self._presence[slot] = params.presence_penalty
        return Applies(reads_tokens=True)

    def apply(self, ops: SamplingOps, logits: Array, rows: SamplingRows, chosen: Index) -> None:
        ids, counts = zip(*(self._counted(rows, row) for row in chosen.tolist()), strict=True)
        sizes = [len(each) for each in ids]
        slots = rows.slots[chosen]
        columns = (np.repeat(column[slots], sizes) for column in (self._repetition, self._frequency, self._presence))
        ops.change(logits, pairs_of(chosen, ids), _penalize, np.concatenate(counts), *columns)

    def _counted(self, rows: SamplingRows, row: int) -> tuple[Tokens, F32]:
        """Distinct tokens before ``row`` and their counts."""
        slot, tokens, prompt = int(rows.slots[row]), rows.tokens_before(row), int(rows.num_prompt_tokens[row])
        output = tokens[prompt:]
        num_certain = len(output) - int(rows.num_drafts[row])
        counts = self._of_slot.get(slot)
        if counts is None:  # the sequence is sampled for the first time
            # Only the repetition penalty counts the prompt.
            counted_from = 0 if self._repetition[slot] != 1.0 else prompt
            counts = self._of_slot[slot] = TokenCounts(tokens[counted_from:prompt], output[:num_certain])
        elif counts.num_output_tokens < num_certain:
            counts.add(output[counts.num_output_tokens : num_certain].tolist())
        return counts.with_drafts(output[num_certain:].tolist())


def _penalize(
    xp: ModuleType, logits: Array, count: Array, repetition: Array, frequency: Array, presence: Array
) -> Array:
    scaled = xp.where(logits > 0, logits / repetition, logits * repetition)
    penalized = scaled - frequency * count - presence * (count > 0)
    return xp.where(logits == -xp.inf, logits, xp.clip(penalized, LEAST_LOGIT, None))
