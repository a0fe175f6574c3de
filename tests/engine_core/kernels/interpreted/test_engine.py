"""A whole engine with the kernels, layers, sampler and padding of a GPU, on CPU: its tokens are the CPU engine's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from engine_core.attention.flashinfer import FlashInferAttention, HeadsOfModel
from engine_core.attention.triton import TritonAttention
from engine_core.config import DeviceConfig
from engine_core.executor import worker
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.ops.gpu import GpuBackend
from engine_core.platforms.base import NewBatch
from engine_core.platforms.cuda import CudaPlatform
from engine_core.platforms.cuda_graphs import DeviceForward
from engine_core.request import SamplingParams
from engine_core.worker import self_test
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.model_runner import ModelRunner
from tests.engine_core.attention.sequences import CPU
from tests.engine_core.engines import run, started
from tests.engine_core.kernels.interpreted.libraries import Library
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import make_model, save_model

PROMPTS = {"a": [5, 6, 7], "b": list(range(10, 37)), "c": [100]}
PARAMS = {
    "a": SamplingParams(temperature=0.0, max_tokens=5, logprobs=2, prompt_logprobs=1),
    "b": SamplingParams(temperature=0.8, top_p=0.9, seed=3, max_tokens=3),
    "c": SamplingParams(temperature=1.0, top_k=20, repetition_penalty=1.3, seed=4, max_tokens=5),
}


class Replayed:
    """A graph that is its function."""

    replays = 0

    def record(self, function: Callable[[], None]) -> Replayed:
        self.function = function
        return self

    def replay(self) -> None:
        Replayed.replays += 1
        self.function()


class InterpretedDevice(CudaPlatform):
    """A GPU but for its memory and its graphs."""

    def __init__(self, config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits, *_: object) -> None:
        self.torch_device = torch.device("cpu")
        self.usable = 1 << 33
        self._host_usable = self.usable
        self.batch_invariant = True
        self.attention = TritonAttention(limits.max_model_len, 2, uniform=True)
        self.ops = GpuBackend(2, deterministic=True, device=torch.device("cpu"))
        self.quantization = None
        self._limits, self._name, self._eager, self._attends = limits, "an interpreter", False, "attention"
        self._samples = True
        self._warning = ""

    def prepare(self, runner: ModelRunner, new_batch: NewBatch, kv_caches: list[torch.Tensor]) -> str:
        assert isinstance(runner.forward, DeviceForward)
        for size in runner.forward.sizes:
            runner.forward._inputs.clear(size)
        runner.forward.capture(_Separate(), kv_caches, [2, 4])
        return "graphs that are functions"

    def computing(self) -> AbstractContextManager[None]:
        return nullcontext()

    def memory_left(self, *_: object) -> str:
        return ""

    def trim(self) -> None: ...


class FlashInferDevice(InterpretedDevice):
    """With attention that is planned on the host."""

    def __init__(self, config: DeviceConfig, checkpoint: Checkpoint, limits: BatchLimits, *_: object) -> None:
        super().__init__(config, checkpoint, limits)
        shape = checkpoint.config
        heads = HeadsOfModel(shape.num_heads, shape.num_kv_heads, shape.head_dim, checkpoint.dtype)
        pages = limits.max_blocks_per_table
        self.attention = FlashInferAttention(Library, heads, limits.block_size, pages, CPU, workspace=16)
        self.batch_invariant = False


class _Separate:
    def record(self, function: Callable[[], None]) -> Replayed:
        function()
        return Replayed().record(function)


def outcomes(model: Path, **options: object) -> dict[tuple[str, int], list[int]]:
    with started(model, max_num_seqs=4, max_num_batched_tokens=24, **options) as engine:
        results = run(engine, PROMPTS, PARAMS)
        stable = "unstable" not in engine.executor.numerics
        assert stable == (worker.choose_platform is not FlashInferDevice)
    return {key: outcome.token_ids for key, outcome in results.items()}


@pytest.mark.parametrize(
    ("case", "device", "overlapped"),
    [
        ("qwen3-tied-head-dim", InterpretedDevice, True),
        pytest.param("llama-mha-tied-biases", InterpretedDevice, False, marks=pytest.mark.wide),
        pytest.param("qwen2-window-of-two-layers", InterpretedDevice, True, marks=pytest.mark.wide),
        pytest.param("qwen3-tied-head-dim", FlashInferDevice, True, marks=pytest.mark.wide),
        pytest.param("qwen3_moe", InterpretedDevice, True, marks=pytest.mark.wide),
        pytest.param("deepseek_v2-no-query-latent", InterpretedDevice, True, marks=pytest.mark.wide),
    ],
)
def test_tokens_equal_those_of_the_cpu_engine(
    case: str, device: type[InterpretedDevice], overlapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model(make_model(configuration(case)), tmp_path)
    monkeypatch.setattr(self_test, "_LENGTHS", (18, 1, 6))  # as little as crosses the end of a block
    expected = outcomes(model, max_model_len=64)
    monkeypatch.setattr(worker, "choose_platform", device)
    Replayed.replays = 0
    assert outcomes(model, max_model_len=64, async_scheduling=overlapped) == expected
    assert Replayed.replays >= 3
