"""Digests are those that engines compute."""

from __future__ import annotations

import pytest

from engine_core.media import PictureShape, View, digest_of
from tests.text_core.pictures.samples import CONFIGS, facts_of, noise, saved
from text_core.pictures.decode import prepare
from text_core.pictures.registry import processor_of

SOON = ("Qwen3VLForConditionalGeneration", "DeepseekOCRForCausalLM")


@pytest.mark.parametrize(
    "architecture", [name if name in SOON else pytest.param(name, marks=pytest.mark.wide) for name in CONFIGS]
)
def test_digests_are_those_of_engines(architecture) -> None:
    prepared = prepare(processor_of(facts_of(architecture)), saved(noise(700, 400)))
    for item in prepared.items:
        plan = item.plan
        shape = PictureShape(plan.num_tokens, plan.rows, plan.columns, plan.token_rows, plan.token_columns)
        assert item.digest == digest_of(shape, [View(view.height, view.width, view.pixels) for view in item.views])
        assert [(view.width, view.height) for view in item.views] == [view.size for view in plan.views]
    assert prepared.nbytes == sum(view.width * view.height * 3 for item in prepared.items for view in item.views)
