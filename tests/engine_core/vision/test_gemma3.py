"""Gemma 3's embeddings of pictures: those of transformers, whatever the number of threads and the layout of names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3Config, PreTrainedModel
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from engine_core.errors import CheckpointError, EngineError, InvalidRequestError
from engine_core.media import Picture, PictureShape, View, VisionShape
from engine_core.models.vision_model import VisionModel
from tests.engine_core.models.driver import load, open_at
from tests.engine_core.pictures import Prompt, prompt_of
from tests.engine_core.vision.pictures import image_of, random_picture, random_view
from tests.engine_core.vision.tiny_checkpoints import assert_close, make, save
from tests.engine_core.vision.towers import encoded_in_every_way
from tests.engine_core.vision.whole_models import answers, assert_greedy, logits_of

SIDE, TOKENS = 56, 16
PREPROCESSOR = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.6, 0.7], "rescale_factor": 1 / 255}
VISION = {
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": SIDE,
    "patch_size": 7,
    "vision_use_head": False,
}
TEXT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 200,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
FIELDS = {"image_token_index": 199, "boi_token_index": 198, "eoi_token_index": 197, "mm_tokens_per_image": TOKENS}
PICTURE = random_picture(PictureShape(TOKENS), (SIDE, SIDE))


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return make(Gemma3Config(vision_config=VISION, text_config=TEXT, **FIELDS), "Gemma3ForConditionalGeneration")


@pytest.fixture(scope="module")
def directory(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(model, tmp_path_factory.mktemp("gemma3"), PREPROCESSOR)


@pytest.fixture(scope="module")
def vision(directory: Path) -> VisionModel:
    vision = load(directory).vision
    assert vision is not None
    return vision


def pixels_of(picture: Picture) -> torch.Tensor:
    processor = Gemma3ImageProcessorPil(**PREPROCESSOR, size={"height": SIDE, "width": SIDE})
    return processor([image_of(picture.views[0])], return_tensors="pt")["pixel_values"]


def expected(model: PreTrainedModel, picture: Picture) -> torch.Tensor:
    with torch.no_grad():
        return model.get_image_features(pixels_of(picture)).pooler_output[0]


def embeddings(directory: Path, picture: Picture, **options: Any) -> torch.Tensor:
    vision = load(directory, **options).vision
    assert vision is not None
    return vision.encode(picture).embeddings


def test_embeddings_are_those_of_transformers(model: PreTrainedModel, vision: VisionModel) -> None:
    assert_close(vision.encode(PICTURE).embeddings, expected(model, PICTURE))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_neither_on_threads_nor_on_portions(dtype: str, directory: Path) -> None:
    vision = load(directory, dtype).vision
    assert vision is not None
    encoded_in_every_way(vision, PICTURE)


def published_name(name: str) -> str:
    """In the layout of checkpoints that were published before transformers 5."""
    return name.replace("vision_tower.", "vision_tower.vision_model.", 1)


def newer_name(name: str) -> str:
    """In the layout of transformers' own modules."""
    return f"model.{name}".replace("model.language_model.model.", "model.language_model.", 1)


@pytest.mark.parametrize("rename", [published_name, newer_name])
def test_names_of_every_layout_are_read(
    rename: Callable[[str], str], model: PreTrainedModel, directory: Path, tmp_path: Path
) -> None:
    tensors = {rename(name): tensor for name, tensor in load_file(directory / "model.safetensors").items()}
    assert rename is published_name or set(tensors) <= set(model.state_dict())
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    assert_close(embeddings(tmp_path, PICTURE), expected(model, PICTURE))


def test_the_shape_says_that_pictures_are_seen_both_ways(directory: Path) -> None:
    assert open_at(directory).spec.vision == VisionShape(max_tokens=TOKENS, attends_both_ways=True)
    scanning = open_at(directory, mm_processor_kwargs='{"do_pan_and_scan": true}').spec.vision
    assert scanning == VisionShape(max_tokens=TOKENS, parts=257, attends_both_ways=True), "a picture and 256 crops"
    assert open_at(directory, language_model_only=True).spec.vision is None


def test_files_without_a_tower_are_a_model_of_text(directory: Path, tmp_path: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("language_model.")}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    assert load(tmp_path).vision is None


