"""Experts as checkpoints keep them: each way is read into the same experts, and every tensor that is missing, too
much or misshaped is named.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine_core.activation import Activation
from engine_core.distributed.ranks import Rank
from engine_core.errors import CheckpointError
from engine_core.kernels.library import load_int8_kernels, load_kernels
from engine_core.layers.fused_moe import FusedMoE, RouterTensors
from engine_core.layers.shares import Shares
from engine_core.model_loader.expected import ExpectedTensors
from engine_core.model_loader.safetensors_reader import SafetensorsWeights
from engine_core.ops.base import ExpertsOp, OpsBackend, Routing
from engine_core.ops.native import NativeBackend
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.base import QuantMethod, Unquantized
from engine_core.quantization.int8 import Int8
from engine_core.weights.expert_tensors import ExpertTensors, InterleavedExperts, SeparateExperts, StackedExperts
from engine_core.weights.experts import ExpertsShape

from ..ops.experts import load, numbers, weights_of

SHAPE = ExpertsShape(3, 2, 48, 33, Activation.SILU)
ROUTER = RouterTensors("l.gate", bias=True, correction_bias="l.gate.shift", expert_scales="l.scales")
WAYS: dict[str, tuple[ExpertTensors, ExpertsShape]] = {
    "separate": (SeparateExperts("l.experts"), SHAPE),
    "other names": (SeparateExperts("l.experts", gate="w1", up="w3", down="w2"), SHAPE),
    "stacked": (StackedExperts("l.experts"), SHAPE),
    "separate, with biases": (SeparateExperts("l.experts"), replace(SHAPE, bias=True)),
    "interleaved": (InterleavedExperts("l.experts"), replace(SHAPE, bias=True)),
}
BACKENDS: dict[str, OpsBackend] = {"native": NativeBackend(load_kernels()), "torch": TorchBackend()}
METHODS: dict[str, QuantMethod] = {"unquantized": Unquantized(), "int8": Int8(load_int8_kernels())}


def stored(tensors: ExpertTensors, shape: ExpertsShape, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The experts of ``weights_of``."""
    experts = [weights_of(shape, expert, dtype) for expert in range(shape.num_experts)]
    gates, ups, downs = (torch.stack([weights[i] for weights, _ in experts]) for i in range(3))
    match tensors:
        case SeparateExperts(prefix):
            return {
                f"{prefix}.{number}.{name}.{kind}": tensor.clone()
                for number, (of_expert, biases) in enumerate(experts)
                for kind, each in (("weight", of_expert), ("bias", biases or ()))
                for name, tensor in zip((tensors.gate, tensors.up, tensors.down), each, strict=kind == "weight")
            }
        case StackedExperts(prefix):
            return {f"{prefix}.gate_up_proj": torch.cat([gates, ups], 1), f"{prefix}.down_proj": downs}
        case InterleavedExperts(prefix):
            biases = [biases for _, biases in experts if biases is not None]
            gate_biases, up_biases, down_biases = (torch.stack([each[i] for each in biases]) for i in range(3))
            return {
                f"{prefix}.gate_up_proj": torch.stack([gates, ups], 2).flatten(1, 2).transpose(1, 2).contiguous(),
                f"{prefix}.down_proj": downs.transpose(1, 2).contiguous(),
                f"{prefix}.gate_up_proj_bias": torch.stack([gate_biases, up_biases], 2).flatten(1),
                f"{prefix}.down_proj_bias": down_biases,
            }
    raise AssertionError(tensors)


def of_router(shape: ExpertsShape, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    count = shape.num_experts
    return {
        "l.gate.weight": numbers(count, shape.hidden_size, dtype=dtype, seed=1, size=0.2),
        "l.gate.bias": numbers(count, dtype=dtype, seed=2),
        "l.gate.shift": numbers(count, dtype=torch.float32, seed=3),
        "l.scales": numbers(count, dtype=torch.float32, seed=4),
    }


def part(way: str, backend: OpsBackend, method: QuantMethod) -> FusedMoE:
    tensors, shape = WAYS[way]
    shares = Shares(Rank(), None, backend)
    return FusedMoE(shape, Routing(shape.top_k), ROUTER, tensors, backend, method, shares, method)


def opened(directory: Path, made: FusedMoE, dtype: torch.dtype) -> SafetensorsWeights:
    return SafetensorsWeights(directory, ExpectedTensors(made.tensors()), dtype, torch.device("cpu"))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_read_into_the_same_experts(way: str, backend: str, method: str, tmp_path: Path) -> None:
    """The files have another type than the model; what is not to be rounded is not."""
    layers, quantized, dtype = BACKENDS[backend], METHODS[method], torch.bfloat16
    tensors, shape = WAYS[way]
    as_stored = stored(tensors, shape, dtype) | of_router(shape, dtype)
    save_file({name: tensor.float() for name, tensor in as_stored.items()}, tmp_path / "model.safetensors")
    made = part(way, layers, quantized)
    made.load(opened(tmp_path, made, dtype))

    experts: ExpertsOp = load(quantized.experts(shape, dtype, layers), shape, dtype)
    gate = layers.linear(as_stored["l.gate.weight"], as_stored["l.gate.bias"])
    x, residual = (numbers(30, shape.hidden_size, dtype=dtype, seed=seed) for seed in (5, 6))
    shift, scales = as_stored["l.gate.shift"], as_stored["l.scales"]
    ids, weights = layers.route(gate(x, dtype=torch.float32), Routing(shape.top_k), shift, scales)
    assert len(ids.unique()) == shape.num_experts
    assert torch.equal(made(x, residual), experts(x, ids, weights, residual))
    assert made.nbytes == gate.nbytes + experts.nbytes + 2 * 4 * shape.num_experts


@pytest.mark.parametrize("way", WAYS)
def test_what_does_not_fit_is_named(way: str, tmp_path: Path) -> None:
    made = part(way, BACKENDS["torch"], METHODS["unquantized"])
    tensors, shape = WAYS[way]
    all_tensors = stored(tensors, shape, torch.float32) | of_router(shape, torch.float32)

    def refusal(changed: dict[str, torch.Tensor]) -> str:
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError) as caught:
            opened(tmp_path, made, torch.float32)
        return str(caught.value)

    for name, tensor in all_tensors.items():
        rest = {other: all_tensors[other] for other in all_tensors if other != name}
        assert f"1 missing ({name})" in refusal(rest)
        larger = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 1)
        expected = f"1 mis-shaped ({name} is {list(larger.shape)}, expected {list(tensor.shape)})"
        assert expected in refusal(rest | {name: larger})
    assert "1 unexpected (l.experts.3.down_proj.weight)" in refusal(
        all_tensors | {"l.experts.3.down_proj.weight": torch.zeros(48, 33)}
    )


def test_an_expert_in_two_files_is_named(tmp_path: Path) -> None:
    made = part("separate", BACKENDS["torch"], METHODS["unquantized"])
    tensors, shape = WAYS["separate"]
    all_tensors = stored(tensors, shape, torch.float32) | of_router(shape, torch.float32)
    twice = "l.experts.1.up_proj.weight"
    save_file(all_tensors, tmp_path / "a.safetensors")
    save_file({twice: all_tensors[twice]}, tmp_path / "b.safetensors")
    index = dict.fromkeys(all_tensors, "a.safetensors") | {twice: "b.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(CheckpointError, match=rf"tensors in more than one file: {twice}"):
        opened(tmp_path, made, torch.float32)
