"""A real engine process under full load stays within its memory budget, and what does not fit is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import (
    DeepseekV2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    Qwen3MoeConfig,
)

from engine_core.errors import OutOfMemoryError
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.startup import start_engine

from .models.tiny_models import SIZES, make_model, save_model

MIB = 1 << 20
CPU_BUILD = pytest.mark.skipif(torch.version.cuda is not None, reason="torch's build for CUDA takes up to 0.5 GiB more")
BUNDLED = Path(__file__).parents[2] / "checkpoints" / "tiny"

PROGRAM = """
import json, random, sys
from pathlib import Path

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from engine_core.platforms import cpu

usable, model, options, max_seqs, max_rows, cache = json.loads(sys.argv[1])
cpu.usable_memory = lambda: usable  # a machine, or a container, of that much memory


def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024


def prompt(length):
    return [rng.randrange(199) for _ in range(length)]


llm = LLM(model, **options)
idle = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
rng = random.Random(0)
blocks = llm.stats().kv_blocks
prompts = [prompt(250) for _ in range(min(cache, blocks * 16) // 256 + 1)]
params = [
    SamplingParams(max_tokens=6, seed=i, logprobs=5, repetition_penalty=1.1, top_p=0.9) for i in range(len(prompts))
]
results = llm.generate(prompts, params)
assert all(len(choice.token_ids) for result in results for choice in result.choices)
# Steps of many sizes: prompts, then a batch that shrinks from size to size.
for rows in range(2, max_rows + 1, max(1, max_rows // 24)):
    llm.generate([prompt(min(rows, max_rows) - 1)], SamplingParams(temperature=0.0, max_tokens=1))
sizes = range(max_seqs, 0, -max(1, max_seqs // 24))
shrinking = [
    SamplingParams(temperature=0.0, max_tokens=sum(size > seq for size in sizes), ignore_eos=True)
    for seq in range(max_seqs)
]
llm.generate([[5]] * max_seqs, shrinking)
print(json.dumps({"idle": idle, "peak": status("VmHWM"), "blocks": blocks}))
"""


def run_full_load(usable: int, model: Path, options: dict[str, object], *arguments: int) -> dict[str, int]:
    """Memory of a process before and under load; ``arguments``: most sequences, most rows, tokens in the cache."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([usable, str(model), options, *arguments])]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert finished.returncode == 0, finished.stderr
    seen: dict[str, int] = json.loads(finished.stdout)
    return seen


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small weights and a large cache: 24 KiB a token."""
    sizes = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    return save_model(LlamaForCausalLM(LlamaConfig(**sizes)), tmp_path_factory.mktemp("model"))


@CPU_BUILD
def test_memory_stays_within_the_budget_under_full_load(checkpoint: Path) -> None:
    """Every block of the cache is written, and steps of all sizes are run, in a budget made to be filled."""
    options = {"dtype": "float32", "num_threads": 1, "gpu_memory_utilization": 0.65, "max_num_batched_tokens": 64}
    seen = run_full_load(1000 * MIB, checkpoint, options, 63, 64, sys.maxsize)
    cache = seen["blocks"] * 16 * 2 * 3 * 8 * 128 * 4
    assert cache > 70 * MIB
    assert seen["idle"] < seen["peak"] - 0.8 * cache, "memory was touched before it was used"
    assert 550 * MIB < seen["peak"] <= 650 * MIB


HEADS = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 8}
EXPERTS = {"moe_intermediate_size": 256, "num_experts_per_tok": 4}
UNLIKE: dict[str, PretrainedConfig] = {
    "experts": Qwen3MoeConfig(**HEADS, **EXPERTS, head_dim=128, num_experts=32),
    "latents": DeepseekV2Config(
        **(HEADS | {"num_hidden_layers": 8}),
        **EXPERTS,
        n_routed_experts=16,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    ),
    "windows": Gemma3TextConfig(
        **(HEADS | {"num_hidden_layers": 6}),
        head_dim=128,
        sliding_window=64,
        layer_types=[*5 * ["sliding_attention"], "full_attention"],
    ),
    "windows, sinks and experts": GptOssConfig(
        **(HEADS | {"num_hidden_layers": 4}),
        num_local_experts=32,
        num_experts_per_tok=4,
        head_dim=128,
        sliding_window=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),
}


@CPU_BUILD
@pytest.mark.models
@pytest.mark.parametrize("kind", UNLIKE)
def test_models_with_unlike_layers_stay_within_the_budget_under_full_load(kind: str, tmp_path: Path) -> None:
    """With steps of up to 512 rows, whose experts make more of a row than the rest of a layer."""
    options = {"dtype": "float32", "num_threads": 1, "gpu_memory_utilization": 0.65, "max_num_batched_tokens": 512}
    seen = run_full_load(1200 * MIB, save_model(make_model(UNLIKE[kind]), tmp_path), options, 63, 512, sys.maxsize)
    assert 0.8 * 780 * MIB < seen["peak"] <= 780 * MIB


@CPU_BUILD
@pytest.mark.models
def test_the_bundled_model_serves_in_one_gibibyte() -> None:
    """With every option at its default, and a cache that holds a hundred conversations of a thousand tokens."""
    seen = run_full_load(1024 * MIB, BUNDLED, {"load_format": "dummy"}, 256, 2048, 5_000)
    assert seen["blocks"] * 16 > 100_000
    assert seen["peak"] <= 0.9 * 1024 * MIB


def test_refusal_of_weights_that_could_not_even_be_loaded(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before a byte is read: the system would kill the process without a word."""
    monkeypatch.setattr("engine_core.platforms.cpu.usable_memory", lambda: 3 * MIB)
    monkeypatch.setattr("engine_core.worker.worker.load_weights", None)
    with pytest.raises(OutOfMemoryError, match=r"the weights take 3\.\d+ MiB as float32.*may use 3 MiB.*--dtype"):
        start_engine(configure(model=str(checkpoint), dtype="float32"), StartupProgress())