@pytest.mark.parametrize(
    ("picture", "problem"),
    [
        (random_picture(PictureShape(TOKENS), (SIDE, SIDE - 1)), "56 x 55 pixels: expected 56 x 56"),
        (random_picture(PictureShape(TOKENS + 1), (SIDE, SIDE)), "num_tokens=17"),
        (random_picture(PictureShape(TOKENS, token_rows=4, token_columns=4), (SIDE, SIDE)), "token_rows=4"),
        (Picture.of(PictureShape(TOKENS), [random_view(SIDE, SIDE)] * 2), "2 views"),
        (Picture.of(PictureShape(TOKENS), []), "0 views"),
        (Picture.of(PictureShape(TOKENS), [View(SIDE, SIDE, b"abc")]), "3 bytes: expected 9408"),
    ],
)
def test_pictures_of_another_shape_are_refused(picture: Picture, problem: str, vision: VisionModel) -> None:
    with pytest.raises(InvalidRequestError, match=f"media: .*{problem}"):
        vision.encode(picture)


def test_the_example_is_a_picture_that_is_taken(vision: VisionModel) -> None:
    vision.check(vision.example(1))
    assert vision.encode(vision.example(10_000)).embeddings.shape == (TOKENS, 48)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"mm_tokens_per_image": 15}, "mm_tokens_per_image=15"),
        ({"mm_tokens_per_image": 9}, "mm_tokens_per_image=9"),
        ({"vision_config": VISION | {"num_attention_heads": 5}}, "num_attention_heads=5"),
        ({"vision_config": VISION | {"patch_size": 57}}, "patch_size=57"),
        ({"vision_config": VISION | {"image_size": 2**16, "patch_size": 1}}, "image_size=65536"),
        ({"vision_config": VISION | {"num_channels": 4}}, "num_channels=4"),
        ({"vision_config": VISION | {"hidden_act": "mish"}}, "mish"),
        ({"vision_config": {"model_type": "clip_vision_model"}}, "clip_vision_model"),
    ],
)
def test_configurations_that_are_not_usable_are_refused(
    changed: dict[str, Any], problem: str, directory: Path, tmp_path: Path
) -> None:
    fields = json.loads((directory / "config.json").read_text())
    for name, value in changed.items():
        fields[name] = {**fields[name], **value} if isinstance(value, dict) else value
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(EngineError, match=problem):
        open_at(tmp_path, "dummy", dtype="float32")


@pytest.mark.parametrize("changed", [{"image_mean": [0.5]}, {"image_std": [0, 1, 1]}, {"rescale_factor": "x"}])
def test_preprocessors_that_are_not_usable_are_refused(
    changed: dict[str, Any], directory: Path, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(changed))
    with pytest.raises(CheckpointError, match=next(iter(changed))):
        open_at(tmp_path, "dummy", dtype="float32")


def whole_logits(model: PreTrainedModel, prompt: Prompt, tokens: list[int] | None = None) -> torch.Tensor:
    ids = torch.tensor([prompt[0] + (tokens or [])])
    pixels = torch.cat([pixels_of(picture) for picture, _ in prompt[1]])
    with torch.no_grad():
        return model(input_ids=ids, pixel_values=pixels, token_type_ids=(ids == 199).long()).logits[0]


SECOND = random_picture(PictureShape(TOKENS), (SIDE, SIDE), seed=1)
PROMPT = prompt_of(5, [198], PICTURE, [197], 3, [198], SECOND, [197], 9, image_token=199)


def test_logits_are_those_of_the_whole_model(model: PreTrainedModel, directory: Path) -> None:
    """Pictures are seen both ways, also in layers with a window, which is shorter than a picture."""
    assert_close(logits_of(directory, PROMPT), whole_logits(model, PROMPT))


def test_an_engine_answers_as_transformers_does(model: PreTrainedModel, directory: Path) -> None:
    """In steps that take a picture as a whole, but not a prompt, and beside other prompts."""
    other = prompt_of(7, [198], SECOND, [197], 2, [198], PICTURE, [197], 4, image_token=199)
    found = answers(directory, [PROMPT, other, PROMPT], max_num_batched_tokens=20)
    assert found[0] == found[2]
    for prompt, tokens in zip((PROMPT, other), found, strict=False):
        assert_greedy(whole_logits(model, prompt, tokens), prompt, tokens)


def test_logits_of_text_alone_are_those_of_the_whole_model(model: PreTrainedModel, directory: Path) -> None:
    prompt = prompt_of(40, image_token=199)
    with torch.no_grad():
        whole = model(input_ids=torch.tensor([prompt[0]])).logits[0]
    assert_close(logits_of(directory, prompt), whole)
