"""On a GPU a step of a model takes nothing from the host: it would wait for that, and could not be captured.

Tensors without memory stand for those of a GPU, and nothing is launched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from triton.runtime.jit import JITFunction

from engine_core.attention.base import AttentionMetadata
from engine_core.attention.triton import TritonAttention
from engine_core.forward_context import ForwardContext
from engine_core.llm import configure
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.models.language_model import LanguageModel
from engine_core.ops.gpu import GpuBackend
from tests.engine_core.models import families
from tests.engine_core.models.tiny_models import make_model as make_checkpoint
from tests.engine_core.models.tiny_models import save_model

META = torch.device("meta")
DEFAULT = ("qwen3-tied-head-dim", "gpt_oss", "deepseek_v3")
NAMES = [
    pytest.param(name, marks=() if name in DEFAULT else pytest.mark.models)
    for name, config in families.OWN.items()
    if config.model_type != "gemma4_text"  # reads a scale of each layer as it loads
]


class OnDevice(TorchDispatchMode):
    """Refuses tensors of the host, but for single numbers, which kernels take as arguments."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves((args, kwargs, result)):
            assert not isinstance(each, torch.Tensor) or each.device == META or each.ndim == 0, function
        return result


@pytest.fixture(autouse=True)
def _launches(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        for each in args:
            assert not isinstance(each, torch.Tensor) or each.device == META, kernel.fn.__name__

    monkeypatch.setattr(JITFunction, "run", check)


def loaded(path: Path, attention: TritonAttention, *, deterministic: bool) -> LanguageModel:
    config = configure(model=str(path), dtype="bfloat16", load_format="dummy")
    checkpoint = open_checkpoint(config.model, config.load)
    model = make_model(checkpoint, attention, GpuBackend(132, deterministic, META), META, enable_lora=True)
    load_weights(model, checkpoint, META)
    return model


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", NAMES)
@torch.inference_mode()
def test_a_step_is_of_the_device_alone(name: str, deterministic: bool, tmp_path: Path) -> None:
    path, attention = save_model(make_checkpoint(families.OWN[name]), tmp_path), TritonAttention(256, 132, uniform=True)
    model = loaded(path, attention, deterministic=deterministic)
    caches, tables = attention.allocate(model.kv_cache_spec(16), 40, META), torch.zeros(2, 2, dtype=torch.int32)
    for counts in ([20, 3], [1, 1]):
        metadata = [
            AttentionMetadata.of_sequences([20, 9], counts, tables, 16, group).on(META)
            for group in range(len(model.kv_cache_groups))
        ]
        ids, positions = (torch.empty(sum(counts), dtype=torch.int64, device=META) for _ in range(2))
        assert model.lora is not None
        with model.lora.rehearsing(30, 8), OnDevice():
            model.compute_logits(model.forward(ids, positions, ForwardContext(caches, metadata)))
