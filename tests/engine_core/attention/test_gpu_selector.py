"""Which attention computes on a GPU, and what is refused by name."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from dataclasses import replace

import pytest
import torch

from engine_core.attention import gpu_selector
from engine_core.attention.flash_attention import FlashAttention, varlen_function
from engine_core.attention.flashinfer import FlashInferAttention, HeadsOfModel
from engine_core.attention.gpu_selector import Demand, check_attention, choose_gpu_attention
from engine_core.attention.triton import TritonAttention
from engine_core.errors import ConfigError

HEADS = HeadsOfModel(32, 8, 128, torch.bfloat16)
DEMAND = Demand(HEADS, block_size=256, max_model_len=4096, deterministic=False)


class _Wrapper:
    def __init__(self, *_: object, **__: object) -> None: ...

    def reset_workspace_buffer(self, *_: object) -> None: ...


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("flashinfer")
    module.__spec__ = importlib.machinery.ModuleSpec("flashinfer", None)
    module.__version__ = "0.6"
    module.BatchPrefillWithPagedKVCacheWrapper = _Wrapper
    monkeypatch.setitem(sys.modules, "flashinfer", module)


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize(
    ("asked", "made", "named"),
    [
        (None, TritonAttention, "own triton kernels"),
        ("triton", TritonAttention, "own triton kernels"),
        ("varlen", FlashAttention, f"varlen_attn of torch {torch.__version__}"),
        ("flashinfer", FlashInferAttention, "flashinfer 0.6"),
    ],
)
def test_what_is_asked_for_is_chosen_and_named(asked: str | None, made: type, named: str) -> None:
    check_attention(asked, DEMAND)
    backend, description = choose_gpu_attention(asked, DEMAND, 132, torch.device("meta"))
    assert type(backend) is made
    assert description == f"attention by {named}"


@pytest.mark.usefixtures("flashinfer")
@pytest.mark.parametrize(
    ("asked", "demand", "option", "said"),
    [
        (
            None,
            replace(DEMAND, heads=replace(HEADS, head_dim=8)),
            "device",
            "cpu, because .* head_dim from 16 to 256; the model's is 8",
        ),
        ("native", DEMAND, "attention_backend", "triton, because native runs only on CPUs"),
        ("varlen", replace(DEMAND, plain=False), "attention_backend", "not used with windows, chunks, sinks"),
        ("varlen", replace(DEMAND, deterministic=True), "attention_backend", "--deterministic"),
        ("flashinfer", replace(DEMAND, deterministic=True), "attention_backend", "--deterministic"),
        ("varlen", replace(DEMAND, heads=replace(HEADS, dtype=torch.float32)), "attention_backend", "varlen computes"),
        ("varlen", replace(DEMAND, block_size=16), "block_size", "a multiple of 256 with --attention-backend varlen"),
        (
            "flashinfer",
            replace(DEMAND, heads=replace(HEADS, head_dim=80)),
            "attention_backend",
            "to be one of 64, 128, 256; the model's is 80",
        ),
    ],
)
def test_refusals_name_the_option(asked: str | None, demand: Demand, option: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        check_attention(asked, demand)
    assert refused.value.option == option


def test_what_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_selector.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="flashinfer is not installed"):
        check_attention("flashinfer", DEMAND)
    monkeypatch.setattr(gpu_selector, "varlen_function", lambda: None)
    with pytest.raises(ConfigError, match=r"needs torch 2\.12 or later; this is"):
        check_attention("varlen", DEMAND)


def test_a_function_without_block_tables_or_a_number_of_splits_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert varlen_function() is not None
    for older in (
        lambda query, key, value: query,
        lambda query, key, value, block_table=None, seqused_k=None: query,
        lambda query, key, value, num_splits=None: query,
    ):
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", older)
        assert varlen_function() is None
