from __future__ import annotations

import json

import pytest

from engine_core.errors import ConfigError
from engine_core.pooling.options import PoolerOptions, read_pooler_options
from engine_core.pooling.params import PoolingTask


def test_fields_are_read_and_none_is_the_default() -> None:
    assert read_pooler_options(None) is None
    given = {
        "pooling_type": "CLS",
        "normalize": False,
        "dimensions": None,
        "task": "embed",
        "matryoshka_dimensions": [8, 4],
    }
    assert read_pooler_options(json.dumps(given)) == PoolerOptions(
        "CLS", False, task=PoolingTask.EMBED, matryoshka_dimensions=(4, 8)
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("{", "a JSON object; this is none"),
        ("[]", "a JSON object such as"),
        ('{"pooling": "MEAN"}', "no 'pooling'; its fields are pooling_type, normalize"),
        ('{"softmax": true}', "no 'softmax', as use_activation is called so here"),
        ('{"pooling_type": "STEP"}', "as pooling_type one of LAST, CLS, MEAN, ALL; results at steps"),
        ('{"pooling_type": ["MEAN"]}', "as pooling_type one of"),
        ('{"normalize": 1}', "as normalize true or false"),
        ('{"dimensions": 0}', "as dimensions a number of at least 1"),
        ('{"matryoshka_dimensions": []}', "as matryoshka_dimensions a list of numbers"),
        ('{"task": "score"}', "as task one of embed, token_embed, classify, token_classify"),
        ('{"classifier_from_token": [true]}', "as classifier_from_token a list of tokens"),
    ],
)
def test_what_is_not_usable_is_refused_in_words(given: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_pooler_options(given)
    assert expected in str(caught.value)
    assert caught.value.option == "pooler_config"
