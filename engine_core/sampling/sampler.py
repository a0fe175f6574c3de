"""From logits to sampled tokens.

In this order, each only if some row asks for it: the log-softmax for beams; logits processors, in the order of their
list; then the argmax for greedy rows, for others temperature, min-p, top-k, top-p and noise; log probabilities of the
raw logits, for beams the likeliest of the processed ones. Steps with only greedy rows do not come here
(``ModelRunner._sample``). Nothing but the tokens is kept from step to step, and no row's result depends on another row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.sampling import metadata as asks
from engine_core.sampling.base import Array, Ids, Index, RandomRows, SamplingOps
from engine_core.sampling.logits_processors import SamplingRows
from engine_core.sampling.logprobs import LogprobsTensors
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.noise import position_keys

Bits = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """Sampled tokens, in the memory of the logits."""

    token_ids: torch.Tensor
    """[R] int64"""
    greatest: torch.Tensor
    """[R] float32: the greatest of each row's raw logits, NaN if the row has one. If it is NaN or −inf, the token means
    nothing."""
    logprobs: list[LogprobsTensors]
    """For the rows that asked for them, and for beams; several items if a batch is sampled in parts."""


class Sampler:
    """Reads ``metadata`` and samples, without waiting for the device. R rows, V vocabulary size."""

    def __init__(self, metadata: SamplingMetadata, ops: SamplingOps) -> None:
        """``metadata`` is kept, and read at each step."""
        self._metadata = metadata
        self._ops = ops

    def sample(self, logits: torch.Tensor, rows: SamplingRows, *, reports: bool = True) -> SamplerOutput:
        """Sample one token for each row of ``logits`` [R, V] float32, which may be changed.

        ``reports``: with log probabilities, for rows that ask for them.
        """
        asked_of = self._metadata.asked_of[rows.slots]
        if not reports:
            asked_of &= ~asks.LOGPROBS
        step = self._ops.rows_at_once(logits.shape[1])
        array = self._ops.array(logits)
        tokens: list[Array] = []
        greatest: list[Array] = []
        logprobs: list[LogprobsTensors] = []
        for start in range(0, len(asked_of), step):
            part = slice(start, start + step)
            greatest.append(self._ops.greatest(array[part]))  # before bans, which might hide the NaN
            sampled, reported = self._sample_part(array[part], rows.part(part), asked_of[part], start)
            tokens.append(sampled)
            logprobs += reported
        return SamplerOutput(self._ops.join(tokens), self._ops.join(greatest), logprobs)

    def prompt_logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, report: LogprobsTensors, first_row: int
    ) -> None:
        """Write log probabilities of prompt tokens ``token_ids`` [R], whose predecessors have ``logits`` [R, V], to the
        rows of ``report`` from ``first_row`` on.
        """
        array, k = self._ops.array, report.top_ids.shape[1]
        report.write(first_row, *self._ops.logprobs(array(logits), array(token_ids), k))

    def _sample_part(
        self, logits: Array, rows: SamplingRows, asked_of: Bits, first_row: int
    ) -> tuple[Array, list[LogprobsTensors]]:
        asked = int(np.bitwise_or.reduce(asked_of))
        reporting = np.flatnonzero(asked_of & asks.LOGPROBS) if asked & asks.LOGPROBS else None
        beams = np.flatnonzero(asked_of & asks.BEAMS) if asked & asks.BEAMS else None
        if beams is not None:
            self._ops.normalize(logits, beams)
        raw = None
        if reporting is not None:
            # Reports are of the raw logits, copied only if they are about to change.
            raw = self._select(logits, reporting)
            raw = self._ops.select_rows(raw, reporting) if raw is logits and asked & asks.PROCESSED else raw
        for bit, processor in self._metadata.processors if asked & asks.PROCESSED else ():
            if asked & bit:
                processor.apply(self._ops, logits, rows, np.flatnonzero(asked_of & bit))
        tokens = self._sample_mixed(logits, rows, asked_of) if asked & asks.RANDOM else self._ops.argmax(logits)
        reports = []
        if reporting is not None and raw is not None:
            num_top = self._metadata.num_logprobs[rows.slots[reporting]].tolist()
            report = self._ops.logprobs(raw, self._select(tokens, reporting), min(max(num_top), logits.shape[1]))
            reports.append(LogprobsTensors(first_row + reporting, num_top, *report))
        if beams is not None:
            num_top = self._metadata.num_logprobs[rows.slots[beams]].tolist()
            report = self._ops.likeliest(self._select(logits, beams), min(max(num_top), logits.shape[1]))
            reports.append(LogprobsTensors(first_row + beams, num_top, *report))
        return tokens, reports

    def _sample_mixed(self, logits: Array, rows: SamplingRows, asked_of: Bits) -> Array:
        """Token ids [R] of rows that may ask for different methods."""
        methods = asked_of & asks.METHOD
        if (methods == methods[0]).all():
            return self._sample_alike(int(methods[0]), logits, rows.slots, rows.num_tokens)
        parts: list[tuple[Index, Array]] = []
        for method in sorted(set(methods.tolist())):
            chosen = np.flatnonzero(methods == method)
            selected = self._ops.select_rows(logits, chosen)
            parts.append((chosen, self._sample_alike(method, selected, rows.slots[chosen], rows.num_tokens[chosen])))
        return self._ops.place(parts)

    def _sample_alike(self, method: int, logits: Array, slots: Index, positions: Ids) -> Array:
        """Token ids [R] of rows that all ask for ``method``."""
        if not method:
            return self._ops.argmax(logits)
        state = self._metadata
        random = RandomRows(
            keys=_column(position_keys(state.noise_key[slots], positions)),
            temperature=_column(state.temperature[slots]),
            log_min_p=_column(state.log_min_p[slots]) if state.asked & asks.MIN_P else None,
            top_k=_column(state.top_k[slots]) if method & asks.TOP_K else None,
            top_p=_column(state.top_p[slots]) if method & asks.TOP_P else None,
        )
        return self._ops.sample(logits, random)

    def _select(self, x: Array, rows: Index) -> Array:
        """``rows`` (ascending) of ``x``: ``x`` itself if these are all."""
        return x if len(rows) == len(x) else self._ops.select_rows(x, rows)


def _column(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[R] as [R, 1]."""
    return array[:, np.newaxis]
