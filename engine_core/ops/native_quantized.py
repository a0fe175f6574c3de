"""Weights that stay quantized, packed as in cpu/quantized/code_lines.h, and linear layers of them."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import addressof

import torch

from engine_core.kernels.arguments import NUMBER_TYPES, structures
from engine_core.kernels.library import Kernels
from engine_core.kernels.memory import empty_for_streaming
from engine_core.ops.native_linear import PackedLinear
from engine_core.ops.native_packing import PANEL, TILE
from engine_core.weights.quantized_weight import Offset, QuantFormat, QuantizedWeight

_ROUNDED_TOGETHER = 128
"""Inputs in 8 bits that share a scale, as in cpu/quantized/int8_activations.h."""


def keeps(kept: QuantFormat, inputs: int) -> bool:
    """Whether the kernels can compute with a weight of this format and ``inputs``."""
    if kept.outer_size is not None and kept.group_size >= inputs > _ROUNDED_TOGETHER and inputs % _ROUNDED_TOGETHER:
        return False  # rounded inputs have a scale for each block, and the kernels want whole ones in an outer group
    return inputs % PANEL == 0 and (kept.group_size % PANEL == 0 or kept.group_size >= inputs)


def _sizes(kept: QuantFormat, inputs: int) -> tuple[int, int | None]:
    """Inputs of a group, and of an outer group (whole groups): a group of all inputs is both."""
    if kept.group_size < inputs:
        return kept.group_size, kept.outer_size
    return inputs, None if kept.outer_size is None else inputs


def _code_bits(kept: QuantFormat, inputs: int) -> int:
    """Bits in which codes are kept: 8 if ``inputs`` that share a scale do not fill the lines of 5-bit codes."""
    fills = inputs % 32 == 0 and (kept.group_size >= inputs or (kept.group_size % 32 == 0 and kept.group_size <= 128))
    return 8 if kept.bits == 5 and not fills else kept.bits


class PackedQuantizedWeights:
    """Weights [N, K] of one size and format, one after the other, each padded to whole tiles."""

    def __init__(
        self,
        kernels: Kernels,
        kept: QuantFormat,
        outputs: int,
        inputs: int,
        *,
        count: int = 1,
        input_order: torch.Tensor | None = None,
    ) -> None:
        """Memory for ``count`` weights of a format that ``keeps``. Raises ``RuntimeError``."""
        self.outputs = outputs
        self._kernels = kernels
        self._padded = -(-outputs // TILE) * TILE
        group_size, outer_size = _sizes(kept, inputs)
        panels, groups = count * self._padded // PANEL, -(-inputs // group_size)
        scale_type, outer = kept.scale_dtype, 0
        if outer_size is not None:
            scale_type, outer = torch.int8, -(-inputs // outer_size)
        bits = _code_bits(kept, inputs)
        self._memory = {"codes": empty_for_streaming((panels, inputs * bits // 32, PANEL, 4), torch.uint8)}
        of_groups = {"scales": scale_type} | {
            Offset.NONE: {},
            Offset.ZERO: {"zeros": torch.uint8},
            Offset.MINIMUM: {"minima": scale_type},
        }[kept.offset]
        for name, dtype in of_groups.items():
            self._memory[name] = empty_for_streaming((panels, groups, PANEL), dtype)
            if outer and name != "zeros":
                self._memory[f"outer_{name}"] = empty_for_streaming((panels, outer, PANEL), kept.scale_dtype)
        for memory in self._memory.values():  # padding outputs have zero scales
            memory.view(count, self._padded // PANEL, *memory.shape[1:])[:, outputs // PANEL :] = 0
        unused = (0.0,) * ((1 << bits) - len(kept.codebook))
        self._memory["codebook"] = torch.tensor(kept.codebook + unused)
        if input_order is not None:
            self._memory["input_order"] = input_order.int()
        self.weight = structures()["RinglineQuantizedWeight"](
            in_features=inputs,
            out_features=outputs,
            group_size=group_size,
            outer_size=outer_size or 0,
            bits=bits,
            scale_type=NUMBER_TYPES[kept.scale_dtype],
            **{name: memory.data_ptr() for name, memory in self._memory.items()},
        )
        """A ``RinglineQuantizedWeight``."""

    @property
    def nbytes(self) -> int:
        return sum(memory.nbytes for memory in self._memory.values())

    def pack(self, index: int, parts: Iterable[QuantizedWeight], half: int | None = None) -> None:
        """Copy the rows of weight ``index``, which come in ``parts``: all rows, or those of each tile's first
        (``half`` 0) or second half (1).
        """
        first, panel, tile_panels = 0, index * self._padded // PANEL, TILE // PANEL
        if half is not None:
            tile_panels //= 2
            panel += half * tile_panels
        for part in parts:
            self._kernels.quantized_pack.run(
                weight=addressof(self.weight),
                codes=part.codes,
                scales=part.scales,
                outer_scales=part.outer_scales,
                zeros=part.zeros,
                minima=part.minima,
                outer_minima=part.outer_minima,
                first=first,
                rows=len(part.codes),
                panel=panel,
                tile_panels=tile_panels,
            )
            first += len(part.codes)

    def order_inputs(self, index: int, order: torch.Tensor) -> None:
        """Set the inputs of weight ``index``'s columns to ``order`` [K]; until then they are in order."""
        if "input_order" not in self._memory:
            inputs = self.weight.in_features
            orders = torch.arange(inputs, dtype=torch.int32).repeat(
                len(self._memory["codes"]) * PANEL // self._padded, 1
            )
            self._memory["input_order"] = orders
            self.weight.input_order = orders.data_ptr()
        self._memory["input_order"][index] = order


class NativeQuantizedLinear(PackedLinear):
    """Computed by cpu/quantized/linear.h."""

    def __init__(
        self, kernels: Kernels, weights: PackedQuantizedWeights, dtype: torch.dtype, bias: torch.Tensor | None
    ) -> None:
        """``weights`` holds one weight; inputs are of ``dtype``."""
        self._kernels = kernels
        self._weights = weights
        self._dtype = dtype
        self._bias: torch.Tensor | None = None
        if bias is not None:
            self._bias = torch.zeros(-(-weights.outputs // TILE) * TILE)
            self._bias[: weights.outputs] = bias
        arguments = kernels.quantized_linear.arguments(
            weight=addressof(weights.weight),
            bias=None if self._bias is None else self._bias.data_ptr(),
            in_features=weights.weight.in_features,
            out_features=weights.outputs,
            number_type=NUMBER_TYPES[dtype],
        )
        super().__init__(kernels.quantized_linear, kernels.quantized_argmax, arguments)

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def weight_rows(self, indices: torch.Tensor) -> torch.Tensor:
        found = torch.empty(len(indices), self.in_features, dtype=self._dtype)
        self._kernels.quantized_rows.run(
            weight=addressof(self._weights.weight),
            indices=indices,
            output=found,
            rows=len(indices),
            in_features=self.in_features,
            number_type=NUMBER_TYPES[self._dtype],
        )
        return found
