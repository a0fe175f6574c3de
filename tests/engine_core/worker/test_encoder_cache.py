"""Pictures in a worker: rows, positions and attention are those of transformers, and bits depend on nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from tests.engine_core.models.driver import build_model, chosen_attention, open_at
from tests.engine_core.pictures import (
    PICTURE_TOKEN,
    SHAPES,
    PictureDriver,
    make_multimodal,
    picture,
    prompt_of,
    seeing,
)

WINDOW = 11
FIELDS: dict[str, dict[str, Any]] = {
    "Gemma3ForConditionalGeneration": {
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }
}
PROMPTS = [
    prompt_of(5, picture(1, 3, 4), 6, picture(2, 4, 2), 9),
    prompt_of(21),
    prompt_of(picture(3, 1, 5), 4, picture(2, 4, 2), 1, picture(4, 4, 6)),
    prompt_of(40, picture(1, 3, 4), 20),
]


SOON = ("Gemma3ForConditionalGeneration", "Qwen3VLForConditionalGeneration")
MOST = [name if name in SOON else pytest.param(name, marks=pytest.mark.models) for name in sorted(SHAPES)]


@pytest.fixture(scope="module", params=MOST)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    architecture = request.param
    model, directory = make_multimodal(architecture, tmp_path_factory.mktemp("model"), **FIELDS.get(architecture, {}))
    with seeing():
        yield model, directory


@pytest.fixture(scope="module")
def own(made: tuple[PreTrainedModel, Path]) -> tuple[Checkpoint, LanguageModel]:
    checkpoint = open_at(made[1], dtype="float32")
    return checkpoint, build_model(checkpoint)


def driver(own: tuple[Checkpoint, LanguageModel], prompts: Any = PROMPTS, **options: Any) -> PictureDriver:
    return PictureDriver(*own, chosen_attention(), prompts, **options)


def expected(model: PreTrainedModel, own: LanguageModel, seq: int) -> torch.Tensor:
    """transformers' logits of a prompt, whose pictures are embedded by the tiny vision model."""
    ids, found = torch.tensor(PROMPTS[seq][0])[None], PROMPTS[seq][1]
    text, inside = model.model, ids == PICTURE_TOKEN
    inner = getattr(text, "language_model", None) or text.text_model
    embedded, given = inner.get_input_embeddings()(ids).detach(), dict[str, Any]()
    width, types = embedded.shape[-1], inside.int()
    if found:
        assert own.vision is not None
        encoded = [own.vision.encode(each) for each, _ in found]
        embedded[inside] = torch.cat([each.embeddings[:, :width] for each in encoded])
        if encoded[0].deepstack is not None:
            layers = torch.cat([each.deepstack[..., :width] for each in encoded if each.deepstack is not None], dim=1)
            given = {"visual_pos_masks": inside, "deepstack_visual_embeds": list(layers)}
    if hasattr(text, "get_rope_index"):
        grids = [[1, 2 * each.shape.token_rows, 2 * each.shape.token_columns] for each, _ in found]
        merge = text.config.vision_config
        assert merge.spatial_merge_size == 2
        given["position_ids"] = text.get_rope_index(
            ids, mm_token_type_ids=types, image_grid_thw=torch.tensor(grids) if grids else None
        )[0]
    if model.config.model_type == "gemma3":
        from transformers.models.gemma3 import modeling_gemma3 as gemma3

        places = torch.arange(ids.shape[1])[None]
        given["attention_mask"] = gemma3.create_masks_for_vision_model(
            inner.config, embedded, None, None, places, gemma3.get_block_sequence_ids_for_mask(types)
        )
    with torch.no_grad():
        hidden = inner(inputs_embeds=embedded, use_cache=False, **given).last_hidden_state
        logits: torch.Tensor = model.lm_head(hidden)[0]
    return logits


@pytest.mark.parametrize("seq", range(len(PROMPTS)))
def test_logits_are_those_of_transformers(
    seq: int, made: tuple[PreTrainedModel, Path], own: tuple[Checkpoint, LanguageModel]
) -> None:
    found, wanted = driver(own).whole(seq), expected(made[0], own[1], seq)
    assert (found - wanted).abs().max() <= 2e-4 * wanted.abs().max()


