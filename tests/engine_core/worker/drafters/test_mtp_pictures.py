"""Behind pictures, multi-token prediction drafts what transformers computes with the text that follows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from engine_core.media import Picture
from tests.engine_core.engines import speculating
from tests.engine_core.models.mtp_models import Reference
from tests.engine_core.pictures import prompt_of
from tests.engine_core.vision.test_qwen_vl import make, picture_of, processed, save
from tests.engine_core.vision.test_qwen_vl_greedy import PICTURE_TOKEN
from tests.engine_core.vision.whole_models import continued
from tests.engine_core.worker.drafters.test_mtp import MTP, Proposals, assert_drafts
from tests.engine_core.worker.drafters.test_mtp import proposals as proposals

LAST = 3
"""The last layer of the text model, which attends."""
PARTS: Sequence[int | Picture] = 5, picture_of(3, 4, 1), 6, picture_of(1, 5, 2), 9


def save_with_mtp(model_type: str, directory: Path) -> Path:
    """A checkpoint in the layout in which models that see pictures are published."""
    model: Any = make(model_type)
    with torch.no_grad():
        model.lm_head.weight[PICTURE_TOKEN:] = 0.0  # transformers would see a picture in its token
    save(model, directory)
    file = directory / "model.safetensors"
    tensors = load_file(file)
    hidden = tensors["model.language_model.norm.weight"].shape[0]
    prefix = f"model.language_model.layers.{LAST}."
    block = {name.replace(prefix, "mtp.layers.0."): tensor for name, tensor in tensors.items() if prefix in name}
    random = torch.Generator().manual_seed(0)
    tensors |= {name: tensor.flip(0).contiguous() for name, tensor in block.items()}
    for norm in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        tensors[f"mtp.{norm}.weight"] = 0.2 * torch.randn(hidden, generator=random)
    tensors["mtp.fc.weight"] = 0.2 * torch.randn(hidden, 2 * hidden, generator=random)
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


class SeeingReference(Reference):
    """Of prompts with the pictures of ``PARTS``."""

    @torch.inference_mode()
    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        seen = [processed(part) for part in PARTS if isinstance(part, Picture)]
        given = {name: torch.cat([each[name] for each in seen]) for name in seen[0]}
        model: Any = self.model.model
        model.rope_deltas = None  # of the call before
        kinds = (ids[None] == PICTURE_TOKEN).int()
        return model(input_ids=ids[None], mm_token_type_ids=kinds, **given).last_hidden_state[0]  # type: ignore[no-any-return]


@pytest.mark.models
@pytest.mark.parametrize("model_type", ["qwen3_5", "qwen3_5_moe"])
def test_drafts_behind_pictures(model_type: str, proposals: Proposals, tmp_path: Path) -> None:
    reference = SeeingReference(save_with_mtp(model_type, tmp_path), AutoModelForImageTextToText)
    ids, pictures = prompt_of(*PARTS, image_token=PICTURE_TOKEN)
    with speculating(tmp_path, MTP, max_num_batched_tokens=16, max_model_len=256) as found:
        proposals.clear()  # of the warm-up
        continued(found.engine.core, [(ids, pictures)], 24)
    last, offset = pictures[-1]
    assert_drafts(reference, proposals, start=offset + last.shape.num_tokens)
