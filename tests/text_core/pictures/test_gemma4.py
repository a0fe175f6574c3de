"""Gemma 4's views and texts beside transformers'."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil, convert_image_to_patches
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor

from tests.text_core.pictures.beside import ALL_SIZES, both, expanded, views
from tests.text_core.pictures.samples import facts_of
from text_core.pictures.registry import processor_of

ARCHITECTURE = "Gemma4ForConditionalGeneration"


@pytest.mark.parametrize("most", [70, 280, pytest.param(1120, marks=pytest.mark.wide)])
@pytest.mark.parametrize("size", ALL_SIZES)
def test_views_and_text_are_those_of_transformers(size, most) -> None:
    reference = Gemma4ImageProcessorPil(max_soft_tokens=most)
    processor, prepared, expected = both(ARCHITECTURE, {"max_soft_tokens": most}, reference, size)
    (view,) = views(prepared)
    patches = convert_image_to_patches(view, 16)
    (reference_patches,) = expected["pixel_values"]
    assert np.array_equal(patches, reference_patches[: len(patches)])
    assert not reference_patches[len(patches) :].any()
    names = SimpleNamespace(boi_token="<|image>", image_token="<|image|>", eoi_token="<image|>")
    assert expanded(processor, prepared) == Gemma4Processor.replace_image_token(names, expected, 0)


def test_a_long_picture_keeps_to_the_most_tokens() -> None:
    processor = processor_of(facts_of(ARCHITECTURE, max_tokens=50))
    assert processor.plan(100_000, 1).items[0].num_tokens == 50
