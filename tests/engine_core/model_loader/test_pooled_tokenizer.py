"""Tokenizers of models that pool, which files beside theirs change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, processors

from engine_core.config import ModelConfig
from engine_core.model_loader.pooled_tokenizer import for_pooling
from tests.engine_core.pooling.checkpoints import lay_out
from text_core.tokenizer import Tokenizer

_BOS = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 1)])
_BOTH = processors.TemplateProcessing(
    single="<s> $A </s>", pair="<s> $A $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
)
A, SMALL_A, TWO = 3, 4, 5


def files_of(path: Path, post_processor: Any, normalizer: Any = None, **fields: Any) -> dict[str, bytes]:
    """Of a tokenizer with a token for A, for a and for two characters; lays the model out at ``path``."""
    vocabulary = {token: index for index, token in enumerate(["<unk>", "<s>", "</s>", "A", "a", "bB"])}
    library = Library(models.WordLevel(vocabulary, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if post_processor is not None:
        library.post_processor = post_processor
    if normalizer is not None:
        library.normalizer = normalizer
    lay_out(path, fields.pop("pooling", None))
    (path / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": fields.pop("lowers", False)}))
    config = {"bos_token": "<s>", "eos_token": "</s>", **fields}
    return {"tokenizer.json": library.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}


@pytest.mark.parametrize(
    "post_processor",
    [
        _BOS,
        _BOTH,
        None,
        processors.ByteLevel(trim_offsets=False),
        processors.Sequence([processors.ByteLevel(trim_offsets=False), _BOS]),
    ],
)
def test_a_text_ends_with_the_token_that_is_pooled(post_processor: Any, tmp_path: Path) -> None:
    files = files_of(tmp_path, post_processor, add_eos_token=True)
    tokenizer = Tokenizer.from_files(for_pooling(files, ModelConfig(model=str(tmp_path))))
    begin = [1] if "<s>" in str(post_processor) else []
    assert tokenizer.encode("A a") == [*begin, A, SMALL_A, 2]
    assert tokenizer.encode_cut("A a A", len(begin) + 2, keep_end=False) == [*begin, A, 2]
    assert tokenizer.encode("A", add_special_tokens=False) == [A]
    [pair] = tokenizer.encode_pairs([("A", "a")])
    assert pair.ids == [*begin, A, SMALL_A, 2]


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"runner": "generate"}, {"add_eos_token": True}),
        ({}, {"add_eos_token": False}),
        ({}, {"add_eos_token": True, "eos_token": None}),
        ({}, {"add_eos_token": True, "pooling": {"pooling_mode": "mean"}}),
    ],
)
def test_other_tokenizers_stay_as_they_are(options: Any, fields: Any, tmp_path: Path) -> None:
    files = files_of(tmp_path, _BOS, **fields)
    assert for_pooling(files, ModelConfig(model=str(tmp_path), **options)) == files


def test_a_model_without_a_layout_and_damaged_files_stay_as_they_are(tmp_path: Path) -> None:
    files = files_of(tmp_path, _BOS, add_eos_token=True)
    for broken in ({"tokenizer.json": b"{}"}, {"tokenizer_config.json": b"["}):
        assert for_pooling(files | broken, ModelConfig(model=str(tmp_path))) == files | broken
    (tmp_path / "modules.json").unlink()
    assert for_pooling(files, ModelConfig(model=str(tmp_path))) == files


@pytest.mark.parametrize("normalizer", [None, normalizers.NFC(), normalizers.Sequence([normalizers.Strip()])])
def test_texts_are_made_lower_case_where_the_layout_says_so(normalizer: Any, tmp_path: Path) -> None:
    files = files_of(tmp_path, None, normalizer, lowers=True)
    tokenizer = Tokenizer.from_files(for_pooling(files, ModelConfig(model=str(tmp_path))))
    assert tokenizer.encode("A a </s>") == [SMALL_A, SMALL_A, 2]


@pytest.mark.parametrize("normalizer", [normalizers.Lowercase(), normalizers.BertNormalizer(lowercase=True)])
def test_a_tokenizer_that_makes_texts_lower_case_stays_as_it_is(normalizer: Any, tmp_path: Path) -> None:
    files = files_of(tmp_path, _BOTH, normalizer, lowers=True)
    assert for_pooling(files, ModelConfig(model=str(tmp_path))) == files
