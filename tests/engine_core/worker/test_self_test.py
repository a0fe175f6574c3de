"""The self-test passes on the layers that there are, and finds those whose bits depend on the step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_core.attention.base import Angles
from engine_core.kernels.library import load_kernels
from engine_core.llm import configure
from engine_core.ops.base import DecoderStack, LinearOp, OpsBackend
from engine_core.ops.native import NativeBackend
from engine_core.ops.native_linear import NativeLinear
from engine_core.progress import StartupProgress
from engine_core.startup import choose_workers, start_executor
from engine_core.worker import worker
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.self_test import is_bitwise_stable

from ..engines import StageDetails
from ..models.driver import CPU, build_model, chosen_attention, open_at
from ..models.tiny_models import CASES, make_model, save_model


def is_stable(
    directory: Path, layers: OpsBackend | None = None, block_size: int = 16, max_model_len: int | None = None
) -> bool:
    checkpoint = open_at(directory, max_model_len=max_model_len)
    attention, model = chosen_attention(), build_model(checkpoint, layers)
    limits = BatchLimits(1, 1, checkpoint.spec.max_model_len, block_size)
    return is_bitwise_stable(model.one_layer_of_each_kind(), attention, limits, CPU)


@pytest.fixture(autouse=True)
def two_threads() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    torch.set_num_threads(threads)


@pytest.mark.parametrize("block_size", [1, 16, 64])
@pytest.mark.parametrize("case", ["llama-gqa", "qwen3-tied-head-dim"])
def test_the_layers_that_there_are_pass(case: str, block_size: int, tmp_path: Path) -> None:
    assert is_stable(save_model(make_model(CASES[case]), tmp_path), block_size=block_size)


@pytest.mark.parametrize("max_model_len", [2, 6, 37])
def test_the_layers_of_a_short_model_pass(max_model_len: int, checkpoint: Path) -> None:
    assert is_stable(checkpoint, max_model_len=max_model_len)


def test_logits_that_are_no_numbers_are_no_reason_to_fail(tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa"])
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
        model.lm_head.weight[5] = torch.inf
    assert is_stable(save_model(model, tmp_path))


@pytest.mark.parametrize("max_model_len", [2, 7, None])
@pytest.mark.parametrize(
    "is_off",
    [lambda x: len(x) == 1, lambda x: torch.get_num_threads() == 1, lambda x: 1 < len(x) < 4],
    ids=["alone", "with one thread", "in small steps"],
)
def test_layers_that_depend_on_the_step_are_found(
    is_off: Callable[[torch.Tensor], bool], max_model_len: int | None, checkpoint: Path
) -> None:
    class SlightlyOff(NativeLinear):
        """By a last bit or so."""

        def __call__(self, x: torch.Tensor, **options: Any) -> torch.Tensor:
            y = super().__call__(x, **options)
            return y * (1 + 2**-20) if is_off(x) else y

    class Off(NativeBackend):
        def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> LinearOp:
            return SlightlyOff(load_kernels(), weight, bias)

        def captured(self, stack: DecoderStack) -> DecoderStack:
            return stack

    assert not is_stable(checkpoint, Off(load_kernels()), max_model_len=max_model_len)


class CapturesRowsOfTheStep(NativeBackend):
    """Lets a stack see no more rows than the step has that it is captured in, and believes its strides."""

    def captured(self, stack: DecoderStack) -> DecoderStack:
        def narrowed(hidden, context):
            count = len(context.metadata[0].slot_mapping)
            angles = [Angles(each.cos[:count], each.sin[:count]) for each in context.angles]
            output = stack(hidden[:count], replace(context, angles=angles, rows=context.rows[:count]))
            return output.as_strided(hidden.shape, output.stride())

        return super().captured(narrowed)


@pytest.mark.parametrize(("case", "is_right"), [("olmo2", False), ("llama-gqa", True)])
@pytest.mark.parametrize("max_model_len", [2, None])
def test_a_capture_that_depends_on_its_rows_is_found(
    max_model_len: int | None, case: str, is_right: bool, tmp_path: Path
) -> None:
    """OLMo 2 normalizes a slice of each row in place: the stride of a single slice is its own width."""
    directory = save_model(make_model(CASES[case]), tmp_path)
    assert is_stable(directory, CapturesRowsOfTheStep(load_kernels()), max_model_len=max_model_len) == is_right
    assert is_stable(directory, max_model_len=max_model_len)


@pytest.mark.parametrize("stable", [True, False])
def test_start_up_says_what_was_found(stable: bool, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not stable:
        monkeypatch.setattr(worker, "is_bitwise_stable", lambda *args: False)
    stages, fingerprints = StageDetails(), set()
    for _ in range(2):
        config = configure(model=str(checkpoint), kv_cache_memory_bytes=4 << 20, max_num_seqs=2)
        executor = start_executor(choose_workers(config), StartupProgress(stages))
        fingerprints.add(executor.numerics)
        executor.close()
    assert ("WARNING" in stages.details["warm up"]) == (not stable)
    assert len(fingerprints) == (1 if stable else 2)
