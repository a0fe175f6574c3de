"""Captured layers put out the very bits that the layers themselves would, in steps of every size, on any cache."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config

from engine_core.attention.native import NativeAttention
from engine_core.forward_context import ForwardContext, Taps
from engine_core.kernels.capture import BufferPool
from engine_core.kernels.library import load_kernels
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import DecoderStack
from engine_core.ops.kernel_graph import KernelGraph
from engine_core.ops.native import NativeBackend
from tests.engine_core.models.driver import Driver, load
from tests.engine_core.models.families import SHAPES, configuration
from tests.engine_core.models.tiny_models import CASES, SIZES, make_model, save_model

ATTENTION = NativeAttention(load_kernels())
pytestmark = pytest.mark.usefixtures("restored_threads")
LENGTHS = (130, 3, 40)


class Uncaptured(NativeBackend):
    def captured(self, stack: DecoderStack) -> DecoderStack:
        return stack


class Watched(NativeBackend):
    """Counts how often the layers themselves are called: once for each capture, if all is well."""

    calls = 0

    def captured(self, stack: DecoderStack) -> DecoderStack:
        def counted(hidden, context):
            self.calls += 1
            return stack(hidden, context)

        return super().captured(counted)


def pair(
    directory: Path, dtype: str = "bfloat16", quantization: str | None = None
) -> tuple[LanguageModel, LanguageModel, Watched]:
    """A model that is captured, the same that is not, and what watches the first."""
    watched, plain = Watched(load_kernels()), Uncaptured(load_kernels())
    models = [load(directory, dtype, quantization, layers=ops, attention=ATTENTION) for ops in (watched, plain)]
    return models[0], models[1], watched


def token_ids(model: LanguageModel, lengths: Sequence[int]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, model.vocab_size, (length,), generator=generator) for length in lengths]


def random_work(
    driver: Driver, sequences: list[torch.Tensor], rng: random.Random, threads: Sequence[int]
) -> Iterator[list[tuple[int, torch.Tensor]]]:
    """Steps of random members and sizes, until all is computed; threads change, too."""
    while unfinished := [s for s, ids in enumerate(sequences) if driver.computed[s] < len(ids)]:
        torch.set_num_threads(rng.choice(threads))
        chosen = rng.sample(unfinished, rng.randint(1, len(unfinished)))
        yield [(s, sequences[s][driver.computed[s] :][: rng.choice([1, 1, 20, 90])]) for s in chosen]


def steps(model: LanguageModel, seed: int, threads: Sequence[int] = (1, 2)) -> torch.Tensor:
    """All logits of three sequences."""
    driver, sequences = Driver(model, LENGTHS, attention=ATTENTION), token_ids(model, LENGTHS)
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    for work in random_work(driver, sequences, random.Random(seed), threads):
        for (s, _), rows in zip(work, driver.step(work), strict=True):
            logits[s].append(rows)
    return torch.cat([rows for sequence in logits for rows in sequence])


@pytest.mark.parametrize(
    ("case", "dtype", "quantization"),
    [
        ("qwen3-tied-head-dim", "bfloat16", None),
        ("qwen3-mha-biases", "float32", "int8"),
        ("llama-mha-tied-biases", "float16", "int4"),
        ("mistral-mqa-head-dim", "bfloat16", "int8"),
        ("gemma4_text", "bfloat16", None),
        ("gemma3n_text", "bfloat16", None),
    ],
)
@torch.inference_mode()
def test_replayed_steps_have_the_same_bits(case: str, dtype: str, quantization: str | None, tmp_path: Path) -> None:
    directory = save_model(make_model(configuration(case)), tmp_path)
    captured, plain, watched = pair(directory, dtype, quantization)
    for seed in range(4):
        assert torch.equal(steps(captured, seed), steps(plain, seed))
    assert 4 <= watched.calls <= 4 * 2, "once for each cache, and when a step is larger than those before"


class Tapping:
    """Stands for ``model.forward``, and keeps the inputs of some of its layers."""

    def __init__(self, model: LanguageModel, layers: tuple[int, ...]) -> None:
        self._forward = model.forward
        self._layers = layers
        self.kept: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        taps = Taps(self._layers)
        hidden = self._forward(input_ids, positions, replace(context, taps=taps))
        self.kept += [each.clone() for each in taps.hidden]
        assert [len(each) for each in taps.hidden] == [len(input_ids)] * len(self._layers)
        return hidden


@pytest.mark.parametrize("case", ["qwen3-tied-head-dim", "gemma4_text"])
@torch.inference_mode()
def test_inputs_of_layers_are_taken_without_a_trace(case: str, tmp_path: Path) -> None:
    """Captured or not, they have the same bits, and so has all that is computed from them."""
    directory = save_model(make_model(configuration(case)), tmp_path)
    captured, plain, watched = pair(directory)
    expected, again = steps(plain, 1), steps(captured, 1)
    ways = [Tapping(model, (2, 0, 1, 1)) for model in (captured, plain)]
    for model, way in zip((captured, plain), ways, strict=True):
        model.forward = way  # type: ignore[method-assign]
        assert torch.equal(steps(model, 1), expected)
    assert torch.equal(again, expected)
    assert ways[0].kept
    assert all(torch.equal(*each) for each in zip(ways[0].kept, ways[1].kept, strict=True))
    assert watched.calls <= 4, "captured with and without"


QUICK = ("olmo2", "deepseek_v3", "gemma4_text")
"""What `make test` captures with a single row; every other family and shape: `make test-models`."""


@pytest.mark.parametrize("quantization", [None, pytest.param("int8", marks=pytest.mark.models)])
@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.models) for name in {**CASES, **SHAPES} if name not in QUICK)],
)
@torch.inference_mode()
def test_a_capture_does_not_depend_on_its_rows(name: str, quantization: str | None, tmp_path: Path) -> None:
    """Of a single row, any stride is right; replayed with many rows, only one is."""
    directory = save_model(make_model(configuration(name)), tmp_path)
    captured, plain, watched = pair(directory, quantization=quantization)
    sequences = token_ids(plain, (1, 40, 9))

    def logits(model: LanguageModel, *steps: Sequence[int]) -> torch.Tensor:
        driver, found = Driver(model, [len(ids) for ids in sequences], attention=ATTENTION), dict[int, torch.Tensor]()
        for step in steps:
            found |= zip(step, driver.step([(place, sequences[place]) for place in step]), strict=True)
        return torch.cat([found[place] for place in range(len(sequences))])

    one_first, many_first, expected = (
        logits(model, *steps)
        for model, steps in ((captured, ([0], [1, 2])), (captured, ([1, 2], [0])), (plain, ([0], [1, 2])))
    )
    assert torch.equal(one_first, expected)
    assert torch.equal(many_first, expected)
    assert watched.calls == 2, "once for each cache: neither was it called again, nor does it compute by itself"


@pytest.mark.parametrize("layers", [NativeBackend, Uncaptured])
@pytest.mark.parametrize(
    ("case", "quantization"), [("qwen3-tied-head-dim", None), ("qwen3-tied-head-dim", "int8"), ("gemma4_text", None)]
)
@torch.inference_mode()
def test_wanted_rows_have_the_bits_that_they_have_among_all(
    layers: type[NativeBackend], case: str, quantization: str | None, tmp_path: Path
) -> None:
    """And leave the cache as it is when all are wanted, whatever was wanted in the steps before."""
    directory = save_model(make_model(configuration(case)), tmp_path)
    chosen = layers(load_kernels())
    model = load(directory, "bfloat16", quantization, layers=chosen, attention=ATTENTION)
    rng, sequences = random.Random(7), token_ids(model, LENGTHS)
    partly, fully = (Driver(model, LENGTHS, attention=ATTENTION) for _ in range(2))
    for work in random_work(partly, sequences, rng, threads=(1, 2)):
        last_alone = rng.random() < 0.7
        few, many = partly.step(work, last_alone), fully.step(work)
        for some, every in zip(few, many, strict=True):
            assert torch.equal(some, every[-len(some) :])


@pytest.mark.parametrize("quantization", [None, "int8"])
@torch.inference_mode()
def test_a_team_of_threads_computes_the_same_bits(quantization: str | None, tmp_path: Path) -> None:
    """Also one of more threads than there are processors, so that some come late or stop in the middle."""
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 8}
    directory = save_model(make_model(Qwen3Config(**(SIZES | sizes))), tmp_path)
    captured, plain, _ = pair(directory, quantization=quantization)
    for seed in range(4):
        expected = steps(plain, seed)
        for _ in range(3):
            assert torch.equal(steps(captured, seed, threads=(1, 2, 5)), expected)


@torch.inference_mode()
def test_what_torch_computes_in_between_is_not_lost(checkpoint: Path) -> None:
    class Doubling(NativeBackend):
        def captured(self, stack: DecoderStack) -> DecoderStack:
            return super().captured(lambda hidden, context: stack(hidden * 2.0, context))

    class DoublingPlain(NativeBackend):
        def captured(self, stack: DecoderStack) -> DecoderStack:
            return lambda hidden, context: stack(hidden * 2.0, context)

    a, b = (load(checkpoint, layers=ops(load_kernels()), attention=ATTENTION) for ops in (Doubling, DoublingPlain))
    assert torch.equal(steps(a, 0), steps(b, 0))


def _output(output: torch.Tensor, *_: object) -> torch.Tensor:
    return output


def test_a_graph_that_is_gone_leaves_no_memory() -> None:
    """Nor waits for the garbage collector: a model is let go of when its memory is needed."""
    gc.collect()
    gc.disable()
    try:
        pool = BufferPool(1 << 16)
        graph = KernelGraph(partial(_output, pool.take(1, 64, torch.float32)), load_kernels().replay)
        gone = [weakref.ref(pool), weakref.ref(graph)]
        del pool, graph
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
