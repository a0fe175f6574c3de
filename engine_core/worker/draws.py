"""What a step draws: on the device at once, for the step after it, and on the host when that asks for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine_core.worker.sampler import SamplerOutput


@dataclass(frozen=True, slots=True)
class Draws:
    """Tokens of the rows that sample, R of them."""

    drawn: torch.Tensor
    """[R] int64, on the device."""
    read: Callable[[], SamplerOutput]
    """Waits until they are on the host."""

    @staticmethod
    def of(drawn: torch.Tensor) -> Draws:
        """Of tokens alone; they are on their way to the host from now on."""
        fetched = Fetched.of([drawn])
        return Draws(drawn, lambda: SamplerOutput(fetched.read()[0].numpy(), {}))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Tensors on their way from a device. Steps launched meanwhile are not waited for."""

    tensors: list[torch.Tensor]
    arrived: torch.cuda.Event | None
    """None where they were on the host."""

    @staticmethod
    def of(tensors: list[torch.Tensor]) -> Fetched:
        """Begin to copy ``tensors`` into memory that their device can write itself."""
        if all(tensor.device.type == "cpu" for tensor in tensors):
            return Fetched(tensors, None)
        copies = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record()
        return Fetched(copies, arrived)

    def read(self) -> list[torch.Tensor]:
        """Wait until they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.tensors
