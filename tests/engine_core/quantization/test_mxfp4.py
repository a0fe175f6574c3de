"""Experts in MXFP4: expanded as transformers expands them, and then the same model as from expanded weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.loader import model_outline
from engine_core.quantization.mxfp4 import expand
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

PROJECTIONS = ("gate_up_proj", "down_proj")


def random_bytes(*shape: int, seed: int, low: int = 0, high: int = 256) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_byte_and_every_scale(dtype: torch.dtype) -> None:
    """But the scale 0, for which the reference's type may have no normal number, and 255, which stands for NaN."""
    scales = torch.arange(1, 255, dtype=torch.uint8)[:, None].expand(-1, 17)
    blocks = torch.cat([torch.arange(256, dtype=torch.uint8), random_bytes(16, seed=0)]).view(1, 17, 16)
    blocks = blocks.expand(len(scales), -1, -1)
    expected = convert_moe_packed_tensors(blocks[None], scales[None], dtype=dtype)[0].t()
    assert torch.equal(expand(blocks, scales).to(dtype), expected)


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


@pytest.mark.parametrize("quantization", [None, "int8"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_a_checkpoint_is_the_model_of_its_expanded_weights(
    dtype: str, quantization: str | None, checkpoints: tuple[Path, Path]
) -> None:
    ids = torch.arange(3, 60)
    packed, expanded = (load(path, dtype, quantization) for path in checkpoints)
    assert packed.weight_bytes == expanded.weight_bytes
    assert torch.equal(logits_of(packed, ids), logits_of(expanded, ids))


def test_what_it_will_take_is_known(checkpoints: tuple[Path, Path]) -> None:
    packed, expanded = (open_at(path) for path in checkpoints)
    assert (packed.expanded_quantization, expanded.expanded_quantization) == ("mxfp4", None)
    one, other = (model_outline(each) for each in (packed, expanded))
    assert one.expected_weight_bytes == other.expected_weight_bytes
    for part, same in zip(one.parts, other.parts, strict=True):
        assert (part.num_weights, part.step_weights(2)) == (same.num_weights, same.step_weights(2))


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
        (tensors | {name: tensors[name].float()}, rf"{name} is of type F32; expected one of U8"),
        (
            tensors | {"model.norm.weight": tensors["model.norm.weight"].byte()},
            r"model\.norm\.weight is of type U8; expected one of F64",
        ),
    ):
        save_file(changed, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


def test_what_no_model_expands_is_refused(tmp_path: Path) -> None:
    raw = GptOssConfig(hidden_size=72, num_local_experts=4, num_experts_per_tok=2).to_dict()
    raw |= {"architectures": ["GptOssForCausalLM"], "quantization_config": {"quant_method": "mxfp4"}}
    for changed, error, message in (
        (raw, CheckpointError, "hidden_size=72 is not usable: expected a multiple of 32 with MXFP4"),
        (raw | {"quantization_config": {"quant_method": "awq"}}, UnsupportedModelError, "quantized with AWQ"),
        (
            raw | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
            UnsupportedModelError,
            "quantized with MXFP4, which is not supported for MixtralForCausalLM",
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(changed))
        with pytest.raises(error, match=message):
            open_at(tmp_path)
