"""The gated activation, computed in float32."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def silu_and_multiply(gate_up, output, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Program (t, i): BLOCK numbers of silu(gate) · up of row t; ``gate_up`` is [T, 2 · SIZE], gate first."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gate = tl.load(gate_up + row * (2 * SIZE) + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * SIZE) + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(output + row * SIZE + columns, result.to(output.dtype.element_ty), mask=mask)
