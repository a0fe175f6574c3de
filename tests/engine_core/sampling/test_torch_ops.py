"""Sampling as on a GPU, run on a CPU: the noise has the same integers, and tokens are those of ``NumpyOps``."""

from __future__ import annotations

import random
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engine_core.request import SamplingParams
from engine_core.sampling import noise, torch_ops
from engine_core.sampling.base import SamplingOps
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.numpy_ops import top_tokens as reference_top_tokens
from engine_core.sampling.torch_ops import TorchOps, keep_nucleus, top_tokens
from engine_core.worker.dummy_batches import largest_step
from engine_core.worker.input_batch import BatchLimits
from tests.engine_core.sampling.test_sampler import Rows, Sampled, random_params


def draw(rows: Rows, kind: type[SamplingOps]) -> Sampled:
    return rows.sample(list(range(len(rows.params))), TorchOps() if kind is TorchOps else NumpyOps(rows.vocab))


def test_integers_of_noise_are_the_same() -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, 50, np.uint64, endpoint=False)[:, np.newaxis]
    for ids in (np.arange(3000), rng.integers(0, 2**31, (50, 70))):
        expected = noise.random_bits(keys, ids)
        actual = noise.torch_random_bits(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(ids))
        assert np.array_equal(actual.numpy().view(np.uint64), expected)
        gumbel = noise.torch_gumbel(torch.from_numpy(keys.view(np.int64)), torch.from_numpy(ids))
        np.testing.assert_allclose(gumbel.numpy(), noise.gumbel(keys, ids), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("vocab", [230, 6000])
@pytest.mark.parametrize("elements", [1 << 24, 6000 * 7])
def test_draws_of_mixed_batches_are_the_same(vocab: int, elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchOps, "elements_at_once", elements)
    rng = random.Random(vocab)
    rows = Rows([random_params(rng) for _ in range(250)], vocab)
    expected, actual = draw(rows, NumpyOps), draw(rows, TorchOps)
    assert actual.token_ids.tolist() == expected.token_ids.tolist()
    assert actual.logprobs.keys() == expected.logprobs.keys()
    for row, (entry,) in actual.logprobs.items():
        (reference,) = expected.logprobs[row]
        assert (entry.rank, entry.top_ids) == (reference.rank, reference.top_ids)
        assert entry.logprob == pytest.approx(reference.logprob, abs=1e-5)
        assert entry.top_logprobs == pytest.approx(reference.top_logprobs, abs=1e-5)


def test_a_greedy_batch_runs_nothing_but_the_argmax(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows([SamplingParams(temperature=0.0)] * 5, vocab=230)
    rows.logits[0, 7] = rows.logits[0, 5] = 100.0
    for name in ("upload", "torch_gumbel", "order_of", "top_tokens"):
        monkeypatch.delattr(torch_ops, name)
    assert draw(rows, TorchOps).token_ids.tolist() == draw(rows, NumpyOps).token_ids.tolist()
    assert draw(rows, TorchOps).token_ids[0] == 5


def test_a_nucleus_larger_than_any_number_of_candidates() -> None:
    """Flat logits with many ties, so that the edge of the nucleus is among equals."""
    rows = Rows([replace(SamplingParams(temperature=1.0, top_p=0.9), seed=seed) for seed in range(200)], vocab=700)
    rows.logits = (rows.logits * 0.1).round(decimals=1)
    assert draw(rows, TorchOps).token_ids.tolist() == draw(rows, NumpyOps).token_ids.tolist()
    scaled = rows.logits[:1] - rows.logits[:1].max()
    keep_nucleus(rows.logits[:1], scaled, torch.tensor([[0.9]]).double())
    assert 550 < int(scaled.isfinite().sum()) < 700


def test_a_nucleus_ends_with_the_token_that_reaches_its_mass() -> None:
    equal = torch.zeros(1, 4)
    for top_p, kept in ((0.5, 2), (0.5 + 1e-9, 3), (0.25, 1), (1e-9, 1)):
        scaled = equal.clone()
        keep_nucleus(equal, scaled, torch.tensor([[top_p]], dtype=torch.float64))
        assert scaled.isfinite().tolist() == [[place < kept for place in range(4)]]


def test_order_of_tokens_is_the_same() -> None:
    logits = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).round(decimals=1)
    logits[0, :5], logits[1, 3] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-40]), -0.0
    assert np.array_equal(top_tokens(logits, 300).numpy(), reference_top_tokens(logits.numpy(), 300))


class PeakMemory(TorchDispatchMode):
    """How much memory torch's results held together at most."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._held = 0
        self._storages: dict[int, weakref.finalize] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Of torch's: else it loads its compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        place, size = storage.data_ptr(), storage.nbytes()
        known = self._storages.get(place)
        if known is not None and known.alive:
            return
        self._held += size
        self.peak = max(self.peak, self._held)
        self._storages[place] = weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self._held -= size


def peak_of(params: list[SamplingParams], vocab: int) -> int:
    """Bytes of the device that drawing a row for each takes."""
    with PeakMemory() as memory:
        draw(Rows(params, vocab), TorchOps)
    return memory.peak


@pytest.mark.parametrize("max_num_seqs", [20, 12])
def test_no_batch_takes_more_memory_than_the_step_that_is_profiled(
    max_num_seqs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, at_once = 2000, 16
    monkeypatch.setattr(TorchOps, "elements_at_once", vocab * at_once)
    plan = largest_step(BatchLimits(max_num_seqs, 64, 64, 16), vocab, TorchOps.rows_at_once(vocab))
    profiled = peak_of([sequence.params for sequence in plan.new], vocab)
    nucleus = SamplingParams(top_p=0.9, logprobs=20, frequency_penalty=1.0)
    for params in (
        [nucleus] * max_num_seqs,
        [replace(nucleus, top_k=1000)] * max_num_seqs,
        [*[nucleus] * 11, *[replace(nucleus, temperature=0.0)] * (max_num_seqs - 11)],
    ):
        assert peak_of(params, vocab) <= 1.01 * profiled  # some bytes are of the host's arrays


@pytest.mark.parametrize("kind", [NumpyOps, TorchOps])
def test_a_beams_log_probabilities_are_those_of_reports(kind: type[SamplingOps]) -> None:
    ops = TorchOps() if kind is TorchOps else NumpyOps(300)
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(2)) * 4
    logits[1, 7] = logits[1, 9] = torch.inf
    logits[2, :200] = -torch.inf
    token_ids, array = logits.argmax(1), ops.array(logits.clone())
    _, expected_ids, expected = ops.logprobs(ops.array(logits), ops.array(token_ids), 12)
    ops.normalize(array, np.array([0, 1, 2, 4]))
    _, ids, values = ops.likeliest(array, 12)
    for row, count in ((0, 12), (1, 2), (2, 12), (4, 12)):  # beside logits of +inf, all others are equally impossible
        assert torch.equal(ids[row, :count], expected_ids[row, :count])
        assert torch.equal(values[row, : 1 + count], expected[row, : 1 + count])
    assert torch.equal(torch.as_tensor(array)[3], logits[3]), "another row has changed"
