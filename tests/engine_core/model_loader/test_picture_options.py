"""What options say of pictures: how many, how large, how prepared; what cannot be used is refused."""

from __future__ import annotations

import pytest

from engine_core.config import ModelConfig
from engine_core.errors import ConfigError
from engine_core.media import VisionShape
from engine_core.model_loader.picture_options import (
    DEFAULT_LIMIT,
    DEFAULT_MAX_TOKENS,
    picture_limit,
    preprocessor_overrides,
    resolved,
)
from engine_core.offline.options import configure


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (None, DEFAULT_LIMIT),
        ("{}", DEFAULT_LIMIT),
        ('{"image": 3}', 3),
        ('{"image": 0}', 0),
        ('{"image": {"count": 5, "width": 512, "height": 512}, "video": 0}', 5),
        ('{"video": 0, "audio": {"count": 0}}', DEFAULT_LIMIT),
    ],
)
def test_the_limit_of_pictures(text: str | None, limit: int) -> None:
    assert picture_limit(ModelConfig(limit_mm_per_prompt=text)) == limit


@pytest.mark.parametrize(
    "text",
    [
        *("", "image=3", "3", "[]", '{"image": -1}', '{"image": 4097}', '{"image": 1.0}', '{"image": true}'),
        *('{"image": {}}', '{"image": null}', '{"video": 1}', '{"images": 4}'),
        pytest.param('{"image": ' + "[" * 100_000, id="deep"),
    ],
)
def test_unusable_limits_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r'expected a JSON object .* such as \{"image": 4\}') as caught:
        picture_limit(ModelConfig(limit_mm_per_prompt=text))
    assert caught.value.option == "limit_mm_per_prompt"
    assert len(str(caught.value)) < 2000


def test_fields_of_the_preprocessor() -> None:
    assert preprocessor_overrides(ModelConfig()) == {}
    assert preprocessor_overrides(configure(mm_processor_kwargs={"max_pixels": 10}).model) == {"max_pixels": 10}
    for text in ("max_pixels=10", "[1]", "null", "{" * 70_000):
        with pytest.raises(ConfigError, match="expected a JSON object with fields of preprocessor"):
            preprocessor_overrides(ModelConfig(mm_processor_kwargs=text))


@pytest.mark.parametrize(
    ("largest", "shrinks", "asked", "longest", "expected"),
    [
        (16384, True, None, 32768, DEFAULT_MAX_TOKENS),
        (16384, True, 8192, 32768, 8192),
        (16384, True, 32768, 65536, 16384),
        (16384, True, None, 2048, 2047),
        (300, True, None, 32768, 300),
        (256, False, None, 32768, 256),
        (256, False, 256, 32768, 256),
        (5000, False, None, 2048, 5000),
    ],
)
def test_the_largest_picture(largest: int, shrinks: bool, asked: int | None, longest: int, expected: int) -> None:
    shape = VisionShape(largest, shrinks=shrinks)
    config = ModelConfig(max_picture_tokens=asked, limit_mm_per_prompt='{"image": 2}')
    assert resolved(shape, config, longest) == VisionShape(expected, shrinks=shrinks, limit=2)


def test_pictures_of_one_size_are_not_shrunk() -> None:
    with pytest.raises(ConfigError, match="max_picture_tokens=255 is not usable: expected at least 256"):
        resolved(VisionShape(256), ModelConfig(max_picture_tokens=255), 4096)
