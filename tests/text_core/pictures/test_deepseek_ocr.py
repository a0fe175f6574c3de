"""DeepSeek-OCR's views beside Pillow's and transformers' code, and both versions' counts of tokens."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers.models.deepseek_ocr2.image_processing_pil_deepseek_ocr2 import (
    DeepseekOcr2ImageProcessorPil,
    get_optimal_tiled_canvas,
)
from transformers.models.deepseek_ocr2.processing_deepseek_ocr2 import DeepseekOcr2Processor
from transformers.models.unlimited_ocr.processing_unlimited_ocr import UnlimitedOcrProcessor

from tests.text_core.pictures.beside import ALL_SIZES, both, expanded, views
from tests.text_core.pictures.samples import facts_of, noise, saved
from text_core.pictures.decode import prepare
from text_core.pictures.registry import processor_of


@pytest.mark.parametrize("crops", [True, pytest.param(False, marks=pytest.mark.wide)])
@pytest.mark.parametrize("size", [*ALL_SIZES, (1100, 500)])
def test_views_of_the_second_version_are_those_of_transformers(size, crops) -> None:
    if max(size) / min(size) > 1024:
        pytest.skip("transformers makes a side of no pixels")
    reference = DeepseekOcr2ImageProcessorPil(crop_to_patches=crops)
    given = {"crop_to_patches": crops}
    processor, prepared, expected = both("DeepseekOCR2ForCausalLM", given, reference, size)
    whole, *parts = views(prepared)
    assert np.array_equal(whole, expected["pixel_values"][0])
    local = dict(expected).get("pixel_values_local", [])
    assert len(parts) == len(local)
    for view, reference_view in zip(parts, local, strict=True):
        assert np.array_equal(view, reference_view)
    if crops:
        names = SimpleNamespace(image_processor=reference, image_token="<image>", patch_size=16, downsample_ratio=4)
        assert expanded(processor, prepared) == DeepseekOcr2Processor.replace_image_token(names, expected, 0)


@pytest.mark.parametrize("most", [6, pytest.param(32, marks=pytest.mark.wide)])
@pytest.mark.parametrize("size", [*ALL_SIZES, (1100, 500)])
def test_views_of_the_first_version_are_as_in_its_own_code(size, most) -> None:
    """Its code pads by ``ImageOps.pad``; grid and count of tokens are those of transformers' Unlimited-OCR."""
    image = noise(*size)
    processor = processor_of(facts_of("DeepseekOCRForCausalLM", {"max_patches": most}))
    prepared = prepare(processor, saved(image, compress_level=0))
    whole, *parts = views(prepared)
    padded = ImageOps.pad(image, (1024, 1024), color=(127, 127, 127))
    assert np.array_equal(whole, np.moveaxis(np.asarray(padded), -1, 0))
    columns, rows = get_optimal_tiled_canvas((size[1], size[0]), (640, 640), 2, most)
    is_cropped = max(size) > 640
    plan = prepared.items[0].plan
    assert (plan.columns, plan.rows) == ((columns, rows) if is_cropped else (0, 0))
    large = image.resize((640 * columns, 640 * rows), Image.Resampling.BICUBIC)
    for index, view in enumerate(parts):
        left, top = 640 * (index % columns), 640 * (index // columns)
        crop = large.crop((left, top, left + 640, top + 640))
        assert np.array_equal(view, np.moveaxis(np.asarray(crop), -1, 0))
    names = SimpleNamespace(
        image_token="<image>",
        patch_size=16,
        downsample_ratio=4,
        image_processor=SimpleNamespace(size={"height": 1024, "width": 1024}, tile_size=640),
    )
    made = {"patches_grid": [[columns, rows]], "num_local_patches": [len(parts)]}
    assert expanded(processor, prepared) == UnlimitedOcrProcessor.replace_image_token(names, made, 0)


def test_crops_keep_to_the_most_tokens() -> None:
    """A limit leaves out grids that take more."""
    for limit in (300, 600, 1000):
        processor = processor_of(facts_of("DeepseekOCRForCausalLM", {}, limit))
        counts = [processor.plan(*size).items[0].num_tokens for size in ((5000, 500), (3000, 3000), (500, 9000))]
        assert max(counts) <= limit
    assert math.prod(processor.plan(3000, 2000).items[0].views[0].size) == 1024 * 1024
