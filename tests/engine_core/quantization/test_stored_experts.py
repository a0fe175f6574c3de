"""Experts that a checkpoint has quantized, a projection at a time: read into what they stand for, kept where they are
alike, and expanded elsewhere; as routers are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine_core.activation import Activation
from engine_core.distributed.ranks import Rank
from engine_core.layers.fused_moe import FusedMoE, RouterTensors
from engine_core.layers.shares import Shares
from engine_core.model_loader.dummy import DummyWeights
from engine_core.model_loader.safetensors_reader import ExpectedTensors, SafetensorsWeights
from engine_core.ops.base import ExpertsOp, ExpertsSplit, Routing
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.base import Unquantized
from engine_core.quantization.stored import StoredMethod
from engine_core.weights.expert_tensors import ExpertTensors, InterleavedExperts, SeparateExperts, StackedExperts
from engine_core.weights.experts import ExpertsShape, QuantizedExpertWeights
from engine_core.weights.quantized_weight import SIGNED4, UNSIGNED4, Offset, QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights

from ..ops.experts import numbers
from ..ops.parts import LateRank

CPU = torch.device("cpu")
SHAPE = ExpertsShape(4, 2, 48, 80, Activation.SILU)
BIASED = replace(SHAPE, bias=True)
PLAIN = QuantFormat(SIGNED4, 16, torch.float32)
WITH_ZEROS = QuantFormat(UNSIGNED4, 16, torch.bfloat16, offset=Offset.ZERO)
WAYS: dict[str, tuple[ExpertTensors, ExpertsShape]] = {
    "separate": (SeparateExperts("l.experts", "w1", "w3", "w2"), SHAPE),
    "separate, with biases": (SeparateExperts("l.experts"), BIASED),
    "ungated": (SeparateExperts("l.experts"), replace(SHAPE, activation=Activation.RELU2, gated=False)),
    "stacked": (StackedExperts("l.experts"), SHAPE),
    "interleaved": (InterleavedExperts("l.experts"), BIASED),
}
KINDS: dict[str, Callable[[str], QuantFormat | None]] = {
    "all alike": lambda name: PLAIN,
    "downs in another format": lambda name: WITH_ZEROS if "down" in name or "w2" in name else PLAIN,
    "gates and ups unlike": lambda name: WITH_ZEROS if "up" in name or "w3" in name else PLAIN,
    "one not quantized": lambda name: None if name.endswith(("1.w2", "1.down_proj")) else PLAIN,
}


def _named(pattern: str) -> Callable[[str], bool]:
    return lambda name: re.search(pattern, name) is not None


NONE, ALL, DOWNS, UPS = map(_named, ("(?!)", "", "down|w2", "up|w3"))
ORDERS = {"in order": NONE, "all reordered": ALL, "downs reordered": DOWNS, "gates and ups in different orders": UPS}
KEPT = ("all alike", "downs in another format")


class Toy(StoredMethod):
    """Codes and scales as they are, and the columns of some weights in reverse."""

    def __init__(self, kind: Callable[[str], QuantFormat | None], reverse: Callable[[str], bool] = NONE) -> None:
        self._kind = kind
        self._reverse = reverse

    def format(self, name: str, inputs: int) -> QuantFormat | None:
        return self._kind(name)

    def tensors_of(self, piece: TensorRows, inputs: int) -> dict[str, tuple[int, ...]]:
        if (kept := self.format(piece.name, inputs)) is None:
            return super().tensors_of(piece, inputs)
        groups = (piece.count, inputs // 16)
        zeros = {f"{piece.name}.zeros": groups} if kept.offset is Offset.ZERO else {}
        return {f"{piece.name}.codes": (piece.count, inputs), f"{piece.name}.scales": groups} | zeros

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept = self.format(piece.name, inputs)
        assert kept is not None
        for start in range(piece.rows.start, piece.rows.stop, 32):
            rows = slice(start, min(start + 32, piece.rows.stop))
            codes, scales = (weights.take_stored(f"{piece.name}.{kind}", rows) for kind in ("codes", "scales"))
            has_zeros = kept.offset is Offset.ZERO
            zeros = weights.take_stored(f"{piece.name}.zeros", rows) if has_zeros else None
            yield QuantizedWeight(kept, codes, scales, zeros=zeros)

    def input_order(self, name: str, inputs: int, weights: Weights) -> torch.Tensor | None:
        return torch.arange(inputs).flip(0) if self._reverse(name) else None


class Recording(TorchBackend):
    """Notes what stays quantized."""

    def __init__(self) -> None:
        self.kept: list[list[torch.Tensor]] = []

    def quantized_experts(
        self,
        shape: ExpertsShape,
        gate_up: QuantFormat,
        down: QuantFormat,
        dtype: torch.dtype,
        experts: Iterable[QuantizedExpertWeights],
        split: ExpertsSplit | None = None,
    ) -> ExpertsOp:
        def noted(expert: QuantizedExpertWeights) -> QuantizedExpertWeights:
            tensors = [list(parts) for parts in expert.tensors]
            formats = [{part.format for part in parts} for parts in tensors]
            assert formats == [{gate_up}] * shape.num_expanding + [{down}]
            self.kept.append([torch.cat([part.codes for part in parts]) for parts in tensors])
            return replace(expert, tensors=iter(tensors))

        return super().quantized_experts(shape, gate_up, down, dtype, map(noted, experts), split)


def stored(sizes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    made: dict[str, torch.Tensor] = {}
    for seed, (name, size) in enumerate(sizes.items()):
        if name.endswith((".codes", ".zeros")):
            made[name] = torch.randint(16, size, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        elif name.endswith(".scales"):
            of_zeros = name.replace(".scales", ".zeros") in sizes
            made[name] = numbers(*size, dtype=torch.bfloat16 if of_zeros else torch.float32, seed=seed, size=0.05)
        else:
            made[name] = numbers(*size, dtype=torch.float32, seed=seed, size=0.2)
    return made


def part(way: str, backend: TorchBackend, method: Toy | Unquantized, tensors: ExpertTensors | None = None) -> FusedMoE:
    given, shape = WAYS[way]
    router, shares = RouterTensors("l.gate", bias=True), Shares(Rank(), None, backend)
    return FusedMoE(shape, Routing(2), router, tensors or given, backend, method, shares, method)


def loaded(made: FusedMoE, tensors: dict[str, torch.Tensor], directory: Path) -> FusedMoE:
    save_file(tensors, directory / "model.safetensors")
    made.load(SafetensorsWeights(directory, ExpectedTensors(made.tensors()), torch.bfloat16, CPU))
    return made


def expanded(tensors: dict[str, torch.Tensor], method: Toy, reverse: Callable[[str], bool]) -> dict[str, torch.Tensor]:
    """``.weight`` instead of the others."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        prefix, _, kind = name.rpartition(".")
        if kind == "codes":
            kept = method.format(prefix, tensor.shape[1])
            assert kept is not None
            weight = QuantizedWeight(kept, tensor, tensors[f"{prefix}.scales"], zeros=tensors.get(f"{prefix}.zeros"))
            numbers_of = weight.dequantized()
            found[f"{prefix}.weight"] = numbers_of.flip(1).contiguous() if reverse(prefix) else numbers_of
        elif kind in ("weight", "bias"):
            found[name] = tensor
    return found


