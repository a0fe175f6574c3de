"""Look-ups, which need a model and no engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tokenizers
from ringline.inference.v1 import inference_pb2

from services.processor.service import detokenize
from services.ring.errors import Refused
from services.text.tokenizer import Tokenizer
from tests.services.processor.model_specs import MAX_MODEL_LEN, files, served_model

WORD = "x" * 2000


def test_the_size_of_a_text_is_checked_before_it_is_decoded() -> None:
    """A few ids may be of long words."""
    library = tokenizers.Tokenizer.from_str(files()["tokenizer.json"].decode())
    library.add_tokens([WORD])
    own = Tokenizer.from_files({**files(), "tokenizer.json": library.to_str().encode()})
    known = served_model()
    known = replace(known, tokenizer=own, limits=replace(known.limits, vocab_size=own.vocab_size))
    word = own.token_id(WORD)
    assert word is not None
    few = known.limits.max_text_bytes // len(WORD)
    assert detokenize(inference_pb2.DetokenizeRequest(token_ids=[word] * few), known).text == WORD * few
    assert few < MAX_MODEL_LEN
    with pytest.raises(Refused, match=f"^token_ids: their text has {(few + 1) * len(WORD)} bytes: expected at most "):
        detokenize(inference_pb2.DetokenizeRequest(token_ids=[word] * (few + 1)), known)
