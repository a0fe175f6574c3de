"""The Qwen family's pictures: pixels and embeddings beside transformers', in every layout of names, with its errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import CONFIG_MAPPING, PretrainedConfig, PreTrainedModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.media import Picture, PictureShape, View
from engine_core.model_loader.loader import vision_outline
from engine_core.models.vision_model import VisionModel
from engine_core.vision.qwen_vl import QwenVL
from engine_core.vision.registry import VISION_MODELS
from tests.engine_core.models.driver import build_model, open_at
from tests.engine_core.models.multimodal_models import TEXT_FIELDS
from tests.engine_core.models.tiny_models import EAGER, SIZES
from tests.engine_core.vision.pictures import image_of, random_picture
from tests.engine_core.vision.tiny_checkpoints import assert_close
from tests.engine_core.vision.towers import encoded_in_every_way, randomize, save_whole

PATCH = 4
TOWER: dict[str, Any] = {
    "depth": 3,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_heads": 3,
    "patch_size": PATCH,
    "out_hidden_size": 64,
    "num_position_embeddings": 25,
}
TOWERS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {"depth": 2, "embed_dim": 72, "hidden_size": 64, "num_heads": 3, "patch_size": PATCH},
    "qwen2_5_vl": {**TOWER, "window_size": 4 * PATCH, "fullatt_block_indexes": [1]},
    "qwen3_vl": {**TOWER, "deepstack_visual_indexes": [0, 2]},
    "qwen3_vl_moe": {**TOWER, "deepstack_visual_indexes": [1]},
    "qwen3_5": TOWER,
    "qwen3_5_moe": TOWER,
}
CLASSES = {model.model_type: name for name, model in VISION_MODELS.items() if issubclass(model, QwenVL)}
SOON = ("qwen2_5_vl", "qwen3_vl")
MOST = [*SOON, *(pytest.param(kind, marks=pytest.mark.models) for kind in TOWERS if kind not in SOON)]
PREPROCESSOR = {
    "patch_size": PATCH,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.3, 0.5, 0.7],
    "size": {"shortest_edge": 64, "longest_edge": 64 * 300},
}


def configuration(model_type: str) -> PretrainedConfig:
    kind: Any = CONFIG_MAPPING[model_type]
    text = kind().get_text_config(decoder=True)
    fields = {**SIZES, **TEXT_FIELDS[text.model_type], "num_hidden_layers": 4}
    if model_type == "qwen3_5":  # a quarter of each head is rotated
        fields["rope_parameters"] = {**fields["rope_parameters"], "mrope_section": [2, 1, 1]}
    ids = {"image_token_id": 190, "video_token_id": 191, "vision_start_token_id": 192, "vision_end_token_id": 193}
    config: PretrainedConfig = kind(text_config=type(text)(**fields).to_dict(), vision_config=TOWERS[model_type], **ids)
    return config


def make(model_type: str) -> PreTrainedModel:
    classes: Any = transformers
    model: PreTrainedModel = getattr(classes, CLASSES[model_type])._from_config(configuration(model_type), **EAGER)
    randomize(model)
    return model


def as_older(name: str) -> str:
    """The name in checkpoints of the first releases."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def save(
    model: PreTrainedModel, directory: Path, renamed: Callable[[str], str] = lambda name: name, **changes: Any
) -> Path:
    fields = {"architectures": [CLASSES[model.config.model_type]]}
    return save_whole(model, directory, fields, PREPROCESSOR | changes, renamed)


def load(directory: Path, **options: Any) -> VisionModel:
    vision = build_model(open_at(directory, **{"dtype": "float32", **options})).vision
    assert vision is not None
    return vision


def picture_of(rows: int, columns: int, seed: int = 0) -> Picture:
    """Random pixels, a number of tokens on each side."""
    shape, side = PictureShape(rows * columns, 0, 0, rows, columns), 2 * PATCH
    return random_picture(shape, (rows * side, columns * side), seed=seed)


def processed(picture: Picture) -> dict[str, torch.Tensor]:
    """What transformers' processor makes of the picture, which it does not resize."""
    processor: Any = Qwen2VLImageProcessorPil(**PREPROCESSOR)
    return dict(processor(image_of(picture.views[0]), return_tensors="pt"))


assert_near = partial(assert_close, tolerance=2e-5)
BOTH_TYPES = [("qwen2_5_vl", "bfloat16"), ("qwen3_vl", "float32")]
SHAPES = [(1, 1), (1, 7), (3, 2), (9, 5), (14, 13)]


