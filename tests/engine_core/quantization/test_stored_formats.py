"""Quantized checkpoints compute what the weights that they stand for compute."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig

from tests.engine_core.models.driver import load, logits_of
from tests.engine_core.models.tiny_models import SIZES
from tests.engine_core.quantization.quantizing import (
    Quantizer,
    auto_round,
    auto_round_awq,
    awq,
    compressed,
    fp8,
    gptq,
    llm_int8,
    mixed,
    nf4,
    save_quantized,
)

LLAMA = LlamaConfig(**(SIZES | {"intermediate_size": 128, "num_hidden_layers": 1}))
PER_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
PACKED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
FORMATS: dict[str, Quantizer] = {
    "awq": awq(),
    "awq-exceptions": awq(exceptions=("k_proj", "mlp.up_proj")),
    "awq-whole-rows": awq(-1),
    "gptq": gptq(),
    "gptq-ordered": gptq(ordered=True),
    "gptq-zeros": gptq(symmetric=False),
    "gptq-v2-zeros-ordered": gptq(symmetric=False, ordered=True, version=2),
    "gptq-8-bits": gptq(8, -1),
    "gptq-8-bits-zeros": gptq(8, symmetric=False),
    "gptq-rules": gptq(dynamic={"k_proj": {"bits": 8}, "down_proj": {"group_size": 16}}, left_out="gate_proj"),
    "auto-round": auto_round(),
    "auto-round-awq": auto_round_awq(),
    "packed": compressed("pack-quantized", **PACKED),
    "packed-zeros": compressed("pack-quantized", **(PACKED | {"symmetric": False})),
    "packed-channels": compressed("pack-quantized", **(PACKED | {"strategy": "channel", "group_size": None})),
    "packed-8-bits": compressed("pack-quantized", **(PACKED | {"num_bits": 8})),
    "int8": compressed("int-quantized", PER_TOKEN, num_bits=8, type="int", strategy="channel"),
    "fp8-tensors": compressed("float-quantized", **FP8, strategy="tensor"),
    "fp8-channels": compressed("float-quantized", **FP8, strategy="channel"),
    "fp8-blocks": compressed("naive-quantized", **FP8, strategy="block", block_structure=[32, 32]),
    "nvfp4": compressed(
        "nvfp4-pack-quantized", num_bits=4, type="float", symmetric=True, strategy="tensor_group", group_size=16
    ),
    "mxfp4": compressed(
        "mxfp4-pack-quantized", num_bits=4, type="float", symmetric=True, strategy="group", group_size=32
    ),
    "mixed": mixed(
        ("pack-quantized", None, ("re:.*q_proj$", "re:.*up_proj$"), PACKED),
        ("float-quantized", None, ("Linear",), FP8 | {"strategy": "channel"}),
    ),
    "deepseek-fp8": fp8((32, 32)),
    "static-fp8": fp8(static=True),
    "scalar-fp8": fp8(shape=()),
    "nf4": nf4(),
    "nf4-single": nf4(double=False),
    "llm-int8": llm_int8(),
}


def check(config: PretrainedConfig, quantizer: Quantizer, directory: Path) -> None:
    """In float32, where kernels for quantized weights round nothing that others do not."""
    quantized = save_quantized(config, quantizer, directory, torch.float32)
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))
    found = logits_of(load(quantized), ids, chunks=[33, 1, 6])
    expected = logits_of(load(directory / "expanded"), ids)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=1e-4)


IN_EVERY_RUN = ("awq", "gptq-v2-zeros-ordered", "packed-zeros", "mixed", "deepseek-fp8", "nf4")
NAMES = [pytest.param(name, marks=[] if name in IN_EVERY_RUN else pytest.mark.models) for name in FORMATS]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_weights_meant(name: str, tmp_path: Path) -> None:
    check(LLAMA, FORMATS[name], tmp_path)


def test_a_head_that_a_rule_names_is_quantized(tmp_path: Path) -> None:
    config = LlamaConfig(**(SIZES | {"intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 224}))
    check(config, auto_round(head=True), tmp_path)
