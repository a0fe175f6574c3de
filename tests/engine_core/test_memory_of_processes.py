"""A real engine process under full load stays within its memory budget, and what does not fit is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from engine_core.errors import OutOfMemoryError
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.startup import start_engine

from .models.tiny_models import SIZES, save_model

MIB = 1 << 20

PROGRAM = """
import json, random, sys
from pathlib import Path

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from engine_core.worker import worker

usable, model, options = json.loads(sys.argv[1])
worker.usable_memory = lambda: usable  # a machine, or a container, of that much memory


def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024


llm = LLM(model, **options)
idle = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")
rng = random.Random(0)
blocks = llm.stats().kv_blocks
prompts = [[rng.randrange(199) for _ in range(250)] for _ in range(blocks * 16 // 256 + 1)]
params = [
    SamplingParams(max_tokens=6, seed=i, logprobs=5, repetition_penalty=1.1, top_p=0.9) for i in range(len(prompts))
]
results = llm.generate(prompts, params)
assert all(len(choice.token_ids) for result in results for choice in result.choices)
# Steps of every size from 63 rows down to one: each makes kernels that stay.
shrinking = [SamplingParams(temperature=0.0, max_tokens=1 + i, ignore_eos=True) for i in range(63)]
llm.generate([[5]] * 63, shrinking)
print(json.dumps({
    "idle": idle, "peak": status("VmHWM"), "cache": blocks * 16 * 2 * 3 * 8 * 128 * 4,
    "preemptions": llm.stats().preemptions,
}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small weights and a large cache: 24 KiB a token."""
    sizes = {**SIZES, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    return save_model(LlamaForCausalLM(LlamaConfig(**sizes)), tmp_path_factory.mktemp("model"))


def test_memory_stays_within_the_budget_under_full_load(checkpoint: Path) -> None:
    """Every block of the cache is written, and steps of all sizes are run, in a budget made to be filled."""
    options = {"dtype": "float32", "num_threads": 1, "gpu_memory_utilization": 0.65, "max_num_batched_tokens": 64}
    arguments = json.dumps([1000 * MIB, str(checkpoint), options])
    command = [sys.executable, "-c", PROGRAM, arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert finished.returncode == 0, finished.stderr
    seen = json.loads(finished.stdout)
    assert seen["cache"] > 70 * MIB
    assert seen["idle"] < seen["peak"] - 0.8 * seen["cache"], "memory was touched before it was used"
    assert 550 * MIB < seen["peak"] <= 650 * MIB


def test_refusal_of_a_length_that_does_not_fit(checkpoint: Path) -> None:
    options = configure(model=str(checkpoint), dtype="float32", kv_cache_memory_bytes=4 * MIB)
    with pytest.raises(OutOfMemoryError) as refused:
        start_engine(options, StartupProgress())
    text = str(refused.value)
    assert text.startswith("max_model_len=512 does not fit")
    for part in ("32 blocks of 16 tokens", "12 MiB of KV cache", "--kv-cache-memory-bytes", "to at most 160"):
        assert part in text


def test_refusal_of_a_model_larger_than_the_budget(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_core.worker.worker.usable_memory", lambda: 200 * MIB)
    with pytest.raises(OutOfMemoryError, match=r"nothing is left for the KV cache: 0.9 of the 200 MiB"):
        start_engine(configure(model=str(checkpoint), max_num_batched_tokens=64), StartupProgress())


def test_refusal_of_weights_that_could_not_even_be_loaded(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before a byte is read: the system would kill the process without a word."""
    monkeypatch.setattr("engine_core.worker.worker.usable_memory", lambda: 3 * MIB)
    monkeypatch.setattr("engine_core.worker.worker.build_model", None)
    with pytest.raises(OutOfMemoryError, match=r"the weights take 3\.\d+ MiB as float32.*may use 3 MiB.*--dtype"):
        start_engine(configure(model=str(checkpoint), dtype="float32"), StartupProgress())
