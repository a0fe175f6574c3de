"""SmolVLM's and Idefics3's embeddings of tiles: those of transformers, whatever the number of threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Idefics3Config, PreTrainedModel, SmolVLMConfig
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from engine_core.errors import EngineError, InvalidRequestError
from engine_core.media import Picture, PictureShape, VisionShape
from engine_core.vision.idefics3 import Idefics3Vision, SmolVLMVision
from tests.engine_core.models.driver import build_model, load, open_at
from tests.engine_core.pictures import prompt_of
from tests.engine_core.vision.pictures import image_of, random_picture
from tests.engine_core.vision.tiny_checkpoints import assert_close, make, save
from tests.engine_core.vision.towers import encoded_in_every_way
from tests.engine_core.vision.whole_models import answers, assert_greedy, logits_of
from text_core.pictures.base import PictureFacts
from text_core.pictures.registry import processor_of

TEXT = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 200,
    "pad_token_id": 0,
}
SIZES = [("Idefics3", 52, 2, 2), ("SmolVLM", 64, 8, 4), ("SmolVLM", 56, 9, 3)]
"""Class, pixels of a tile's side and of a patch's, and scale: in the first, float32 puts patches at other places; the
last patches of the last one are not whole."""


def made(architecture: str, side: int, patch: int, scale: int) -> PreTrainedModel:
    vision = {
        "hidden_size": 72,
        "intermediate_size": 100,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "image_size": side,
        "patch_size": patch,
    }
    kind = Idefics3Config if architecture == "Idefics3" else SmolVLMConfig
    config = kind(vision_config=vision, text_config=TEXT, scale_factor=scale, image_token_id=199)
    return make(config, f"{architecture}ForConditionalGeneration")


def saved(model: PreTrainedModel, side: int, directory: Path) -> Path:
    return save(model, directory, {"max_image_size": {"longest_edge": side}, "image_mean": [0.5, 0.4, 0.3]})


def inputs_of(*tiles: Picture) -> Mapping[str, torch.Tensor]:
    side = tiles[0].views[0].height
    processor = SmolVLMImageProcessorPil(
        size={"longest_edge": side}, max_image_size={"longest_edge": side}, image_mean=[0.5, 0.4, 0.3]
    )
    given = processor([[image_of(tile.views[0]) for tile in tiles]], return_tensors="pt")
    assert given["pixel_values"].shape == (1, len(tiles), 3, side, side)
    return given


def expected(model: PreTrainedModel, picture: Picture) -> torch.Tensor:
    given = inputs_of(picture)
    with torch.no_grad():
        found = model.model.get_image_features(given["pixel_values"], given["pixel_attention_mask"]).pooler_output
    return found[0].reshape(-1, found[0].shape[-1])


@pytest.mark.parametrize(("architecture", "side", "patch", "scale"), SIZES)
def test_embeddings_are_those_of_transformers(
    architecture: str, side: int, patch: int, scale: int, tmp_path: Path
) -> None:
    model = made(architecture, side, patch, scale)
    vision = load(saved(model, side, tmp_path)).vision
    assert vision is not None
    assert vision.shape == VisionShape(max_tokens=(side // patch // scale) ** 2, parts=vision.shape.parts)
    picture = random_picture(PictureShape(vision.shape.max_tokens), (side, side))
    assert_close(vision.encode(picture).embeddings, expected(model, picture))


@pytest.mark.parametrize("side", [364, 512, 1000, 5000])
@pytest.mark.parametrize("longest", [1457, 4096, 9000])
def test_a_prompt_may_have_all_tiles_of_its_pictures(side: int, longest: int) -> None:
    config: dict[str, Any] = {"vision_config": {"image_size": side, "patch_size": side // 4}, "scale_factor": 1}
    preprocessor = {"size": {"longest_edge": min(longest, 4 * side)}, "max_image_size": {"longest_edge": side}}
    facts = PictureFacts("SmolVLMForConditionalGeneration", config, preprocessor, 1, 10**9, {"<image>": 7})
    processor = processor_of(facts)
    most = max(len(processor.plan(*size).items) for size in [(9, 9), (4000, 3999), (3999, 4000), (1457, 1456)])
    settings = {"hidden_size": 8, "num_attention_heads": 2, **config["vision_config"]}
    shape = SmolVLMVision.read_shape(SmolVLMConfig(vision_config=settings, scale_factor=1), preprocessor)
    assert most <= shape.parts
    assert side > 1000 or most > 1


def test_bits_depend_neither_on_threads_nor_on_portions(tmp_path: Path) -> None:
    _, side, patch, scale = SIZES[1]
    vision = load(saved(made("SmolVLM", side, patch, scale), side, tmp_path), "bfloat16").vision
    assert vision is not None
    picture = random_picture(PictureShape(vision.shape.max_tokens), (side, side))
    encoded_in_every_way(vision, picture)


def test_pictures_of_another_shape_are_refused(tmp_path: Path) -> None:
    _, side, patch, scale = SIZES[1]
    directory = saved(made("SmolVLM", side, patch, scale), side, tmp_path)
    vision = build_model(open_at(directory, "dummy", dtype="float32")).vision
    assert vision is not None
    vision.check(vision.example(1))
    for picture in (random_picture(PictureShape(4), (side, 2 * side)), random_picture(PictureShape(5), (side, side))):
        with pytest.raises(InvalidRequestError, match=r"media: .*expected"):
            vision.check(picture)


@pytest.mark.parametrize("changed", ["scale_factor", "max_image_size"])
def test_configurations_that_are_not_usable_are_refused(changed: str, tmp_path: Path) -> None:
    _, side, patch, scale = SIZES[1]
    directory = saved(made("SmolVLM", side, patch, scale), side, tmp_path)
    if changed == "scale_factor":
        fields = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(fields | {"scale_factor": 3}))
    else:
        (directory / "preprocessor_config.json").write_text(json.dumps({"max_image_size": {"longest_edge": 65}}))
    with pytest.raises(EngineError, match=changed):
        open_at(directory, "dummy", dtype="float32")


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("model.vision_model.embeddings.patch_embedding.weight", "vision_model.embeddings.patch_embedding.weight"),
        ("vision_model.post_layernorm.bias", "vision_model.post_layernorm.bias"),
        ("model.connector.modality_projection.proj.weight", "connector.modality_projection.proj.weight"),
        ("model.text_model.layers.0.mlp.up_proj.weight", None),
        ("lm_head.weight", None),
    ],
)
def test_names(name: str, own: str | None) -> None:
    assert Idefics3Vision.renamed(name) == own


@pytest.mark.parametrize(("architecture", "side", "patch", "scale"), SIZES[1:])
def test_an_engine_answers_as_transformers_does(
    architecture: str, side: int, patch: int, scale: int, tmp_path: Path
) -> None:
    model = made(architecture, side, patch, scale)
    directory = saved(model, side, tmp_path)
    shape = PictureShape((side // patch // scale) ** 2)
    tiles = [random_picture(shape, (side, side), seed=seed) for seed in range(3)]
    prompt = prompt_of(4, tiles[0], [198, 197], tiles[1], 2, tiles[2], 7, image_token=199)
    pixels = inputs_of(*tiles)["pixel_values"]
    (tokens,) = answers(directory, [prompt], max_num_batched_tokens=16)
    with torch.no_grad():
        whole = model(input_ids=torch.tensor([prompt[0] + tokens]), pixel_values=pixels).logits[0]
    assert_close(logits_of(directory, prompt), whole[: len(prompt[0])])
    assert_greedy(whole, prompt, tokens)
