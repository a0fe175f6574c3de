"""A linear layer of several ops side by side against one of the whole weight."""

from __future__ import annotations

import torch

from engine_core.ops.segmented_linear import SegmentedLinear
from engine_core.ops.torch import TorchBackend

SIZES = (16, 5, 43)


def test_outputs_are_those_of_the_whole_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = ((64, 40), (64,), (7, 40), (7, 64))
    weight, bias, x, residual = (torch.randn(shape, generator=generator) for shape in shapes)
    ops, parts = TorchBackend(), zip(weight.split(SIZES), bias.split(SIZES), strict=True)
    whole, segmented = ops.linear(weight, bias), SegmentedLinear([ops.linear(*part) for part in parts])
    assert (segmented.out_features, segmented.in_features, segmented.nbytes) == (64, 40, whole.nbytes)
    torch.testing.assert_close(segmented(x), whole(x), atol=1e-5, rtol=1e-5)
    expected = whole(x, residual=residual, scale=0.5)
    wide = torch.zeros(7, 100)
    torch.testing.assert_close(segmented(x, residual=residual, scale=0.5), expected, atol=1e-5, rtol=1e-5)
    segmented(x, residual=residual, scale=0.5, into=wide[:, 20:84])
    torch.testing.assert_close(wide[:, 20:84], expected, atol=1e-5, rtol=1e-5)
    assert not wide[:, :20].any()
    assert not wide[:, 84:].any()


def test_outputs_are_on_the_device_of_the_inputs() -> None:
    segmented = SegmentedLinear([TorchBackend().linear(torch.empty(size, 40, device="meta")) for size in SIZES])
    assert segmented(torch.empty(7, 40, device="meta")).device.type == "meta"
