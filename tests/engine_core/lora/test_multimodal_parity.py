"""Adapters of the text model inside a multimodal one, named as parts of the whole, of what is below its head, or of the
text model by itself.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from engine_core.llm import LLM, LoRARequest, RequestOutput
from engine_core.lora.files import WEIGHTS
from tests.engine_core.models.multimodal_models import TYPES, WHOLE, configuration, logits, make, save

from .test_parity import FAR, NEAR, SCORED, prompt

SOON = ("Gemma3ForConditionalGeneration",)
APART = ("Qwen3OmniMoeThinkerForConditionalGeneration",)
"""Whose parts without weights PEFT cannot take."""
LATER = sorted(set(TYPES) - {*SOON, *APART} - {name for name, kind in TYPES.items() if kind in WHOLE})
LAYERS = r".*(language|text)_model.*\.layers\.\d+\..*(q|k|v|o|gate|up|down|in|out)_proj(_qkv)?"
NAMES: dict[str, Callable[[str], str]] = {
    "inner": lambda name: name.replace("base_model.model.model.", "base_model.model.", 1),
    "text": lambda name: name.replace(".model.language_model.", ".model.").replace(".model.text_model.", ".model."),
}


def adapt(model: PreTrainedModel, path: Path) -> PreTrainedModel:
    """The model with an adapter of random numbers, which is saved at ``path``."""
    torch.manual_seed(1)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=LAYERS, init_lora_weights=False)
    adapted = get_peft_model(copy.deepcopy(model), config).eval()
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.2)
    adapted.save_pretrained(str(path))
    inner: PreTrainedModel = adapted.base_model.model
    return inner


def difference(model: PreTrainedModel, output: RequestOutput) -> float:
    """The largest between log probabilities of the prompt's tokens, or of likely ones in their places."""
    ids = list(output.prompt_token_ids)
    expected = logits(model, torch.tensor(ids)).log_softmax(-1)
    entries = [each for each in output.prompt_logprobs or () if each is not None]
    assert len(entries) == len(ids) - 1
    return max(
        abs(entry.logprob - expected[row, token].item())
        for row, each in enumerate(entries)
        for token, entry in each.items()
    )


@pytest.mark.parametrize("architecture", [*SOON, *(pytest.param(name, marks=pytest.mark.models) for name in LATER)])
def test_logprobs_are_those_of_peft(architecture: str, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    model = make(configuration(TYPES[architecture]), architecture)
    save(model, tmp_path / "base", architecture)
    adapted = adapt(model, tmp_path / "whole")
    tensors = load_file(tmp_path / "whole" / WEIGHTS)
    requests = [LoRARequest("whole", 1, tmp_path / "whole")]
    for of, rename in NAMES.items():
        shutil.copytree(tmp_path / "whole", tmp_path / of)
        save_file({rename(name): tensor for name, tensor in tensors.items()}, tmp_path / of / WEIGHTS)
        requests.append(LoRARequest(of, 1 + len(requests), tmp_path / of))
    options = {"dtype": "float32", "enable_lora": True, "kv_cache_memory_bytes": "32MiB", "language_model_only": True}
    with LLM(tmp_path / "base", skip_tokenizer_init=True, max_model_len=64, max_num_seqs=8, **options) as llm:
        plain, *scored = llm.generate([prompt(24)] * (1 + len(requests)), SCORED, lora_request=[None, *requests])
    assert difference(model, plain) < NEAR
    assert difference(model, scored[0]) > FAR
    for each in scored:
        assert difference(adapted, each) < NEAR
