"""Experts in MXFP4: what is read stands for what transformers expands it to, and makes the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.layers.fused_moe import FusedMoE
from engine_core.model_loader.loader import model_outline
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.mxfp4 import MXFP4
from engine_core.quantization.packing import nibbles_of, powers_of_two
from engine_core.weights.quantized_weight import QuantizedWeight
from tests.engine_core.distributed.ranks import assert_bits, on_ranks
from tests.engine_core.distributed.test_tensor_parallel import run_steps
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

PROJECTIONS = ("gate_up_proj", "down_proj")
IDS = torch.arange(3, 60)


def random_bytes(*shape: int, seed: int, low: int = 0, high: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


def test_every_byte_and_every_scale() -> None:
    """To the bit, in float32; 255, which stands for NaN, is refused elsewhere."""
    scales = torch.arange(255, dtype=torch.uint8)[:, None].expand(-1, 17)
    blocks = torch.cat([torch.arange(256, dtype=torch.uint8), random_bytes(16, seed=0)]).view(1, 17, 16)
    blocks = blocks.expand(len(scales), -1, -1)
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=torch.float32)[0].t()
    weight = QuantizedWeight(MXFP4, nibbles_of(blocks.flatten(1)), powers_of_two(scales))
    assert torch.equal(weight.dequantized(), expected)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One in MXFP4, and the same expanded by transformers."""
    config = configuration("gpt_oss")
    config.hidden_size, config.intermediate_size = 64, 96
    packed, expanded = (tmp_path_factory.mktemp(name) for name in ("packed", "expanded"))
    save_model(make_model(config), expanded)
    tensors = load_file(expanded / "model.safetensors")
    names = [name for name in tensors if name.endswith(PROJECTIONS)]
    assert len(names) == 2 * config.num_hidden_layers
    stored = {name: tensor for name, tensor in tensors.items() if name not in names}
    for seed, name in enumerate(names):
        experts, inputs, outputs = tensors[name].shape
        blocks = random_bytes(experts, outputs, inputs // 32, 16, seed=seed)
        scales = random_bytes(experts, outputs, inputs // 32, seed=seed, low=119, high=124)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    save_file(tensors, expanded / "model.safetensors", {"format": "pt"})
    save_file(stored, packed / "model.safetensors", {"format": "pt"})
    raw = json.loads((expanded / "config.json").read_text())
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    (packed / "config.json").write_text(json.dumps(raw | {"quantization_config": quantization}))
    return packed, expanded


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_expanded_it_is_the_model_of_its_expanded_weights(dtype: str, checkpoints: tuple[Path, Path]) -> None:
    packed, expanded = (load(path, dtype, layers=TorchBackend()) for path in checkpoints)
    assert packed.weight_bytes == expanded.weight_bytes
    assert torch.equal(logits_of(packed, IDS), logits_of(expanded, IDS))


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.05), ("float32", 1e-5), ("float16", 0.01)])
def test_kept_it_is_nearly_that_model(dtype: str, tolerance: float, checkpoints: tuple[Path, Path]) -> None:
    """Sums of groups are added up, which rounds elsewhere."""
    packed, expanded = (load(path, dtype) for path in checkpoints)
    one, other = logits_of(packed, IDS), logits_of(expanded, IDS)
    torch.testing.assert_close(one, other, atol=tolerance * float(other.std()), rtol=0)
    assert packed.weight_bytes < expanded.weight_bytes


@pytest.mark.models
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_ranks_compute_the_bits_of_one_process(dtype: str, checkpoints: tuple[Path, Path]) -> None:
    checkpoint = open_at(checkpoints[0], dtype=dtype)
    assert_bits(on_ranks(checkpoint, 2, run_steps)[0], run_steps(build_model(checkpoint)))


def test_what_it_will_take_is_known(checkpoints: tuple[Path, Path]) -> None:
    packed, expanded = (model_outline(open_at(path, dtype="bfloat16")) for path in checkpoints)
    (shape,) = {part.shape for part in packed.parts if isinstance(part, FusedMoE)}
    biases = shape.num_experts * (2 * shape.intermediate_size + shape.hidden_size)
    for part, same in zip(packed.parts, expanded.parts, strict=True):
        assert part.num_weights == same.num_weights
        if isinstance(part, FusedMoE):
            kept = (shape.num_weights - biases) * 4.5 / 8 + 4 * biases
            assert part.weight_bytes(2) == part.gate.weight_bytes(2) + kept
            assert [each.nbytes for each in part.step_weights(2)] == [part.gate.weight_bytes(2), kept]
        else:
            assert part.weight_bytes(2) == same.weight_bytes(2)


def test_what_is_quantized_is_not_rounded_again(checkpoints: tuple[Path, Path]) -> None:
    with pytest.raises(ConfigError, match="quantized already, with MXFP4"):
        open_at(checkpoints[0], quantization="int8")


def test_dummy_weights_are_of_the_usual_size(checkpoints: tuple[Path, Path]) -> None:
    packed, _ = checkpoints
    logits = logits_of(build_model(open_at(packed, load_format="dummy")), torch.arange(3, 30))
    assert logits.isfinite().all()
    assert logits.std() > 1e-4


def test_what_does_not_fit_is_named(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    packed, _ = checkpoints
    (tmp_path / "config.json").write_text((packed / "config.json").read_text())
    tensors = load_file(packed / "model.safetensors")
    name = "model.layers.1.mlp.experts.down_proj_scales"
    for changed, message in (
        ({key: tensor for key, tensor in tensors.items() if key != name}, rf"1 missing \({name}\)"),
        (tensors | {name: tensors[name][:, :-1].contiguous()}, rf"1 mis-shaped \({name} is"),
        (
            tensors | {name: tensors[name].float()},
            rf"{name} is of type float32; expected uint8",
        ),
        (tensors | {name: tensors[name].where(tensors[name] != 119, 255)}, rf"{name} has NaNs"),
        (
            tensors | {"model.norm.weight": tensors["model.norm.weight"].byte()},
            r"model\.norm\.weight is of type U8; expected one of F64",
        ),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


def test_what_no_model_has_is_refused(tmp_path: Path) -> None:
    raw = GptOssConfig(hidden_size=72, num_local_experts=4, num_experts_per_tok=2).to_dict()
    raw |= {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}
    for changed, error, message in (
        (raw, CheckpointError, "gate_up_proj has 72 inputs, which is not usable: expected a multiple of 32 with MXFP4"),
        (raw | {"quantization_config": {"quant_method": "hqq"}}, UnsupportedModelError, "which is not supported"),
        (
            raw | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
            UnsupportedModelError,
            "MXFP4 is not supported for experts of this architecture, only for those of gpt-oss",
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(error, match=message):
            model_outline(open_at(tmp_path, load_format="dummy")).tensors()
