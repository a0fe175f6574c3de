"""Pixels as towers take them."""

from __future__ import annotations

import torch

from engine_core.media import CHANNELS, View


def pixels_of(view: View, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[height, width, 3] of ``view``, from −1 to 1."""
    whole = torch.frombuffer(bytearray(view.pixels), dtype=torch.uint8).to(device)
    return (whole.view(view.height, view.width, CHANNELS).float() / 127.5 - 1).to(dtype)
