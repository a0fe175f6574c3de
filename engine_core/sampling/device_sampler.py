"""Draws next tokens where the logits are: what ``sampler.py`` does, on a GPU.

The device is waited for once, when the tokens are read (and with them log probabilities that were asked for). What
depends on the tokens so far is found out by the host, as for ``Sampler``, and sent along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.logprobs import Logprobs
from engine_core.platforms.input_buffers import upload
from engine_core.sampling import metadata as asks
from engine_core.sampling.device_noise import gumbel
from engine_core.sampling.device_top_k_top_p import DeviceWarp, keep_nucleus, keep_top_k, order_of, top_tokens
from engine_core.sampling.logprobs import pack, rows_of
from engine_core.sampling.metadata import SamplingMetadata
from engine_core.sampling.noise import position_keys
from engine_core.sampling.sampler import SamplerOutput, SamplingRows
from engine_core.worker.model_runner import Fetched, SampledTokens

_ELEMENTS_AT_ONCE = 1 << 24
"""Logits worked on at a time: bounds the memory of intermediate results, of which some have 8 bytes a logit."""

Features = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Report:
    """What is told of the log probabilities of some rows, as ``token_logprobs`` does, while it is on the device."""

    rows: list[int]
    num_top: list[int]
    ids: torch.Tensor
    """[rows, 2 + widest] int64: the token, the likeliest ones, the token's rank."""
    values: torch.Tensor
    """[rows, 1 + widest] float32: log probabilities of all but the last."""

    @staticmethod
    def of(logits: torch.Tensor, tokens: torch.Tensor, rows: list[int], num_top: list[int]) -> Report:
        """Of raw ``logits`` [rows, V] and the ``tokens`` [rows] that were drawn."""
        asked = tokens[:, None]
        if widest := min(max(num_top), logits.shape[1]):
            asked = torch.cat([asked, top_tokens(logits, widest)], 1)
        values = logits.gather(1, asked) - logits.logsumexp(1, keepdim=True)
        order, ids = order_of(logits), torch.arange(logits.shape[1], device=logits.device)
        own = order.gather(1, tokens[:, None])
        ranks = 1 + ((order > own) | ((order == own) & (ids < tokens[:, None]))).sum(1)
        return Report(rows, num_top, torch.cat([asked, ranks[:, None]], 1), values)

    def entries(self, ids: torch.Tensor, values: torch.Tensor) -> dict[int, Logprobs]:
        """One by row, out of what has come to the host."""
        known = ids.numpy()
        packed = pack(known[:, -1], known[:, 1:-1], values.numpy())
        return dict(zip(self.rows, rows_of(packed, self.num_top), strict=True))


