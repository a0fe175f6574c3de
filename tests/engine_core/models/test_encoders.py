"""Encoders compute what transformers computes from the same checkpoint, with the same bits in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine_core.models.encoder_model import EncoderModel
from engine_core.models.language_model import LanguageModel
from engine_core.ops.kernel_graph import KernelGraph
from engine_core.ops.torch import TorchBackend
from tests.engine_core.models.driver import load
from tests.engine_core.models.encoders import CASES, expected, hidden_states, inputs_of, make

LENGTHS = (150, 1, 2, 47, 48, 49, 17, 97)
"""Around the sizes of tiles of queries, keys and blocks."""


QUICK = ("bert", "distilbert", "gemma3-encoder", "modernbert", "xlm-roberta")
"""The others are the same with other switches, and take long."""


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[] if name in QUICK else pytest.mark.models) for name in CASES]
)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreTrainedModel, Path]:
    directory = tmp_path_factory.mktemp("checkpoint")
    return make(request.param, directory), directory


@pytest.fixture(scope="module")
def own(pair: tuple[PreTrainedModel, Path]) -> LanguageModel:
    return load(pair[1])


@pytest.mark.parametrize("kind", ["chosen", "torch"])
def test_hidden_states_of_a_batch_in_float32(pair: tuple[PreTrainedModel, Path], kind: str) -> None:
    reference, directory = pair
    inputs = inputs_of(LENGTHS)
    types = None
    if getattr(reference.config, "type_vocab_size", 1) > 1:
        types = [(torch.arange(len(each)) > len(each) // 2).long() for each in inputs]
    model = load(directory, layers=TorchBackend() if kind == "torch" else None)
    for ours, theirs in zip(hidden_states(model, inputs, types), expected(reference, inputs, types), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_same_bits_alone_in_any_batch_and_with_one_thread(own: LanguageModel) -> None:
    inputs = inputs_of(LENGTHS)
    together = hidden_states(own, inputs)
    backwards = hidden_states(own, inputs[::-1])[::-1]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = [hidden_states(own, [each])[0] for each in inputs]
    finally:
        torch.set_num_threads(threads)
    for first, second, third in zip(together, backwards, alone, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(first, third)


def test_wanted_rows_have_the_bits_of_all_rows(own: LanguageModel) -> None:
    inputs = inputs_of(LENGTHS)
    rows = torch.tensor([0, *(len(each) for each in inputs[:-1])]).cumsum(0)
    wanted = hidden_states(own, inputs, rows=rows)
    assert torch.equal(torch.cat(wanted), torch.cat(hidden_states(own, inputs))[rows])


def test_layers_share_one_cache(own: LanguageModel) -> None:
    spec = own.kv_cache_spec(16)
    assert (len(spec.layers), spec.num_places) == (own.config.num_layers, 1)
    assert len(own.kv_cache_groups) == 1


def test_layers_run_as_one_captured_call(own: LanguageModel) -> None:
    """Those of Ringline's own models."""
    hidden_states(own, inputs_of([5]))
    if isinstance(own, EncoderModel):
        assert isinstance(own._run_layers, KernelGraph)
        assert own._run_layers._graph is not None


def test_padding_within_an_input_of_roberta_counts_for_no_position(tmp_path: Path) -> None:
    reference = make("xlm-roberta", tmp_path)
    inputs = inputs_of([9, 12])
    inputs[1][[0, 4, 5, 11]] = 1
    together = hidden_states(load(tmp_path), inputs)
    with torch.no_grad():
        theirs = reference(input_ids=inputs[1][None]).last_hidden_state[0]
    torch.testing.assert_close(together[1], theirs, atol=1e-4, rtol=1e-4)
