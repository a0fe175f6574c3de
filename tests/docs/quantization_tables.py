"""The tables of docs/reference/quantization.md: how each format is kept, read off the methods that the registry has,
and what each family keeps in the model's type.

``python -m tests.docs.quantization_tables`` writes them into the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_core.model_loader.gguf.architectures import ARCHITECTURES as GGUF
from engine_core.models.registry import ARCHITECTURES
from engine_core.quantization.compressed_schemes import FP4_FORMATS
from engine_core.quantization.gguf_blocks import BLOCK_TYPES
from engine_core.quantization.int4 import Int4
from engine_core.quantization.mxfp4 import MXFP4
from engine_core.quantization.registry import STORED
from engine_core.quantization.stored import StoredMethod
from engine_core.weights.quantized_weight import Offset, QuantFormat
from tests.docs.documents import ROOT, Generated
from tests.engine_core.models.families import SHAPES
from tests.engine_core.models.tiny_models import CASES

_BEGIN = "<!-- The {} by `python -m tests.docs.quantization_tables`, which a test runs. -->\n"
_END = "<!-- End of the {}. -->"
_LAYER, _INPUTS, _OUTPUTS = "model.layers.0.self_attn.q_proj", 4096, 256


def _integers(bits: int, **arguments: Any) -> dict[str, Any]:
    weights = {"num_bits": bits, "type": "int", "strategy": "channel", "symmetric": True, **arguments}
    stored = "pack-quantized" if bits == 4 else "int-quantized"
    return _compressed(stored, weights)


def _floats(stored: str) -> dict[str, Any]:
    return _compressed(stored, {"num_bits": 4, "type": "float", "group_size": FP4_FORMATS[stored]})


def _compressed(stored: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    return {"format": stored, "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


EXAMPLES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "awq": ({"bits": 4, "group_size": 128},),
    "bitsandbytes": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, {"load_in_8bit": True}),
    "compressed-tensors": (
        _integers(4, strategy="group", group_size=128),
        _integers(8),
        *map(_floats, FP4_FORMATS),
    ),
    "fp8": ({}, {"weight_block_size": [128, 128]}),
    "gptq": ({"bits": 4, "group_size": 128}, {"bits": 8, "group_size": 128}),
}
"""``quantization_config`` of checkpoints as most are, by ``quant_method``. The others have rows of their own."""


def formats() -> str:
    """A row for each format."""
    rows = []
    for method, examples in EXAMPLES.items():
        for fields in examples:
            config = STORED[method]({"quant_method": method, **fields}, {})
            reader = config.method((_LAYER,))
            assert isinstance(reader, StoredMethod)
            kept = reader.format(_LAYER, _INPUTS)
            assert kept is not None
            rows.append(_format_row(config.describe(), kept))
    rows.append(_format_row("MXFP4, experts of gpt-oss alone", MXFP4))
    rows += [_format_row(f"GGUF: {name}", block.format) for name, block in BLOCK_TYPES.items()]
    rows += [_format_row(f"`--quantization int4`, groups of {size}", Int4(size, None).format) for size in (32, 64, 128)]
    head = "| format | codes | a scale for | and a | bits of a weight in memory |\n|---|---|---|---|---:|\n"
    return head + "".join(rows)


def _format_row(name: str, kept: QuantFormat) -> str:
    numbers = "integers" if kept.is_linear else f"of {len(kept.codebook)} numbers"
    inputs = "a row" if kept.group_size >= _INPUTS else f"{kept.group_size} inputs"
    if kept.outer_size is not None:
        inputs += f", times one for {kept.outer_size}"
    offset = {Offset.NONE: "", Offset.ZERO: "zero", Offset.MINIMUM: "minimum"}[kept.offset]
    bits = 8 * kept.nbytes(_OUTPUTS, _INPUTS) / (_OUTPUTS * _INPUTS)
    return f"| {name} | {kept.bits} bits, {numbers} | {inputs} | {offset} | {bits:.4g} |\n"


def families() -> str:
    """A row for each architecture, in the order of the registry."""
    head = "| architecture | stays in the model's type | name in GGUF |\n|---|---|---|\n"
    return head + "".join(_family_row(name, model) for name, model in ARCHITECTURES.items())


def _family_row(name: str, model: Any) -> str:
    tested = [config for config in (*CASES.values(), *SHAPES.values()) if config.model_type == model.model_type]
    read = [model.read_config(config) for config in tested]
    left_out = ["`kv_b_proj`"] if any(hasattr(config, "mla") for config in read) else []
    if any(getattr(config, "mixture", None) is not None for config in read):
        left_out.append("routers")
    found = [
        f"`{value}`" for value, each in GGUF.items() if name in {each.name, *(one.name for _, one in each.variants)}
    ]
    return f"| {name} | {', '.join(left_out)} | {', '.join(found) or 'not read'} |\n"


TABLES = [
    Generated(ROOT / "docs" / "reference" / "quantization.md", _BEGIN.format(name), _END.format(name), make)
    for name, make in (("formats", formats), ("families", families))
]

if __name__ == "__main__":
    for one in TABLES:
        one.write()
