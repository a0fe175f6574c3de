"""Gemma 4's embeddings of pictures: those of transformers, for any proportions and whatever the number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Gemma4Config, PreTrainedModel
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from engine_core.errors import EngineError, InvalidRequestError
from engine_core.media import Picture, PictureShape, View, VisionShape
from engine_core.models.vision_model import VisionModel
from tests.engine_core.models.driver import load, open_at
from tests.engine_core.pictures import Prompt, prompt_of
from tests.engine_core.vision.pictures import image_of, random_picture, random_view
from tests.engine_core.vision.tiny_checkpoints import assert_close, make, save
from tests.engine_core.vision.towers import encoded_in_every_way
from tests.engine_core.vision.whole_models import answers, assert_greedy, logits_of

PREPROCESSOR = {"patch_size": 4, "pooling_kernel_size": 3, "max_soft_tokens": 70}
SIZE = 12
"""Pixels along a token's side."""
VISION = {
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 900,
}
TEXT = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "global_head_dim": 32,
    "vocab_size": 200,
    "vocab_size_per_layer_input": 200,
    "hidden_size_per_layer_input": 16,
}
FIELDS = {"image_token_id": 199, "boi_token_id": 198, "eoi_token_id": 197, "video_token_id": 196, "audio_token_id": 195}
TEXT_OF_LAYERS = {
    "num_hidden_layers": 4,
    "sliding_window": 12,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
}
BOTH_WAYS = {"use_bidirectional_attention": "vision"}
SIDES = [(1, 1), (7, 10), (10, 7), (1, 70), (3, 2)]
"""Rows and columns of tokens."""


def made(text: dict[str, Any], **vision: Any) -> PreTrainedModel:
    config = Gemma4Config(vision_config=VISION | vision, text_config=TEXT | text, **FIELDS)
    model = make(config, "Gemma4ForConditionalGeneration")
    for name, buffer in model.named_buffers():  # limits of clipped layers are infinite at first
        if name.endswith(("_min", "_max")):
            buffer.fill_(-0.7 if name.endswith("min") else 0.9)
        elif "std_" in name:
            buffer.uniform_(0.5, 1.5)
    return model


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    return made({})


@pytest.fixture(scope="module")
def directory(model: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(model, tmp_path_factory.mktemp("gemma4"), PREPROCESSOR)


@pytest.fixture(scope="module")
def vision(directory: Path) -> VisionModel:
    vision = load(directory).vision
    assert vision is not None
    return vision


def picture_of(rows: int, columns: int) -> Picture:
    return random_picture(PictureShape(rows * columns), (rows * SIZE, columns * SIZE))


def inputs_of(*pictures: Picture) -> Mapping[str, torch.Tensor]:
    processor = Gemma4ImageProcessorPil(**PREPROCESSOR, do_resize=False)
    return processor([image_of(picture.views[0]) for picture in pictures], return_tensors="pt")


def expected(model: PreTrainedModel, picture: Picture) -> torch.Tensor:
    given = inputs_of(picture)
    with torch.no_grad():
        found = model.model.get_image_features(given["pixel_values"], given["image_position_ids"]).pooler_output
    return found[0]


@pytest.mark.parametrize(("rows", "columns"), SIDES)
def test_embeddings_are_those_of_transformers(
    rows: int, columns: int, model: PreTrainedModel, vision: VisionModel
) -> None:
    picture = picture_of(rows, columns)
    assert_close(vision.encode(picture).embeddings, expected(model, picture))


def test_layers_may_be_clipped_and_results_standardized(tmp_path: Path) -> None:
    model = made({}, use_clipped_linears=True, standardize=True)
    directory = save(model, tmp_path, PREPROCESSOR)
    assert any(name.endswith("q_proj.input_min") for name in load_file(directory / "model.safetensors"))
    vision, picture = load(directory).vision, picture_of(3, 4)
    assert vision is not None
    assert_close(vision.encode(picture).embeddings, expected(model, picture))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_neither_on_threads_nor_on_portions(dtype: str, directory: Path) -> None:
    vision = load(directory, dtype).vision
    assert vision is not None
    encoded_in_every_way(vision, picture_of(7, 10))


@pytest.mark.parametrize("both_ways", [None, "vision"])
def test_the_shape_says_how_pictures_are_seen(both_ways: str | None, directory: Path, tmp_path: Path) -> None:
    fields = json.loads((directory / "config.json").read_text())
    fields["text_config"]["use_bidirectional_attention"] = both_ways
    (tmp_path / "config.json").write_text(json.dumps(fields))
    found = open_at(tmp_path, "dummy", dtype="float32").spec.vision
    expected = VisionShape(max_tokens=280, attends_both_ways=both_ways is not None, both_ways_in_full=False)
    assert found == expected


def test_without_a_vision_config_only_text_is_served(directory: Path, tmp_path: Path) -> None:
    fields = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(fields | {"vision_config": None}))
    assert open_at(tmp_path, "dummy", dtype="float32").vision is None


