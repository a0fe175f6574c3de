"""Qwen's views and tokens beside transformers'."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from tests.text_core.pictures.beside import ALL_SIZES, both, expanded, views
from tests.text_core.pictures.samples import facts_of
from text_core.pictures.base import PictureError
from text_core.pictures.registry import processor_of

PREPROCESSORS = {
    "Qwen2_5_VLForConditionalGeneration": {"min_pixels": 3136, "max_pixels": 1003520, "patch_size": 14},
    "Qwen3VLForConditionalGeneration": {
        "size": {"longest_edge": 1048576, "shortest_edge": 65536},
        "patch_size": 16,
        "merge_size": 2,
    },
}


@pytest.mark.parametrize("architecture", PREPROCESSORS)
@pytest.mark.parametrize("size", ALL_SIZES)
def test_views_and_text_are_those_of_transformers(architecture, size) -> None:
    preprocessor = PREPROCESSORS[architecture]
    reference = Qwen2VLImageProcessorPil(**preprocessor)
    processor, prepared, expected = both(architecture, preprocessor, reference, size)
    (view,) = views(prepared)
    patches, rows, columns = reference.patchify(view, reference.patch_size, 2, 2)
    assert expected["image_grid_thw"].tolist() == [[1, rows, columns]]
    assert np.array_equal(patches, expected["pixel_values"])
    plan = prepared.items[0].plan
    assert (plan.token_rows, plan.token_columns) == (rows // 2, columns // 2)
    names = SimpleNamespace(image_processor=reference, image_token="<|image_pad|>")
    assert expanded(processor, prepared) == Qwen3VLProcessor.replace_image_token(names, expected, 0)


@pytest.mark.parametrize("most", [1, 5, 64, 1000])
def test_pictures_shrink_to_the_most_tokens(most) -> None:
    processor = processor_of(facts_of("Qwen3VLForConditionalGeneration", max_tokens=most))
    for size in [(1, 1), (4000, 3000), (10, 1990), (1990, 10), (8000, 8000)]:
        (item,) = processor.plan(*size).items
        assert 1 <= item.num_tokens <= most
        assert item.num_tokens == item.token_rows * item.token_columns


def test_a_picture_much_longer_than_wide_is_refused() -> None:
    processor = processor_of(facts_of("Qwen3VLForConditionalGeneration"))
    with pytest.raises(PictureError, match=r"it is 100000 × 1 pixels.*more than 200 times"):
        processor.plan(100_000, 1)


def test_a_patch_size_that_is_not_the_models_is_refused() -> None:
    with pytest.raises(ValueError, match=r"preprocessor_config\.json: patch_size is 14, but in config\.json 16"):
        processor_of(facts_of("Qwen3VLForConditionalGeneration", {"patch_size": 14}))
