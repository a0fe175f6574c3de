"""What is wrong with a quantized checkpoint is one error that names the tensor or the field."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.digest import WeightsDigest
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.quantization.quantizing import Tensors, save_quantized
from tests.engine_core.quantization.test_stored_formats import FORMATS, LLAMA

GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
NF4: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
AUTO_ROUND: dict[str, Any] = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4}
AUTO_ROUND |= {"group_size": 32}
WEIGHTS: dict[str, Any] = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


def compressed(**changes: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": WEIGHTS | changes.pop("weights", {})}
    groups = {"config_groups": {"group_0": group | changes.pop("group", {})}}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized"} | groups | changes


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (GPTQ | {"bits": 2}, r"GPTQ: quantization_config\.bits=2 is not supported: expected one of 4, 8"),
        (GPTQ | {"bits": True}, "bits=True"),
        (GPTQ | {"group_size": 100}, "group_size=100 is not supported: expected one of -1, 16"),
        (GPTQ | {"sym": "yes"}, "sym='yes' is not usable: expected true or false"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format='marlin' is not supported"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format=True"),
        (GPTQ | {"dynamic": {"+:(": {}}}, r"'\(' in quantization_config is not a regular expression"),
        (GPTQ | {"dynamic": {"+:x": {"bits": 3}}}, r"dynamic\['\+:x'\]\.bits=3 is not supported"),
        (GPTQ | {"dynamic": ["x"]}, "dynamic=.* is not usable: expected an object of objects"),
        (AWQ | {"version": "gemv"}, "version='gemv' is not supported: expected one of 'gemm'"),
        (AWQ | {"zero_point": False}, "zero_point=False"),
        (AWQ | {"modules_to_not_convert": "gate"}, "modules_to_not_convert='gate' is not usable: expected a list"),
        (FP8 | {"fmt": "e5m2"}, "FP8: quantization_config.fmt='e5m2'"),
        (FP8 | {"weight_block_size": [128]}, r"weight_block_size=\[128\] is not usable: expected two positive"),
        (NF4 | {"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type='fp4' is not supported: expected one of 'nf4'"),
        (NF4 | {"load_in_4bit": False}, "load_in_4bit=False"),
        (compressed(format="marlin-24"), "format='marlin-24' is not supported: expected one of 'pack-quantized'"),
        (compressed(weights={"num_bits": 3}), r"config_groups\.group_0\.weights\.num_bits=3 is not supported"),
        (compressed(weights={"type": "complex"}), "type='complex'"),
        (compressed(weights={"strategy": "attn_head"}), "strategy='attn_head'"),
        (compressed(group={"weights": None}), "weights=None is not usable: expected an object"),
        (compressed(ignore=["re:("]), r"'re:\(' in quantization_config is not a regular expression"),
        (compressed(sparsity_config={"format": "sparse-24-bitmask"}), "sparse weights .* are not supported"),
        (compressed(transform_config={"config_groups": {"R1": {}}}), "transformed weights .* are not supported"),
        (AUTO_ROUND | {"packing_format": "x"}, "AutoRound: .*packing_format='x'"),
        (AUTO_ROUND | {"extra_config": {"x": {"bits": "4"}}}, r"extra_config\['x'\]\.bits='4' is not supported"),
        (AUTO_ROUND | {"extra_config": {"x": {"data_type": "fp8"}}}, r"extra_config\['x'\]\.data_type='fp8'"),
        (
            AUTO_ROUND | {"packing_format": "auto_round:auto_awq", "extra_config": {"x": {"bits": 8}}},
            r"extra_config\['x'\]\.bits=8 is not supported: expected one of 4, 16",
        ),
        ({"quant_method": "gguf"}, "is quantized with GGUF, which is not supported"),
        ({"quant_method": "hqq"}, "is quantized with HQQ, .* choose one with .*AWQ, .*GPTQ"),
    ],
)
def test_fields(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = LLAMA.to_dict() | {"architectures": ["LlamaForCausalLM"], "quantization_config": fields}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message):
        open_at(tmp_path, "dummy")


def test_the_fallback(tmp_path: Path) -> None:
    config = LLAMA.to_dict() | {"architectures": ["LlamaForCausalLM"], "quantization_config": AWQ}
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(UnsupportedModelError, match=r"has AWQ, 4 bits .* only checkpoints that are not quantized"):
        open_at(tmp_path, "dummy", model_impl="transformers")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def checkpoint(name: str) -> Path:
        if name not in made:
            made[name] = save_quantized(LLAMA, FORMATS[name], tmp_path_factory.mktemp(name), torch.float32)
        return made[name]

    return checkpoint


UP = "model.layers.0.mlp.up_proj"


def setting(name: str, value: float, place: tuple[int, ...] = (0, 0)) -> Callable[[Tensors], object]:
    def change(tensors: Tensors) -> None:
        tensors[f"{UP}.{name}"][place] = value

    return change


def without(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.pop(f"{UP}.{name}")


def replaced(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({f"{UP}.{name}": change(tensors[f"{UP}.{name}"]).contiguous()})


def bytes_of(text: str, like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(list(text.encode()), dtype=like.dtype)


IN_EVERY_RUN = ("nan scale", "missing scale", "short codes", "groups out of range", "nan number", "state")
DAMAGES: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "nan scale": ("awq", setting("scales", torch.nan), rf"{UP}\.scales has infinities or NaNs"),
    "missing scale": ("awq", without("scales"), rf"1 missing \({UP}\.scales\)"),
    "short codes": ("awq", replaced("qweight", lambda x: x[:-1]), r"qweight is \[63, 16\], expected \[64, 16\]"),
    "groups of scales": (
        "awq",
        replaced("scales", lambda x: x[:1]),
        r"up_proj\.scales is \[1, 128\], expected \[2, 128\]",
    ),
    "type of codes": (
        "awq",
        replaced("qweight", lambda x: x.long()),
        r"up_proj\.qweight is of type int64; expected int32",
    ),
    "type of scales": (
        "awq",
        replaced("scales", lambda x: x.int()),
        r"up_proj\.scales is of type int32; expected float16",
    ),
    "other zeros": ("gptq", setting("qzeros", 0), rf"{UP}\.qzeros has other zeros than 8, .* says sym: true"),
    "groups out of range": ("gptq-ordered", setting("g_idx", 9, (0,)), rf"{UP}\.g_idx does not divide 64 inputs"),
    "uneven groups": ("gptq-ordered", replaced("g_idx", torch.zeros_like), rf"{UP}\.g_idx does not divide"),
    "zero of 256": ("gptq-8-bits-zeros", setting("qzeros", -1), rf"{UP}\.qzeros has a zero of 256"),
    "shape": ("packed", setting("weight_shape", 5, (1,)), rf"{UP}\.weight_shape is \[128, 5\], expected \[128, 64\]"),
    "one scale for groups": (
        "packed",
        replaced("weight_scale", lambda x: x[:1, 0]),
        rf"{UP}\.weight_scale is \[1\], expected \[128, 2\]",
    ),
    "nan number": ("deepseek-fp8", replaced("weight", lambda x: x.float().fill_(torch.nan).to(x.dtype)), "has NaNs"),
    "blocks": ("deepseek-fp8", replaced("weight_scale_inv", lambda x: x[:1]), rf"{UP}\.weight_scale_inv is \[1, 2\]"),
    "factor": ("nvfp4", setting("weight_global_scale", 0, (0,)), rf"{UP}\.weight_global_scale is 0.0: expected"),
    "state": (
        "nf4",
        replaced("weight.quant_state.bitsandbytes__nf4", lambda x: x.fill_(32)),
        rf"{UP}\.weight\.quant_state.* does not describe a weight",
    ),
    "endless state": (
        "nf4",
        replaced("weight.quant_state.bitsandbytes__nf4", lambda x: bytes_of('{"nested_blocksize": 1e999}', x)),
        "does not describe a weight: OverflowError",
    ),
    "long state": (
        "nf4",
        replaced("weight.quant_state.bitsandbytes__nf4", lambda x: torch.zeros(2**17, dtype=torch.uint8)),
        "has 131072 bytes: expected at most 65536",
    ),
    "codebook": ("nf4", setting("weight.quant_map", 7, (0,)), rf"{UP}\.weight\.quant_map does not hold the numbers"),
    "absmax": ("nf4-single", setting("weight.absmax", torch.nan, (0,)), rf"{UP}\.weight\.absmax has infinities"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in IN_EVERY_RUN else pytest.mark.models) for name in DAMAGES]
)
def test_tensors(name: str, checkpoints: Callable[[str], Path], tmp_path: Path) -> None:
    kind, damage, message = DAMAGES[name]
    source = checkpoints(kind)
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_activation_scales_are_passed_over_and_other_tensors_are_not(
    checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    source = checkpoints("static-fp8")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = load_file(source / "model.safetensors")
    assert f"{UP}.input_scale" in tensors
    load(source)
    save_file(tensors | {f"{UP}.other": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({UP}\.other\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("said", "zeros", "meant"), [("gptq_v2", 0x77777777, "gptq"), ("gptq", -0x77777778, "gptq_v2")]
)
def test_gptqs_zeros_of_the_other_version_are_refused(
    said: str, zeros: int, meant: str, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    source = checkpoints("gptq")
    config = json.loads((source / "config.json").read_text("utf-8"))
    tensors = load_file(source / "model.safetensors")
    for each in tensors:
        if each.endswith(".qzeros"):
            tensors[each].fill_(zeros)
    save_file(tensors, tmp_path / "model.safetensors")

    def saying(version: str) -> Path:
        config["quantization_config"]["checkpoint_format"] = version
        (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
        return tmp_path

    advice = f'set quantization_config to "quant_method": "gptq", "checkpoint_format": "{meant}"$'
    with pytest.raises(CheckpointError, match=rf"\.qzeros has 8 as version [12] of the format stores it: {advice}"):
        load(saying(said))
    assert torch.equal(logits_of(load(saying(meant)), torch.arange(20)), logits_of(load(source), torch.arange(20)))


def with_bias(checkpoint: Path, directory: Path, name: str, bias: torch.Tensor) -> Path:
    """A copy of the checkpoint with a ``bias`` for every layer that is quantized, and this one for ``name``."""
    (directory / "config.json").write_bytes((checkpoint / "config.json").read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    layers = {each.removesuffix(".scales"): len(scales[0]) for each, scales in tensors.items() if "scales" in each}
    zeros = {f"{layer}.bias": torch.zeros(outputs, dtype=torch.float16) for layer, outputs in layers.items()}
    assert len(zeros) >= 6
    save_file(tensors | zeros | {f"{name}.bias": bias}, directory / "model.safetensors")
    return directory


@pytest.mark.parametrize("name", ["gptq", "auto-round"])
def test_biases_of_zeros_that_gptq_writes_are_passed_over(
    name: str, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    plain = open_at(checkpoints(name), dtype="float32")
    zeros = open_at(with_bias(checkpoints(name), tmp_path, UP, -torch.zeros(128)), dtype="float32")
    digests = WeightsDigest(), WeightsDigest()
    found, expected = [
        logits_of(build_model(checkpoint, digest=digest), torch.arange(20))
        for checkpoint, digest in zip((zeros, plain), digests, strict=True)
    ]
    assert torch.equal(found, expected)
    assert zeros.digest(digests[0]) == plain.digest(digests[1])


@pytest.mark.parametrize("number", [1e-7, torch.nan])
def test_a_gptq_bias_that_is_not_zero_is_refused(
    number: float, checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    bias = torch.zeros(128)
    bias[77] = number
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({UP}\.bias with numbers other than zero\)"):
        load(with_bias(checkpoints("gptq"), tmp_path, UP, bias))


def test_a_bias_of_zeros_beside_a_layer_that_is_not_gptq_is_refused(
    checkpoints: Callable[[str], Path], tmp_path: Path
) -> None:
    norm = "model.layers.0.input_layernorm"
    with pytest.raises(CheckpointError, match=rf"1 unexpected \({norm}\.bias\)$"):
        load(with_bias(checkpoints("gptq"), tmp_path, norm, torch.zeros(64)))
