"""Random weights in any form in which they may be quantized."""

from __future__ import annotations

import torch

from engine_core.weights.quantized_weight import Offset, QuantFormat, QuantizedWeight


def random_weight(kept: QuantFormat, outputs: int, inputs: int, seed: int = 0) -> QuantizedWeight:
    """[outputs, inputs] of numbers of the size of one or so."""
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    groups = -(-inputs // kept.group_size)
    finite = torch.tensor(kept.codebook).isfinite().nonzero().flatten()
    largest = torch.tensor(kept.codebook)[finite].abs().max().item()
    codes = finite[integers(0, len(finite), outputs, inputs)].to(torch.uint8)
    zeros = integers(0, len(kept.codebook), outputs, groups).to(torch.uint8) if kept.offset is Offset.ZERO else None
    if kept.outer_size is None:

        def numbers() -> torch.Tensor:
            return (torch.randn(outputs, groups, generator=generator) / largest).to(kept.scale_dtype)

        return QuantizedWeight(
            kept, codes, numbers(), zeros=zeros, minima=numbers() if kept.offset is Offset.MINIMUM else None
        )

    outers = -(-inputs // kept.outer_size)

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        outer = torch.randn(outputs, outers, generator=generator) / (64 * largest)
        return integers(-128, 128, outputs, groups).to(torch.int8), outer.to(kept.scale_dtype)

    minima = both() if kept.offset is Offset.MINIMUM else (None, None)
    return QuantizedWeight(kept, codes, *both(), zeros, *minima)
