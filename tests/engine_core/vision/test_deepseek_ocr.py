"""DeepSeek-OCR beside transformers, from a checkpoint in the published form."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from engine_core.errors import CheckpointError, InvalidRequestError, UnsupportedModelError
from engine_core.forward_context import MediaRows
from engine_core.media import Picture, PictureShape
from engine_core.models.language_model import LanguageModel
from engine_core.models.vision_model import VisionModel
from engine_core.startup import served_of_multimodal
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.pictures import prompt_of
from tests.engine_core.vision.deepseek_ocr_checkpoints import SIZES, write_deepseek_ocr
from tests.engine_core.vision.pictures import random_picture
from tests.engine_core.vision.towers import encoded_in_every_way
from tests.engine_core.vision.whole_models import answers, assert_greedy
from text_core.pictures.base import PictureFacts
from text_core.pictures.registry import processor_of

unlimited_ocr = pytest.importorskip("transformers.models.unlimited_ocr", reason="the reference is newer")
GRIDS = [(0, 0), (1, 2), (2, 3), (6, 1)]


def picture(rows: int, columns: int, seed: int = 0) -> Picture:
    whole, crop = SIZES["base_size"], SIZES["image_size"]
    tokens = (whole // 64) * (whole // 64 + 1) + 1 + rows * (crop // 64) * (columns * (crop // 64) + 1)
    sides = [(whole, whole)] + [(crop, crop)] * (rows * columns)
    return random_picture(PictureShape(tokens, rows, columns), *sides, seed=seed)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_deepseek_ocr(tmp_path_factory.mktemp("deepseek_ocr"))


@pytest.fixture(scope="module")
def model(directory: Path) -> LanguageModel:
    return load(directory)


@pytest.fixture(scope="module")
def expected(directory: Path) -> PreTrainedModel:
    from tests.engine_core.vision.deepseek_ocr_reference import reference

    return reference(directory)


def vision_of(model: LanguageModel) -> VisionModel:
    assert model.vision is not None
    return model.vision


@pytest.mark.parametrize("grid", GRIDS)
def test_embeddings_are_those_of_transformers(
    grid: tuple[int, int], model: LanguageModel, expected: PreTrainedModel
) -> None:
    from tests.engine_core.vision.deepseek_ocr_reference import pixel_values

    given = picture(*grid)
    with torch.no_grad():
        wanted = expected.get_image_features(**pixel_values(given)).pooler_output[0]
    found = vision_of(model).encode(given).embeddings
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert wanted.abs().mean() > 0.1


def test_logits_behind_a_picture_are_those_of_transformers(
    model: LanguageModel, expected: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engine_core.vision.deepseek_ocr_reference import pixel_values

    given, image = picture(1, 2), expected.config.image_token_id
    count = given.shape.num_tokens
    text = torch.randint(3, 200, (20,), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([text[:5], torch.zeros(count, dtype=torch.int64), text[5:]])
    rows = torch.arange(5, 5 + count)
    monkeypatch.setattr(expected.config, "image_token_id", 261)
    marked = ids.index_fill(0, rows, 261)
    with torch.no_grad():
        wanted = expected(input_ids=marked[None], **pixel_values(given)).logits[0]
    monkeypatch.setattr(expected.config, "image_token_id", image)
    forward, media = model.forward, MediaRows(rows, vision_of(model).encode(given).embeddings)
    monkeypatch.setattr(model, "forward", lambda ids, places, step: forward(ids, places, replace(step, media=media)))
    found = logits_of(model, ids)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.argmax(1), wanted.argmax(1))


def test_an_engine_answers_as_transformers_does(
    directory: Path, expected: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engine_core.vision.deepseek_ocr_reference import pixel_values

    given = picture(1, 2)
    prompt = prompt_of(5, given, 9, image_token=261)
    (tokens,) = answers(directory, [prompt], count=12, max_num_batched_tokens=32)
    monkeypatch.setattr(expected.config, "image_token_id", 261)
    with torch.no_grad():
        logits = expected(input_ids=torch.tensor([prompt[0] + tokens]), **pixel_values(given)).logits[0]
    assert_greedy(logits, prompt, tokens)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_depend_neither_on_threads_nor_on_portions(dtype: str, directory: Path) -> None:
    encoded_in_every_way(vision_of(load(directory, dtype)), picture(2, 3))


def test_text_alone_needs_no_tower(directory: Path) -> None:
    whole = open_at(directory)
    alone = open_at(directory, language_model_only=True)
    assert whole.vision is not None
    assert whole.spec.vision is not None
    assert alone.vision is None
    assert alone.spec.vision is None
    assert served_of_multimodal(whole) == "DeepseekOCRForCausalLM, with pictures: "
    assert served_of_multimodal(alone) == "the text of DeepseekOCRForCausalLM alone: "
    names = build_model(alone).tensors()
    assert not any("sam_model" in name for name in names)
    assert {name for name in names if name.startswith("model.layers.")}


def test_what_the_published_code_saves_beside_is_left_out(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(
        vision_of(load(tmp_path)).encode(picture(0, 0)).embeddings,
        vision_of(load(directory)).encode(picture(0, 0)).embeddings,
    )


def test_the_largest_picture_bounds_tokens(model: LanguageModel) -> None:
    vision = vision_of(model)
    assert vision.shape.max_tokens == max(picture(*grid).shape.num_tokens for grid in [(6, 1), (1, 6), (2, 3), (3, 2)])
    for tokens in (1, 21, 40, 57, 10**6):
        example = vision.example(tokens)
        vision.check(example)
        assert example.shape.num_tokens <= max(tokens, 21)
    assert vision.example(10**6).shape.num_tokens == vision.shape.max_tokens


@pytest.mark.parametrize("size", [(90, 70), (129, 40), (500, 500), (3000, 200), (200, 3000), (900, 640)])
def test_what_the_processor_plans_is_taken(size: tuple[int, int], model: LanguageModel) -> None:
    vision = vision_of(model)
    facts = PictureFacts("DeepseekOCRForCausalLM", {}, SIZES, 1, vision.shape.max_tokens, {"<image>": 261})
    (item,) = processor_of(facts).plan(*size).items
    shape = PictureShape(item.num_tokens, item.rows, item.columns, item.token_rows, item.token_columns)
    vision.check(random_picture(shape, *((view.size[1], view.size[0]) for view in item.views)))
    assert (len(item.views) > 1) == (max(size) > SIZES["image_size"])


@pytest.mark.parametrize(
    "given",
    [
        random_picture(PictureShape(21), (256, 192)),
        random_picture(PictureShape(21), (320, 320)),
        random_picture(PictureShape(20), (256, 256)),
        random_picture(PictureShape(21, token_rows=4, token_columns=4), (256, 256)),
        random_picture(PictureShape(21, 1, 2), (256, 256)),
        random_picture(PictureShape(31, 1, 2), (256, 256), (128, 128)),
        random_picture(PictureShape(31, 1, 2), (256, 256), (128, 128), (128, 64)),
        random_picture(PictureShape(29, 1, 1), (256, 256), (128, 128)),
        random_picture(PictureShape(100, 4, 2), (256, 256), *[(128, 128)] * 8),
    ],
)
def test_other_pictures_are_refused(given: Picture, model: LanguageModel) -> None:
    with pytest.raises(InvalidRequestError, match=r"^media: "):
        vision_of(model).encode(given)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("vision_config.width.sam_vit_b.width", "wide"),
        ("vision_config.width.sam_vit_b.heads", 5),
        ("vision_config.width.sam_vit_b.layers", 10**9),
        ("vision_config.width.sam_vit_b.downsample_channels", [40]),
        ("vision_config.width.clip-l-14-224.width", 96),
        ("vision_config.width.clip-l-14-224.patch_size", 0),
        ("vision_config.image_size", 100),
        ("projector_config.projector_type", "mlp_gelu"),
        ("projector_config.input_dim", 10),
        ("language_config", None),
        ("torch_dtype", "wide"),
        ("language_config.hidden_size", 0),
        ("language_config.scoring_func", "sigmoid"),
    ],
)
def test_a_configuration_that_cannot_be_right_is_refused(path: str, value: Any, tmp_path: Path) -> None:
    directory = write_deepseek_ocr(tmp_path)
    fields = json.loads((directory / "config.json").read_text())
    *names, last = path.split(".")
    within = fields
    for name in names:
        within = within[name]
    within[last] = value
    (directory / "config.json").write_text(json.dumps(fields))
    with pytest.raises((CheckpointError, UnsupportedModelError)) as caught:
        load(directory)
    assert any(word in str(caught.value) for word in (last, "width", f"{value!r}"))