def chunks(seq: int, rng: random.Random, *, whole_pictures: bool) -> list[int]:
    """Random sizes of steps that compute a prompt; ``whole_pictures``: no step ends inside of one."""
    ids, found = PROMPTS[seq]
    inside = {at for each, offset in found for at in range(offset + 1, offset + each.shape.num_tokens)}
    allowed = [at for at in range(1, len(ids)) if not (whole_pictures and at in inside)]
    ends = sorted(rng.sample(allowed, rng.randrange(1, 5)))
    return [end - start for start, end in zip([0, *ends], [*ends, len(ids)], strict=True)]


def in_turns(driver: PictureDriver, parts: dict[int, list[int]], rng: random.Random) -> dict[int, torch.Tensor]:
    """Logits of prompts that are computed beside each other, in ``parts``, which some leave and begin again."""
    left = {seq: list(sizes) for seq, sizes in parts.items()}
    logits: dict[int, list[torch.Tensor]] = {seq: [] for seq in parts}
    preemptions = 2
    while any(left.values()):
        some = [seq for seq in left if left[seq]]
        leaving = [seq for seq in some if seq in driver.done and preemptions and rng.random() < 0.2]
        preemptions -= len(leaving[:1])
        for seq in leaving[:1]:
            left[seq], logits[seq] = list(parts[seq]), []
        chosen = rng.sample(some, rng.randrange(1, len(some) + 1))
        results = driver.step([(seq, left[seq].pop(0)) for seq in chosen], leaving[:1])
        for seq, result in zip(chosen, results, strict=True):
            logits[seq].append(result)
    return {seq: torch.cat(results) for seq, results in logits.items()}


def test_bits_depend_on_nothing_else(made: tuple[PreTrainedModel, Path], own: tuple[Checkpoint, LanguageModel]) -> None:
    """Not on chunks, neighbours and their pictures, preemptions, the size of blocks, or the number of threads."""
    whole_pictures = bool(own[1].config.both_ways)
    alone = {seq: driver(own).whole(seq) for seq in range(len(PROMPTS))}
    threads = torch.get_num_threads()
    for seed in range(4):
        rng = random.Random(seed)
        parts = {seq: chunks(seq, rng, whole_pictures=whole_pictures) for seq in range(len(PROMPTS))}
        torch.set_num_threads(1 + seed % 2)
        try:
            found = in_turns(driver(own, block_size=(16, 32)[seed // 2]), parts, rng)
        finally:
            torch.set_num_threads(threads)
        for seq, logits in found.items():
            assert torch.equal(logits, alone[seq])


def test_a_captured_step_and_one_with_features_compute_text_alike(own: tuple[Checkpoint, LanguageModel]) -> None:
    """Whether only the last rows are wanted, or all."""
    text = driver(own).step([(1, 21)])[0]
    (_, beside), both = driver(own).step([(0, 30), (1, 21)]), driver(own).step([(0, 30), (1, 21)], rows=True)
    assert torch.equal(beside, text)
    assert torch.equal(both[1], text[-1:])
    assert torch.equal(both[0], driver(own).step([(0, 30)])[0][-1:])


def test_another_picture_makes_other_logits(own: tuple[Checkpoint, LanguageModel]) -> None:
    others = [prompt_of(5, picture(9, 3, 4), 6, picture(2, 4, 2), 9), *PROMPTS[1:]]
    one, another = driver(own).whole(0), driver(own, others).whole(0)
    assert torch.equal(one[:5], another[:5])
    assert not torch.isclose(one[5:], another[5:]).all(dim=1).any()


def test_what_a_plan_forgets_is_kept_no_longer(own: tuple[Checkpoint, LanguageModel]) -> None:
    here = driver(own)
    here.step([(0, 30), (2, 10)])
    cache = here.runner.encoder_cache
    assert len(cache) == 4  # two of them are equal
    here.step([(1, 3)], preempted=[0, 2])
    assert len(cache) == 0
