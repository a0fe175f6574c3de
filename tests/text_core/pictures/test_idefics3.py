"""Idefics3's and SmolVLM's tiles and texts beside transformers'."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

from tests.text_core.pictures.beside import MANY_SIZES, SIZES, both, expanded, views

FEWER_SIZES = [
    size if size in ((37, 53), (300, 1000)) else pytest.param(size, marks=pytest.mark.wide)
    for size in (*SIZES, *MANY_SIZES)
]
"""They are enlarged to many tiles."""
MODELS = {
    "SmolVLMForConditionalGeneration": (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}, "resample": 1},
        SmolVLMImageProcessorPil,
        SmolVLMProcessor,
        64,
    ),
    "Idefics3ForConditionalGeneration": ({}, Idefics3ImageProcessorPil, Idefics3Processor, 169),
}


@pytest.mark.parametrize("splits", [True, pytest.param(False, marks=pytest.mark.wide)])
@pytest.mark.parametrize("architecture", MODELS)
@pytest.mark.parametrize("size", FEWER_SIZES)
def test_tiles_and_text_are_those_of_transformers(architecture, size, splits) -> None:
    preprocessor, image_processor, processor_kind, length = MODELS[architecture]
    preprocessor = {**preprocessor, "do_image_splitting": splits}
    reference = image_processor(**preprocessor)
    processor, prepared, expected = both(architecture, preprocessor, reference, size, return_row_col_info=True)
    (reference_views,) = expected["pixel_values"]
    assert len(prepared.items) == len(reference_views)
    for view, reference_view in zip(views(prepared), reference_views, strict=True):
        assert np.array_equal(view, reference_view)
    names = SimpleNamespace(
        fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>",
        global_image_tag="<global-img>",
        image_token="<image>",
        image_seq_len=length,
    )
    assert expanded(processor, prepared) == processor_kind.replace_image_token(names, expected, 0)
