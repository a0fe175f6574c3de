"""Towers of transformers with the engine's layers: beside transformers, with any number of threads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.models.clip.configuration_clip import CLIPVisionConfig
from transformers.models.clip.modeling_clip import CLIPVisionModel
from transformers.models.siglip.configuration_siglip import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from engine_core.errors import UnsupportedModelError
from engine_core.vision.transformers_tower import PatchEmbedding, Patches, attention, build_module, configured
from tests.engine_core.vision.towers import engines, factory, randomize, threads, weights_of

SIZES: dict[str, Any] = {
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 56,
    "patch_size": 8,
}
TOWERS = {
    "clip": (CLIPVisionModel, CLIPVisionConfig(**SIZES)),
    "siglip": (SiglipVisionModel, SiglipVisionConfig(**SIZES, vision_use_head=False)),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 0.06)])
@pytest.mark.parametrize("name", TOWERS)
@torch.no_grad()
def test_hidden_states_are_those_of_transformers(name: str, dtype: torch.dtype, tolerance: float) -> None:
    kind, config = TOWERS[name]
    whole = randomize(kind._from_config(config, attn_implementation="eager"))
    own = engines(lambda: kind(configured(config)), whole, dtype)
    pixels = torch.rand(2, 3, 56, 56, generator=torch.Generator().manual_seed(1)) * 2 - 1
    expected = whole(pixels).last_hidden_state
    found = own(pixels.to(dtype)).last_hidden_state
    assert found.dtype == dtype
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()
    with threads(1):
        alone = own(pixels.to(dtype)).last_hidden_state
    with threads(2):
        assert torch.equal(own(pixels.to(dtype)).last_hidden_state, alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("places", [1, 5, 31, 333, 1024])
@pytest.mark.parametrize("heads", [1, 3])
def test_attention_has_the_same_bits_whatever_the_number_of_threads(
    heads: int, places: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(places)
    query, key, value = (torch.randn(1, heads, places, 18, generator=generator).to(dtype) for _ in range(3))
    found = []
    for count in (1, 2, 3):
        with threads(count):
            found.append(attention(query, key, value, scale=0.3))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    weights = torch.softmax(query.double() @ key.double().mT * 0.3, dim=-1)
    torch.testing.assert_close(found[0].double(), weights @ value.double(), atol=2e-2, rtol=0)


@pytest.mark.parametrize("seen", [None, "by_row", "by_all"])
def test_attention_of_more_queries_than_a_tile_is_that_of_all_at_once(seen: str | None) -> None:
    draw = torch.Generator().manual_seed(2)
    query, key, value = torch.randn(3, 1, 2, 1500, 8, generator=draw)
    mask = None
    if seen is not None:
        mask = torch.rand(1, 1, 1500 if seen == "by_row" else 1, 1500, generator=draw) < 0.5
    expected = nn.functional.scaled_dot_product_attention(query, key, value, mask)
    torch.testing.assert_close(attention(query, key, value, mask), expected, rtol=1e-5, atol=1e-5)


def test_attention_takes_fewer_keys_than_heads_narrow_values_and_a_mask() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 9, 16, generator=generator)
    key, value = (torch.randn(2, 2, 9, width, generator=generator) for width in (16, 7))
    mask = torch.rand(2, 1, 9, 9, generator=generator) < 0.5
    mask |= torch.eye(9, dtype=torch.bool)
    logits = query @ key.repeat_interleave(2, 1).mT / 4
    expected = torch.softmax(logits.masked_fill(~mask, -torch.inf), -1) @ value.repeat_interleave(2, 1)
    torch.testing.assert_close(attention(query, key, value, mask), expected)


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(3, 20, 4, stride=4),
        nn.Conv2d(3, 20, (2, 3), stride=(2, 3), bias=False, padding="valid"),
        nn.Conv3d(3, 20, (2, 5, 4), stride=(2, 5, 4)),
    ],
)
@torch.no_grad()
def test_patches_are_convolved(convolution: nn.Conv2d | nn.Conv3d) -> None:
    parts = factory()
    part = PatchEmbedding("conv", convolution, parts.backend)
    tensors = {f"conv.{name}": tensor for name, tensor in convolution.state_dict().items()}
    assert part.tensors() == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    part.load(weights_of(tensors))
    x = torch.randn(2, 3, *(4, 15, 13)[3 - len(convolution.kernel_size) :], generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Patches(part, torch.float32)(x), convolution(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("change", [{"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 3}])
def test_a_convolution_of_overlapping_patches_is_refused(change: dict[str, Any]) -> None:
    convolution = nn.Conv2d(3, 6, 4, **({"stride": 4} | change))
    with pytest.raises(UnsupportedModelError, match="side by side"):
        PatchEmbedding("conv", convolution, factory().backend)


def test_a_module_takes_no_memory_before_its_weights_are_loaded() -> None:
    parts = factory(torch.bfloat16)
    config = SiglipVisionConfig(**SIZES | {"vision_use_head": False})
    module = build_module(lambda: SiglipVisionModel(configured(config)), parts)
    assert {(parameter.device.type, parameter.dtype) for parameter in module.parameters()} == {("meta", torch.bfloat16)}
