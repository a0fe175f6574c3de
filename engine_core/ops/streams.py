"""Ops on several residual streams per row, and the cutoff of sparse activations, by torch: the reference in tests, and
what backends without kernels of their own compute. ``native_streams`` has the kernels.

Symbols in shapes: T rows, n streams, H hidden size with padding.
"""

from __future__ import annotations

import torch

from engine_core.ops.lora import MergedLoRA
from engine_core.ops.torch_lora import TorchMergedLoRA

LEAST_SQUARE = 1e-5
"""The least mean of squares by which a row's magnitude is divided."""


class StreamOps:
    """Alternating updates (AltUp: Baykal et al., 2023, https://arxiv.org/abs/2301.13310)."""

    def predict(
        self,
        streams: torch.Tensor,
        logits: torch.Tensor,
        weight: torch.Tensor,
        active: int,
        adapted: MergedLoRA | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, n, H]: stream i of ``streams`` [T, n, H] plus Σ c[i, j] · stream j; and its stream ``active`` [T, H].

        c [T, n, n] = tanh(``logits``) [T, n] times ``weight`` [n · n, n], both float32. ``adapted``: weights of rows
        that have others.
        """
        coefficients = _coefficients(logits, weight, adapted).view(len(streams), *[streams.shape[1]] * 2)
        x = streams.float()
        predicted = (x + coefficients @ x).to(streams.dtype)
        return predicted, predicted[:, active].contiguous()

    def correct(
        self,
        streams: torch.Tensor,
        update: torch.Tensor,
        logits: torch.Tensor,
        weight: torch.Tensor,
        active: int,
        scale: torch.Tensor | None,
        adapted: MergedLoRA | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[T, n, H]: stream i plus (1 + c[i]) · (``update`` [T, H] − stream ``active``); and its stream ``active``,
        times ``scale`` [H] float32 if given.

        c [T, n] = tanh(``logits``) [T, n] times ``weight`` [n, n], both float32; ``adapted`` as in ``predict``.
        """
        x = streams.float()
        change = update.float() - x[:, active]
        corrected = x + (1 + _coefficients(logits, weight, adapted))[..., None] * change[:, None]
        of_active = corrected[:, active] if scale is None else corrected[:, active] * scale
        return corrected.to(streams.dtype), of_active.to(streams.dtype)

    def add_to_others(self, streams: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
        """``streams`` [T, n, H] plus ``update`` [T, H] in all but the first."""
        return torch.cat([streams[:, :1], streams[:, 1:] + update[:, None]], dim=1)

    def apart(self, streams: torch.Tensor) -> torch.Tensor:
        """[n, T, H], dense, of ``streams`` [T, n, H]."""
        return streams.transpose(0, 1).contiguous()

    def spread(self, first: torch.Tensor, others: torch.Tensor, width: int) -> torch.Tensor:
        """[T, n, H]: ``first`` [T, H], and ``others`` [T, n − 1, H] at its magnitude. ``width``: H without padding."""
        return torch.cat([first[:, None], _matched(others, first[:, None], width).to(first.dtype)], dim=1)

    def joined(
        self, x: torch.Tensor, target: torch.Tensor, residual: torch.Tensor, width: int, scale: float
    ) -> torch.Tensor:
        """(``x`` at the magnitude of ``target`` + ``residual``) · ``scale``; all [T, H]."""
        return ((_matched(x, target, width) + residual.float()) * scale).to(x.dtype)

    def cut_off(self, x: torch.Tensor, over: torch.Tensor, count: int, deviations: float) -> None:
        """Subtract from ``x`` [T, I] the mean of each row of ``over`` [T, J] plus so many deviations, or leave 0.

        All but ``count`` columns of ``over`` are padding: zeros. The rows of both may be strided.
        """
        numbers = over.float()
        mean = numbers.sum(-1, keepdim=True) / count
        others = numbers != 0
        squares = torch.where(others, numbers - mean, 0.0).square().sum(-1, keepdim=True)
        squares = squares + (count - others.sum(-1, keepdim=True)) * mean.square()
        least = mean + (squares / count).sqrt() * deviations
        x.copy_((x.float() - least).clamp(min=0))


def _coefficients(logits: torch.Tensor, weight: torch.Tensor, adapted: MergedLoRA | None) -> torch.Tensor:
    modalities = logits.tanh()
    coefficients = modalities @ weight.t()
    if isinstance(adapted, TorchMergedLoRA):
        for rows, own in adapted.weights(len(logits)):
            coefficients[rows] = modalities[rows] @ own.t()
    return coefficients


def _matched(x: torch.Tensor, target: torch.Tensor, width: int) -> torch.Tensor:
    """``x`` with the root mean square of ``target``, in float32."""
    wanted, found = (each.float().square().sum(-1, keepdim=True) / width for each in (target, x))
    return x.float() * (wanted.sqrt() / found.clamp(min=LEAST_SQUARE).sqrt())
