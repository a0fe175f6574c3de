"""bitsandbytes: NF4 (Dettmers et al., 2023, https://arxiv.org/abs/2305.14314) in blocks of 64 numbers, and 8 bits with
a scale for each output (LLM.int8()).

An NF4 weight is stored flat, two codes in a byte, the first in its high half. The greatest magnitude of each block,
``absmax``, is itself a code of 8 bits with double quantization: it stands for a number of ``nested_quant_map``, times
``nested_absmax`` (one for each 256), plus an offset in ``quant_state``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.quantization.config_fields import ConfigFields, is_linear
from engine_core.quantization.packing import nibbles_of, some_rows, take, take_scales
from engine_core.quantization.schemes import Scheme, SchemesConfig, Tensors, is_listed
from engine_core.weights.quantized_weight import NF4, SIGNED8, QuantFormat, QuantizedWeight
from engine_core.weights.source import TensorRows, Weights

_BLOCK = 64
_NESTED_BLOCK = 256
_MOST_STATE_BYTES = 2**16
_STATE = "weight.quant_state.bitsandbytes__nf4"


@dataclass(frozen=True, slots=True)
class Nf4Scheme(Scheme):
    """Codes of 4 bits, packed flat."""

    double: bool
    """Whether ``absmax`` is quantized, too."""
    state_bytes: int
    """Length of the JSON object that describes the weight."""

    def format(self, inputs: int) -> QuantFormat:
        return QuantFormat(NF4, _BLOCK, torch.float32)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        if inputs % _BLOCK:
            raise UnsupportedModelError(f"{name} has {inputs} inputs, and NF4 is read in multiples of {_BLOCK} alone")
        blocks = outputs * inputs // _BLOCK
        found: dict[str, tuple[int, ...]] = {
            f"{name}.weight": (outputs * inputs // 2, 1),
            f"{name}.weight.absmax": (blocks,),
            f"{name}.weight.quant_map": (len(NF4),),
            f"{name}.{_STATE}": (self.state_bytes,),
        }
        if self.double:
            found[f"{name}.weight.nested_absmax"] = (-(-blocks // _NESTED_BLOCK),)
            found[f"{name}.weight.nested_quant_map"] = (256,)
        return found

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        kept, name = self.format(inputs), piece.name
        offset = self._check(name, (piece.count, inputs), weights)
        row_bytes, row_blocks = inputs // 2, inputs // _BLOCK
        for rows in some_rows(piece.rows, inputs):
            place = slice(rows.start * row_bytes, rows.stop * row_bytes)
            packed = take(weights, f"{name}.weight", (torch.uint8,), place).view(len(rows), row_bytes)
            blocks = range(rows.start * row_blocks, rows.stop * row_blocks)
            scales = self._absmax(name, blocks, offset, weights).view(len(rows), row_blocks)
            yield QuantizedWeight(kept, nibbles_of(packed, high_first=True), scales)

    def _absmax(self, name: str, blocks: range, offset: float, weights: Weights) -> torch.Tensor:
        """[``blocks``] float32."""
        place = slice(blocks.start, blocks.stop)
        if not self.double:
            return take_scales(weights, f"{name}.weight.absmax", torch.float32, place)
        codes = take(weights, f"{name}.weight.absmax", (torch.uint8,), place)
        meant = take_scales(weights, f"{name}.weight.nested_quant_map", torch.float32)[codes.long()]
        outer = take_scales(weights, f"{name}.weight.nested_absmax", torch.float32)
        return meant * outer[torch.arange(blocks.start, blocks.stop) // _NESTED_BLOCK] + offset

    def _check(self, name: str, shape: tuple[int, int], weights: Weights) -> float:
        """Raise ``CheckpointError`` unless the description matches; return the offset of ``absmax``."""
        codebook = take(weights, f"{name}.weight.quant_map", (torch.float32,))
        if not torch.allclose(codebook, torch.tensor(NF4), rtol=0, atol=1e-6):
            raise CheckpointError(f"{name}.weight.quant_map does not hold the numbers of NF4")
        stored = take(weights, f"{name}.{_STATE}", (torch.uint8,))
        if stored.numel() > _MOST_STATE_BYTES:
            raise CheckpointError(f"{name}.{_STATE} has {stored.numel()} bytes: expected at most {_MOST_STATE_BYTES}")
        content = bytes(stored.tolist())
        try:
            state = json.loads(content)
            nested = int(state["nested_blocksize"]) if self.double else _NESTED_BLOCK
            offset = float(state["nested_offset"]) if self.double else 0.0
            found = (tuple(state["shape"]), state["blocksize"], nested)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"{name}.{_STATE} does not describe a weight: {error!r}") from error
        if found != (shape, _BLOCK, _NESTED_BLOCK) or not math.isfinite(offset):
            raise CheckpointError(
                f"{name}.{_STATE} says shape {list(found[0])}, blocks of {found[1]} and of {found[2]}, offset "
                f"{offset}: expected shape {list(shape)}, blocks of {_BLOCK} and of {_NESTED_BLOCK}, and a number"
            )
        return offset


@dataclass(frozen=True, slots=True)
class Int8Scheme(Scheme):
    """Integers of 8 bits [N, K]; 127 stands for ``SCB`` [N]."""

    def format(self, inputs: int) -> QuantFormat:
        return QuantFormat(SIGNED8, inputs, torch.float32)

    def tensors(self, name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (outputs, inputs), f"{name}.SCB": (outputs,)}

    def read(self, piece: TensorRows, inputs: int, weights: Weights) -> Iterator[QuantizedWeight]:
        for rows in some_rows(piece.rows, inputs):
            place = slice(rows.start, rows.stop)
            codes = take(weights, f"{piece.name}.weight", (torch.int8,), place).view(torch.uint8) ^ 128
            scales = take_scales(weights, f"{piece.name}.SCB", torch.float32, place) / 127
            yield QuantizedWeight(self.format(inputs), codes, scales[:, None])


class BitsAndBytesConfig(SchemesConfig):
    """Quantizes linear layers of decoder layers, except those listed."""

    def __init__(self, fields: Mapping[str, Any], tensors: Tensors) -> None:
        super().__init__()
        known = ConfigFields("bitsandbytes", fields)
        self._is_int8 = known.flag("load_in_8bit", False)
        if not self._is_int8:
            known.one_of("load_in_4bit", (True,))
            known.one_of("bnb_4bit_quant_type", ("nf4",))
            known.one_of("bnb_4bit_quant_storage", ("uint8",), "uint8")
        self._double = known.flag("bnb_4bit_use_double_quant", False)
        self._exceptions = known.strings("llm_int8_skip_modules")
        self._tensors = tensors

    def scheme(self, name: str) -> Scheme | None:
        weight = self._tensors.get(f"{name}.weight")
        if weight is not None and weight.dtype not in (torch.uint8, torch.int8):
            return None
        if weight is None and (not is_linear(name) or is_listed(name, self._exceptions)):
            return None
        if self._is_int8:
            return Int8Scheme()
        state = self._tensors.get(f"{name}.{_STATE}")
        return Nf4Scheme(self._double, 0 if state is None else math.prod(state.shape))

    def is_redundant(self, name: str) -> bool:
        return name.endswith(".weight_format")

    def describe(self) -> str:
        return "bitsandbytes, 8 bits" if self._is_int8 else "bitsandbytes, NF4"