@pytest.mark.parametrize("reverse", ORDERS.values(), ids=list(ORDERS))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_they_are_read_into_what_they_stand_for(
    way: str, kind: str, reverse: Callable[[str], bool], tmp_path: Path
) -> None:
    """Of any architecture each projection has tensors of its own, and so has the router."""
    backend, method = Recording(), Toy(KINDS[kind], reverse)
    made = part(way, backend, method)
    tensors = stored(made.tensors())
    loaded(made, tensors, tmp_path)
    reference = part(way, backend, Unquantized(), WAYS[way][0].separate)
    loaded(reference, expanded(tensors, method, reverse), tmp_path)
    x = numbers(9, 48, dtype=torch.bfloat16, seed=1)
    assert torch.equal(made(x, x), reference(x, x))
    is_gated = WAYS[way][1].gated
    is_kept = kind in KEPT and reverse is not UPS if is_gated else kind != "one not quantized"
    assert len(backend.kept) == (SHAPE.num_experts if is_kept else 0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_they_will_take_is_known(kind: str) -> None:
    made = part("separate, with biases", Recording(), Toy(KINDS[kind]))
    gate_up, down = 2 * 80 * 48, 48 * 80
    whole = 4 * (gate_up + down + 2 * 80 + 48)
    kept = {
        "all alike": 4 * ((gate_up + down) * (0.5 + 4 / 16) + 4 * (2 * 80 + 48)),
        "downs in another format": 4 * (gate_up * (0.5 + 4 / 16) + down * (0.5 + 3 / 16) + 4 * (2 * 80 + 48)),
    }
    router = 4 * (48 + 1)
    assert made.weight_bytes(2) == 2 * router + kept.get(kind, 2 * whole)
    assert [each.count for each in made.step_weights(2)] == [router, whole]
    assert made.num_weights == router + whole


def test_experts_that_are_not_quantized_are_as_elsewhere() -> None:
    """A way of their own that their model has for them, unless the checkpoint takes them apart."""
    made, plain = part("stacked", Recording(), Toy(lambda name: None)), part("stacked", Recording(), Unquantized())
    assert made.tensors() == plain.tensors()
    assert made.weight_bytes(2) == plain.weight_bytes(2)

    class Apart(Toy):
        separates_experts = True

    apart = part("stacked", Recording(), Apart(lambda name: None))
    separate = part("stacked", Recording(), Unquantized(), SeparateExperts("l.experts"))
    assert apart.tensors() == separate.tensors()


@pytest.mark.parametrize("expert_parallel", [False, True], ids=["outputs", "experts"])
def test_each_rank_has_its_rows(expert_parallel: bool, tmp_path: Path) -> None:
    tensors, shape = WAYS["separate, with biases"]
    method, whole = Toy(KINDS["all alike"]), Recording()
    made = part("separate, with biases", whole, method)
    content = stored(made.tensors())
    loaded(made, content, tmp_path)
    for rank in range(2):
        split = ExpertsSplit.of(shape, LateRank(rank, 2), expert_parallel=expert_parallel)
        backend, sizes = Recording(), method.expert_tensors(shape, tensors)
        save_file({name: content[name] for name in sizes}, tmp_path / "model.safetensors")
        weights = SafetensorsWeights(tmp_path, ExpectedTensors(sizes), torch.bfloat16, CPU)
        op = method.load_experts(shape, tensors, weights, backend, split)
        own = split.own
        for found, expert in zip(backend.kept, own.experts, strict=True):
            for codes, rows, of_whole in zip(
                found, (own.inner, own.inner, own.hidden), whole.kept[expert], strict=True
            ):
                assert torch.equal(codes, of_whole[rows.start : rows.stop])
        assert op.nbytes == 2 * shape.num_weights_of(own)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_dummy_weights(way: str, kind: str) -> None:
    made = part(way, Recording(), Toy(KINDS[kind], ALL))
    made.load(DummyWeights(made.tensors(), torch.bfloat16, CPU, seed=0))
    y = made(numbers(9, 48, dtype=torch.bfloat16, seed=1), None).float()
    assert y.isfinite().all()
    assert y.std() > 1e-4