@pytest.mark.parametrize(
    ("picture", "problem"),
    [
        (random_picture(PictureShape(2), (SIZE, 2 * SIZE + 1)), "12 x 25 pixels: expected multiples of 12"),
        (picture_of(1, 71), "at most 70 squares"),
        (random_picture(PictureShape(3), (SIZE, 2 * SIZE)), "num_tokens=3"),
        (random_picture(PictureShape(2, 1, 2), (SIZE, 2 * SIZE)), "rows=1"),
        (Picture.of(PictureShape(1), [random_view(SIZE, SIZE)] * 2), "2 views"),
        (Picture.of(PictureShape(1), []), "0 views"),
        (Picture.of(PictureShape(1), [View(0, 0, b"")]), "0 x 0 pixels"),
        (Picture.of(PictureShape(1), [View(SIZE, SIZE, b"abc")]), "3 bytes: expected 432"),
    ],
)
def test_pictures_of_another_shape_are_refused(picture: Picture, problem: str, vision: VisionModel) -> None:
    with pytest.raises(InvalidRequestError, match=f"media: .*{problem}"):
        vision.encode(picture)


def test_examples_are_pictures_that_are_taken(vision: VisionModel) -> None:
    for tokens, found in ((1, 1), (12, 12), (13, 13), (10_000, 70)):
        picture = vision.example(tokens)
        vision.check(picture)
        assert picture.shape.num_tokens == found


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"num_attention_heads": 3}, "num_attention_heads=3"),
        ({"head_dim": 18}, "head_dim=18"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "axial", "rope_theta": -1.0}}, "rope_theta=-1.0"),
        ({"patch_size": 8}, "patch_size=4 of the preprocessor"),
        ({"position_embedding_size": 100}, "position_embedding_size"),
        ({"hidden_activation": "mish"}, "mish"),
    ],
)
def test_configurations_that_are_not_usable_are_refused(
    changed: dict[str, Any], problem: str, directory: Path, tmp_path: Path
) -> None:
    fields = json.loads((directory / "config.json").read_text())
    fields["vision_config"] |= changed
    (tmp_path / "config.json").write_text(json.dumps(fields))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    with pytest.raises(EngineError, match=problem):
        open_at(tmp_path, "dummy", dtype="float32")


def test_only_sizes_that_transformers_accepts_are_accepted(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR | {"max_soft_tokens": 71}))
    with pytest.raises(EngineError, match="max_soft_tokens=71"):
        open_at(tmp_path, "dummy", dtype="float32")


PICTURES = picture_of(4, 5), picture_of(1, 3)
PROMPT = prompt_of(5, [198], PICTURES[0], [197], 3, [198], PICTURES[1], [197], 9, image_token=199)


def whole_logits(model: PreTrainedModel, prompt: Prompt, tokens: list[int] | None = None) -> torch.Tensor:
    ids = torch.tensor([prompt[0] + (tokens or [])])
    given = inputs_of(*(picture for picture, _ in prompt[1]))
    with torch.no_grad():
        return model(
            input_ids=ids,
            pixel_values=given["pixel_values"],
            image_position_ids=given["image_position_ids"],
            mm_token_type_ids=(ids == 199).long(),
        ).logits[0]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param({"pad_token_id": 5}, marks=pytest.mark.models, id="causal, per-layer embeddings"),
        pytest.param({**BOTH_WAYS, "hidden_size_per_layer_input": 0}, marks=pytest.mark.models, id="both ways"),
        pytest.param({**BOTH_WAYS, "num_kv_shared_layers": 2, "pad_token_id": 5}, id="both ways, shared caches"),
    ],
)
def test_an_engine_answers_as_transformers_does(text: dict[str, Any], tmp_path: Path) -> None:
    """Pictures are seen both ways in layers with a window alone; of per-layer embeddings they have padding's."""
    model = made(TEXT_OF_LAYERS | text)
    directory = save(model, tmp_path, PREPROCESSOR)
    assert_close(logits_of(directory, PROMPT), whole_logits(model, PROMPT))
    prompts = PROMPT, prompt_of(60, [198], PICTURES[0], [197], 9, image_token=199)
    for prompt, tokens in zip(prompts, answers(directory, prompts, max_num_batched_tokens=70), strict=True):
        assert_greedy(whole_logits(model, prompt, tokens), prompt, tokens)