class DeviceSampler:
    """Reads ``state`` and draws; R rows, V vocabulary size."""

    def __init__(self, state: SamplingMetadata) -> None:
        """``state`` is kept and read at each draw."""
        self._state = state

    @staticmethod
    def rows_at_once(vocab_size: int) -> int:
        """Rows that are worked on at a time: what they take at most is what the sampler does."""
        return max(1, _ELEMENTS_AT_ONCE // vocab_size)

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, rows: SamplingRows) -> SampledTokens:
        """Draw one token for each row of ``logits`` [R, V] float32, which may be changed."""
        features = self._state.features[rows.slots]
        step = self.rows_at_once(logits.shape[1])
        tokens: list[torch.Tensor] = []
        reports: list[tuple[int, Report]] = []
        for start in range(0, len(features), step):
            chunk = slice(start, start + step)
            drawn, report = self._sample_chunk(logits[chunk], rows.part(chunk), features[chunk])
            tokens.append(drawn)
            if report is not None:
                reports.append((start, report))
        drawn = torch.cat(tokens)
        found = Fetched.of([drawn, *(tensor for _, report in reports for tensor in (report.ids, report.values))])

        def read() -> SamplerOutput:
            token_ids, *told = found.read()
            logprobs: dict[int, Logprobs] = {}
            for number, (start, report) in enumerate(reports):
                entries = report.entries(*told[2 * number : 2 * number + 2])
                logprobs |= {start + row: entry for row, entry in entries.items()}
            return SamplerOutput(token_ids.numpy(), logprobs)

        return SampledTokens(drawn, read)

    def _sample_chunk(
        self, logits: torch.Tensor, rows: SamplingRows, features: Features
    ) -> tuple[torch.Tensor, Report | None]:
        asked = int(np.bitwise_or.reduce(features))
        reported = np.flatnonzero(features & asks.LOGPROBS)
        raw = self._rows(logits, reported).clone() if len(reported) else None
        if asked & asks.ALTERS_LOGITS:
            self._constrain(logits, rows, features)
        tokens = self._draw(logits, rows, features) if asked & asks.RANDOM else logits.argmax(1)
        if raw is None:
            return tokens, None
        num_top = self._state.num_logprobs[rows.slots[reported]].tolist()
        return tokens, Report.of(raw, self._rows(tokens, reported), reported.tolist(), num_top)

    @staticmethod
    def _rows(x: torch.Tensor, chosen: npt.NDArray[np.intp]) -> torch.Tensor:
        if len(chosen) == len(x):
            return x
        return x.index_select(0, upload([chosen.astype(np.int64)], x.device)[0])

    def _constrain(self, logits: torch.Tensor, rows: SamplingRows, features: Features) -> None:
        """Apply allowed ids, bans, bias and penalties, in place, each with one copy to the device."""
        state = self._state
        limited = [
            (int(row), constraints)
            for row in np.flatnonzero(features & (asks.ALLOWED | asks.BANS | asks.BIAS))
            if (constraints := state.constraints[rows.slots[row]]) is not None
        ]
        for row, constraints in limited:
            if constraints.allowed is not None:
                (allowed,) = upload([constraints.allowed], logits.device)
                values = logits[row, allowed]
                logits[row].fill_(-torch.inf)
                logits[row, allowed] = values
        banned = [
            (row, c.banned(rows.token_ids[rows.slots[row], : rows.num_tokens[row]], int(rows.num_prompt_tokens[row])))
            for row, c in limited
            if features[row] & asks.BANS
        ]
        if banned:
            places = upload(_places(banned), logits.device)
            logits[places[0], places[1]] = -torch.inf
        biased = [(row, c.bias_ids) for row, c in limited if len(c.bias_ids)]
        if biased:
            bias = np.concatenate([c.bias for _, c in limited])
            row_ids, ids, values = upload([*_places(biased), bias], logits.device)
            logits[row_ids, ids] += values
        penalized = np.flatnonzero(features & asks.PENALTIES)
        if len(penalized):
            self._penalize(logits, penalized, rows.slots[penalized])

    def _penalize(self, logits: torch.Tensor, chosen: npt.NDArray[np.intp], slots: npt.NDArray[np.intp]) -> None:
        """As ``apply_penalties``."""
        state = self._state
        counted = [counts for slot in slots if (counts := state.counts[slot]) is not None]
        sizes = [len(counts.ids) for counts in counted]
        columns = (state.repetition_penalty, state.frequency_penalty, state.presence_penalty)
        row_ids, ids, count, repetition, frequency, presence = upload(
            [
                *_places([(int(row), counts.ids) for row, counts in zip(chosen, counted, strict=True)]),
                np.concatenate([counts.counts for counts in counted]),
                *(np.repeat(column[slots], sizes) for column in columns),
            ],
            logits.device,
        )
        values = logits[row_ids, ids]
        values = torch.where(values > 0, values / repetition, values * repetition)
        logits[row_ids, ids] = values - frequency * count - presence * (count > 0)

    def _draw(self, logits: torch.Tensor, rows: SamplingRows, features: Features) -> torch.Tensor:
        """Token ids [R] of greedy and random rows alike."""
        ways = features & asks.WAY
        if (ways == ways[0]).all():
            return self._draw_alike(int(ways[0]), logits, rows.slots, rows.num_tokens)
        tokens = torch.empty(len(ways), dtype=torch.int64, device=logits.device)
        for way in sorted(set(ways.tolist())):
            chosen = np.flatnonzero(ways == way)
            (places,) = upload([chosen.astype(np.int64)], logits.device)
            drawn = self._draw_alike(way, logits.index_select(0, places), rows.slots[chosen], rows.num_tokens[chosen])
            tokens[places] = drawn
        return tokens

    def _draw_alike(
        self, way: int, logits: torch.Tensor, slots: npt.NDArray[np.intp], positions: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """Token ids [R] of rows that all ask for the same ``way``."""
        if not way:
            return logits.argmax(1)
        state = self._state
        sent = upload(
            [
                _column(position_keys(state.noise_key[slots], positions).view(np.int64)),
                _column(state.temperature[slots]),
                _column(state.log_min_p[slots]),
                _column(state.top_p[slots]),
                _column(state.top_k[slots]),
            ],
            logits.device,
        )
        keys, temperature, log_min_p, top_p, top_k = sent
        warp = DeviceWarp(temperature, log_min_p)
        if way & asks.TOP_K:
            width = int(state.top_k[slots].max())
            ids, scaled = keep_top_k(logits, warp, top_k, width, top_p if way & asks.TOP_P else None)
            chosen = scaled.add_(gumbel(keys, ids)).argmax(1, keepdim=True)
            return ids.gather(1, chosen)[:, 0]
        scaled = warp.scale(logits, logits.amax(1, keepdim=True))
        if way & asks.TOP_P:
            scaled = keep_nucleus(logits, scaled, top_p)
        return scaled.add_(gumbel(keys, torch.arange(logits.shape[1], device=logits.device))).argmax(1)


def _places(chosen: list[tuple[int, npt.NDArray[np.int64]]]) -> list[npt.NDArray[np.int64]]:
    """Rows and ids of every pair."""
    rows = np.repeat(np.array([row for row, _ in chosen], np.int64), [len(ids) for _, ids in chosen])
    return [rows, np.concatenate([ids for _, ids in chosen])]


def _column(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[R] as [R, 1]."""
    return array[:, np.newaxis]
