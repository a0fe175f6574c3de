"""Gemma 3's views and texts beside transformers', with pan and scan and without."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor

from tests.text_core.pictures.beside import ALL_SIZES, both, expanded, views

ARCHITECTURE = "Gemma3ForConditionalGeneration"
PREPROCESSOR = {"size": {"height": 896, "width": 896}, "do_pan_and_scan": None, "resample": 2}


@pytest.mark.parametrize("scans", [False, True])
@pytest.mark.parametrize("size", ALL_SIZES)
def test_views_and_text_are_those_of_transformers(size, scans) -> None:
    reference = Gemma3ImageProcessorPil(size={"height": 896, "width": 896})
    given = {**Gemma3Processor.images_kwargs, "do_pan_and_scan": scans}
    processor, prepared, expected = both(
        ARCHITECTURE, {**PREPROCESSOR, "do_pan_and_scan": scans or None}, reference, size, **given
    )
    assert len(prepared.items) == len(expected["pixel_values"])
    for view, reference_view in zip(views(prepared), expected["pixel_values"], strict=True):
        assert np.array_equal(view, reference_view)
    image = "<start_of_image>" + "<image_soft_token>" * 256 + "<end_of_image>"
    names = SimpleNamespace(full_image_sequence=f"\n\n{image}\n\n")
    assert expanded(processor, prepared) == Gemma3Processor.replace_image_token(names, expected, 0)


def test_pan_and_scan_makes_crops() -> None:
    reference = Gemma3ImageProcessorPil(size={"height": 896, "width": 896})
    given = {**Gemma3Processor.images_kwargs, "do_pan_and_scan": True}
    _, prepared, _ = both(ARCHITECTURE, {**PREPROCESSOR, "do_pan_and_scan": True}, reference, (300, 1000), **given)
    assert len(prepared.items) == 4