@pytest.mark.parametrize("model_type", MOST)
@torch.no_grad()
def test_embeddings_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    whole: Any = make(model_type)
    vision: Any = load(save(whole, tmp_path))
    assert vision.shape.num_deepstack == len(TOWERS[model_type].get("deepstack_visual_indexes", ()))
    for rows, columns in SHAPES:
        picture = picture_of(rows, columns)
        given = processed(picture)
        assert torch.equal(vision.patches(picture), given["pixel_values"])
        expected = whole.model.get_image_features(**given, return_dict=True)
        found: Any = vision.encode(picture)
        assert_near(found.embeddings[:, :64], torch.cat(expected.pooler_output))
        features = getattr(expected, "deepstack_features", [])
        assert (found.deepstack is None) == (not features)
        for own, each in zip(found.deepstack if features else (), features, strict=True):
            assert_near(own[:, :64], torch.cat(list(each)))


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        pytest.param(kind, dtype, marks=[] if (kind, dtype) in BOTH_TYPES else pytest.mark.models)
        for kind in TOWERS
        for dtype in ("float32", "bfloat16")
    ],
)
@torch.no_grad()
def test_bits_depend_neither_on_threads_nor_on_portions(model_type: str, dtype: str, tmp_path: Path) -> None:
    whole: Any = make(model_type)
    vision = load(save(whole, tmp_path), dtype=dtype)
    for rows, columns in SHAPES:
        picture = picture_of(rows, columns)
        found = encoded_in_every_way(vision, picture)
        if dtype == "bfloat16":
            expected = torch.cat(whole.model.get_image_features(**processed(picture), return_dict=True).pooler_output)
            assert_close(found.embeddings[:, :64].float(), expected, 0.1)


@pytest.mark.parametrize(
    "model_type", [kind if kind == "qwen3_vl" else pytest.param(kind, marks=pytest.mark.models) for kind in TOWERS]
)
def test_older_names_are_read(model_type: str, tmp_path: Path) -> None:
    whole = make(model_type)
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    new, old = load(save(whole, tmp_path / "new")), load(save(whole, tmp_path / "old", as_older))
    assert torch.equal(new.encode(picture_of(2, 3)).embeddings, old.encode(picture_of(2, 3)).embeddings)


def test_what_a_family_does_not_make_is_refused(tmp_path: Path) -> None:
    vision = load(save(make("qwen3_vl"), tmp_path))
    good = picture_of(2, 3)
    vision.check(good)
    (view,) = good.views
    shape = good.shape
    for other in (
        Picture.of(PictureShape(6), [view]),
        Picture.of(PictureShape(6, 1, 1, 2, 3), [view]),
        Picture.of(PictureShape(5, 0, 0, 2, 3), [view]),
        Picture.of(PictureShape(6, 0, 0, 3, 2), [view]),
        Picture.of(PictureShape(0, 0, 0, 0, 3), [view]),
        Picture.of(shape, []),
        Picture.of(shape, [view, view]),
        Picture.of(shape, [View(view.height, view.width, view.pixels[:-1])]),
        picture_of(20, 16),
    ):
        with pytest.raises(InvalidRequestError, match="media"):
            vision.check(other)
        with pytest.raises(InvalidRequestError, match="media"):
            vision.encode(other)


def test_examples_have_nearly_the_number_of_tokens_asked_for(tmp_path: Path) -> None:
    vision = load(save(make("qwen3_vl"), tmp_path))
    assert vision.shape.max_tokens == 300
    for wanted in (1, 2, 17, 100, 300, 1000):
        example = vision.example(wanted)
        vision.check(example)
        limit = min(wanted, 300)
        assert limit - limit**0.5 <= example.shape.num_tokens <= limit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 0}, "depth"),
        ({"depth": 10**6}, "depth"),
        ({"hidden_size": 70}, "heads"),
        ({"out_hidden_size": 32}, "out_hidden_size is 32"),
        ({"in_channels": 4}, "in_channels"),
        ({"spatial_merge_size": 3}, "merge_size"),
        ({"deepstack_visual_indexes": [0, 0]}, "deepstack"),
        ({"deepstack_visual_indexes": [3]}, "deepstack"),
    ],
)
def test_towers_that_cannot_be_made_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    directory = save(make("qwen3_vl"), tmp_path)
    fields = json.loads((directory / "config.json").read_text())
    fields["vision_config"] |= change
    (directory / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=message):
        open_at(directory)


@pytest.mark.parametrize(
    ("model_type", "part", "change", "message"),
    [
        ("qwen3_vl", "vision_config", {"hidden_act": "unheard"}, "no tower can be made of it: KeyError: 'unheard'"),
        ("qwen2_5_vl", "vision_config", {"window_size": 4}, "window_size=4 is not usable: expected 8 to"),
        ("qwen2_5_vl", "text_config", {"rope_parameters": {"rope_type": "default"}}, "mrope_section=None"),
    ],
)
def test_values_that_fit_no_tower_are_refused(
    model_type: str, part: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    directory = save(make(model_type), tmp_path)
    fields = json.loads((directory / "config.json").read_text())
    fields[part] |= change
    (directory / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=message):
        vision_outline(open_at(directory))


@pytest.mark.parametrize("change", [{"size": {"longest_edge": "a"}}, {"max_pixels": 0}, {"patch_size": 5}])
def test_preprocessors_that_contradict_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="preprocessor_config"):
        open_at(save(make("qwen3_vl"), tmp_path, **change))
