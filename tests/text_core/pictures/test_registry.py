"""Facts come back as they were written, and what is wrong with them is named."""

from __future__ import annotations

import json

import pytest

from tests.text_core.pictures.samples import CONFIGS, facts_of
from text_core.pictures.registry import parse_facts, processor_of, write_facts

QWEN = "Qwen3VLForConditionalGeneration"


@pytest.mark.parametrize("architecture", CONFIGS)
def test_facts_come_back_as_they_were_written(architecture) -> None:
    facts = facts_of(architecture, {"do_resize": True})
    content = write_facts(facts)
    assert parse_facts(content) == facts
    assert write_facts(parse_facts(content)) == content
    assert parse_facts(content.decode()) == facts
    assert processor_of(facts).item_token in facts.special_tokens


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "must be an object of"),
        (b'{"architecture": 3}', "architecture has the wrong type"),
        (b"{}", "lacks architecture, config"),
        (b'{"further": 1}', "must be an object of"),
    ],
)
def test_facts_that_are_none_are_refused(content, words) -> None:
    with pytest.raises(ValueError, match=words):
        parse_facts(content)


def test_an_unknown_family_is_refused_by_name() -> None:
    fields = json.loads(write_facts(facts_of(QWEN))) | {"architecture": "LlamaForCausalLM"}
    with pytest.raises(ValueError, match="'LlamaForCausalLM' has no known pictures; expected one of Deepseek"):
        processor_of(parse_facts(json.dumps(fields).encode()))


@pytest.mark.parametrize(
    ("architecture", "preprocessor", "words"),
    [
        (QWEN, {"do_resize": False}, "do_resize is false"),
        (QWEN, {"max_pixels": -1}, "max_pixels is -1"),
        (QWEN, {"size": {"longest_edge": "large"}}, "size.longest_edge is 'large'"),
        (QWEN, {"resample": 17}, "resample is 17; expected one of 0"),
        (QWEN, {"merge_size": 4}, "merge_size is 4, but spatial_merge_size in config.json 2"),
        ("Gemma3ForConditionalGeneration", {"size": {"height": 224}}, "size.height is 224, but image_size"),
        ("Gemma3ForConditionalGeneration", {"do_pan_and_scan": 1}, "do_pan_and_scan is 1, not true or false"),
        ("Gemma4ForConditionalGeneration", {"pooling_kernel_size": 2}, "pooling_kernel_size is 2"),
        ("SmolVLMForConditionalGeneration", {"max_image_size": {"longest_edge": 384}}, "longest_edge is 384"),
        ("DeepseekOCRForCausalLM", {"image_size": 650}, "image_size is 650, not a multiple of 64"),
        ("DeepseekOCRForCausalLM", {"background_color": [1, 2]}, "not three whole numbers"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(architecture, preprocessor, words) -> None:
    with pytest.raises(ValueError, match=words):
        processor_of(facts_of(architecture, preprocessor))


def test_the_token_is_found_by_its_id() -> None:
    """A checkpoint may name it otherwise."""
    fields = json.loads(write_facts(facts_of(QWEN)))
    fields["special_tokens"] = {"[IMG]": 900}
    assert processor_of(parse_facts(json.dumps(fields).encode())).placeholder == "[IMG]"
    fields["special_tokens"] = {"[IMG]": 901}
    with pytest.raises(ValueError, match="image_token_id is 900, which is none of the tokenizer's added tokens"):
        processor_of(parse_facts(json.dumps(fields).encode()))
