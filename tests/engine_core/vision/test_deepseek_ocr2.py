"""DeepSeek-OCR 2 beside transformers, in both forms of its configuration."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from engine_core.errors import CheckpointError, InvalidRequestError
from engine_core.forward_context import MediaRows
from engine_core.media import Picture, PictureShape
from engine_core.models.language_model import LanguageModel
from tests.engine_core.engines import started
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.pictures import prompt_of
from tests.engine_core.vision.pictures import random_picture
from tests.engine_core.vision.towers import encoded_in_every_way
from tests.engine_core.vision.whole_models import assert_greedy, continued

pytest.importorskip("transformers.models.deepseek_ocr2", reason="the reference is newer")
TOKENS = 199
IMAGE = 7


def picture(rows: int, columns: int) -> Picture:
    shape = PictureShape(256 + 1 + 144 * rows * columns, rows, columns)
    return random_picture(shape, (1024, 1024), *[(768, 768)] * (rows * columns))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepseek_ocr2")


@pytest.fixture(scope="module")
def expected(directory: Path) -> PreTrainedModel:
    from tests.engine_core.vision.deepseek_ocr_reference import reference2

    return reference2(directory, TOKENS)


@pytest.fixture(scope="module")
def model(directory: Path, expected: PreTrainedModel) -> LanguageModel:
    return load(directory)


def test_embeddings_and_logits_are_those_of_transformers(
    model: LanguageModel, expected: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.engine_core.vision.deepseek_ocr_reference import pixel_values

    given = picture(1, 2)
    inputs = {name: value for name, value in pixel_values(given).items() if name != "patches_grid"}
    with torch.no_grad():
        wanted = expected.get_image_features(**inputs).pooler_output[0]
    assert model.vision is not None
    encoded = model.vision.encode(given).embeddings
    torch.testing.assert_close(encoded, wanted, rtol=1e-4, atol=1e-4)
    assert wanted.abs().mean() > 0.1

    text = torch.randint(8, TOKENS, (12,), generator=torch.Generator().manual_seed(0))
    rows = torch.arange(4, 4 + len(encoded))
    ids = torch.cat([text[:4], torch.full((len(encoded),), IMAGE), text[4:]])
    with torch.no_grad():
        embedded = expected.get_input_embeddings()(ids).index_copy(0, rows, wanted)
        logits = expected(inputs_embeds=embedded[None]).logits[0]
    forward, media = model.forward, MediaRows(rows, encoded)
    monkeypatch.setattr(model, "forward", lambda ids, places, step: forward(ids, places, replace(step, media=media)))
    found = logits_of(model, ids)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.argmax(1), logits.argmax(1))


@pytest.mark.models
def test_an_engine_answers_as_transformers_does(directory: Path, expected: PreTrainedModel) -> None:
    from tests.engine_core.vision.deepseek_ocr_reference import pixel_values

    given = picture(1, 2)
    prompt = prompt_of(5, given, 9, image_token=IMAGE)
    with started(directory, max_model_len=1024, max_num_batched_tokens=96) as engine:
        (tokens,) = continued(engine.core, [prompt], 12)
    inputs = {name: value for name, value in pixel_values(given).items() if name != "patches_grid"}
    rows = torch.arange(5, 5 + given.shape.num_tokens)
    with torch.no_grad():
        wanted = expected.get_image_features(**inputs).pooler_output[0]
        embedded = expected.get_input_embeddings()(torch.tensor(prompt[0] + tokens)).index_copy(0, rows, wanted)
        logits = expected(inputs_embeds=embedded[None]).logits[0]
    assert_greedy(logits, prompt, tokens)


def test_bits_depend_neither_on_threads_nor_on_portions(model: LanguageModel) -> None:
    assert model.vision is not None
    encoded_in_every_way(model.vision, picture(0, 0), (1, 2))


def test_other_pictures_are_refused(model: LanguageModel) -> None:
    assert model.vision is not None
    for shape, sides in [
        (PictureShape(145), [(768, 768)]),
        (PictureShape(256), [(1024, 1024)]),
        (PictureShape(545, 1, 2), [(1024, 1024), (768, 768), (640, 640)]),
    ]:
        with pytest.raises(InvalidRequestError, match=r"^media: "):
            model.vision.check(random_picture(shape, *sides))


def _published(directory: Path, tmp_path: Path) -> Path:
    """The same checkpoint with config.json as DeepSeek writes it, whose encoder has fixed sizes."""
    written = json.loads((directory / "config.json").read_text())
    text = written["text_config"]
    language = {
        name: text[name]
        for name in ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers", "num_attention_heads")
    } | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "auto_map": {"AutoModelForCausalLM": "modeling_deepseekv2.DeepseekV2ForCausalLM"},
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "use_mla": False,
        "kv_lora_rank": None,
        "q_lora_rank": None,
        "qk_nope_head_dim": 0,
        "qk_rope_head_dim": 0,
        "v_head_dim": 0,
        "max_position_embeddings": 512,
        "eos_token_id": 1,
    }
    sam = {"downsample_channels": [40, 1024], "global_attn_indexes": [1], "heads": 2, "layers": 2, "width": 32}
    widths = {"qwen2-0-5b": {"dim": 56}, "sam_vit_b": sam}
    config = {
        "architectures": ["DeepseekOCR2ForCausalLM"],
        "auto_map": {"AutoModel": "modeling_deepseekocr2.DeepseekOCR2ForCausalLM"},
        "model_type": "deepseek_vl_v2",
        "language_config": language,
        "projector_config": {"input_dim": 56, "model_type": "mlp_projector", "n_embed": 64, "projector_type": "linear"},
        "vision_config": {"image_size": 1024, "model_name": "deepencoderv2", "model_type": "vision", "width": widths},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(directory / "model.safetensors", tmp_path)
    return tmp_path


def test_the_published_form_is_read(directory: Path, expected: PreTrainedModel, tmp_path: Path) -> None:
    published = open_at(_published(directory, tmp_path), load_format="dummy", language_model_only=False)
    saved = open_at(directory, load_format="dummy")
    assert published.vision is not None
    assert published.vision.shape == open_at(directory).spec.vision
    assert published.choice == saved.choice
    ids = torch.randint(8, TOKENS, (9,), generator=torch.Generator().manual_seed(1))
    # of the files only the text model is loaded, as the encoder's sizes are fixed in this form
    alone = [build_model(open_at(path, dtype="float32", language_model_only=True)) for path in (directory, tmp_path)]
    assert torch.equal(*(logits_of(each, ids) for each in alone))


@pytest.mark.parametrize("field", ["base_size", "image_size"])
def test_sizes_without_queries_are_refused(field: str, directory: Path, expected: PreTrainedModel) -> None:
    with pytest.raises(CheckpointError, match=f"{field}=640 is not usable: expected 768 or 1024"):
        open_at(directory, mm_processor_kwargs=json.dumps({field: 640}))
