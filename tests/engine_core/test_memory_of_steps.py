"""No step takes more memory than the one that was profiled, whatever its requests ask for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig

from services.ring.ledger import _ID_BYTES
from tests.engine_core.models.tiny_models import SIZES

MIB = 1 << 20


def save_outline(directory: Path, vocab_size: int) -> Path:
    """A model of two thin layers with a wide head, for dummy weights."""
    sizes = {"vocab_size": vocab_size, "num_hidden_layers": 2, "max_position_embeddings": 2048}
    options = {"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "tie_word_embeddings": True}
    LlamaConfig(**(SIZES | sizes | options)).save_pretrained(directory)
    return directory


PROMPTS_PROGRAM = """
import json, sys

from engine_core.llm import LLM
from engine_core.platforms.host_memory import measure_peak
from engine_core.request import SamplingParams

options = {"load_format": "dummy", "num_threads": 1, "max_num_batched_tokens": 512, "max_num_seqs": 16}
prompts = [[(7 * row + seq) % 49152 for row in range(700)] for seq in range(3)]
with LLM(sys.argv[1], **options) as llm:
    with measure_peak() as peak:
        results = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=20))
    assert all(len(result.prompt_logprobs or ()) == 699 for result in results)
    print(json.dumps({"step": llm._engine.executor.step_bytes, "growth": peak.growth}))
"""


def measure(program: str, *arguments: str) -> dict[str, Any]:
    """What a program of a process of its own measures: one that ran other tests grows into what those freed."""
    command = [sys.executable, "-c", program, *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=550, check=False)
    assert finished.returncode == 0, finished.stderr
    seen: dict[str, Any] = json.loads(finished.stdout)
    return seen


def test_log_probabilities_of_prompts_stay_within_the_profile(tmp_path: Path) -> None:
    """Their logits are 96 MiB a step. What is kept of each chunk must not keep the chunk's own memory from the next."""
    seen = measure(PROMPTS_PROGRAM, str(save_outline(tmp_path, 49152)))
    assert seen["growth"] <= seen["step"]


PROGRAM = """
import json, random, sys
from dataclasses import replace

from engine_core.llm import LLM
from engine_core.platforms.host_memory import measure_peak, resident_memory
from engine_core.request import SamplingParams

ID_BYTES = int(sys.argv[2])
llm = LLM(sys.argv[1], load_format="dummy", num_threads=1, gpu_memory_utilization=0.3)
executor, vocab, rng = llm._engine.executor, llm.model.vocab_size, random.Random(0)
listed = range(1024)
every = dict(
    top_p=0.99, min_p=1e-6, frequency_penalty=0.1, presence_penalty=0.1, repetition_penalty=1.1, min_tokens=2,
    logit_bias=dict.fromkeys(listed, 1.0), bad_words_token_ids=tuple(zip(listed[::2], listed[1::2])), logprobs=20,
    stop_token_ids=frozenset(listed),
)
own = min(256, (1 << 22) // vocab)


def lists():
    # As long as they may be, and no other request's.
    return {
        "logit_bias": dict(every["logit_bias"]),
        "bad_words_token_ids": tuple((a, b) for a, b in every["bad_words_token_ids"]),
        "stop_token_ids": frozenset(list(listed)),
        "allowed_token_ids": tuple(list(range(vocab))),
    }


def num_ids(prompt, params):
    # As those of a Submit are counted.
    words = sum(map(len, params.bad_words_token_ids))
    return len(prompt) + len(params.allowed_token_ids) + len(params.stop_token_ids) + words + 2 * len(params.logit_bias)


plain, short = SamplingParams(max_tokens=3, seed=1, ignore_eos=True), [[7]] * 256
greedy, whole = replace(plain, temperature=0.0), [[rng.randrange(vocab) for _ in range(1800)] for _ in range(3)]
everything = replace(plain, **every, allowed_token_ids=tuple(range(vocab)))
loads = {
    "greedy, 256 sequences": (short, greedy),
    "top_k, 256": (short, replace(plain, top_k=1000)),
    "top_p and min_p, 256": (short, replace(plain, top_p=0.99, min_p=1e-6)),
    "logprobs, 256": (short, replace(plain, logprobs=20)),
    "logit_bias, 256": (short, replace(plain, logit_bias=every["logit_bias"])),
    "bad_words, 256": (short, replace(plain, bad_words_token_ids=every["bad_words_token_ids"])),
    "allowed tokens, all, n=128 twice": (short[:2], replace(plain, n=128, allowed_token_ids=tuple(range(vocab)))),
    "penalties, prompt of 1,800, n=128 twice": (whole[:2], replace(plain, repetition_penalty=1.1, n=128)),
    "prompt_logprobs, greedy": (whole, replace(greedy, prompt_logprobs=20)),
    "prompt_logprobs, sampled": (whole, replace(plain, prompt_logprobs=20)),
    "everything, 256": (short, everything),
    "everything, n=128 twice, prompts of 1,800": (whole[:2], replace(everything, n=128, prompt_logprobs=20)),
    "everything, top_k and top_p mixed": (short, [replace(everything, top_k=1000), everything] * 128),
    "everything, with lists of their own": (short[:own], [replace(everything, **lists()) for _ in range(own)]),
}
idle, rows = resident_memory(), {}
for name, (prompts, params) in loads.items():
    before = resident_memory() - idle
    with measure_peak() as peak:
        llm.generate(prompts, params)
    charged = sum(map(num_ids, prompts, params)) * ID_BYTES if name.endswith("their own") else 0
    rows[name] = before + peak.growth, charged
batch = llm._engine.executor.workers._worker._runner.batch.nbytes
print(json.dumps({"step": executor.step_bytes, "batch": batch, "peaks": rows}))
"""
_RESERVE = 24 * MIB


@pytest.mark.wide
@pytest.mark.parametrize("vocab_size", [49152, 262144])
def test_every_option_at_its_worst_stays_within_the_profile(
    vocab_size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the largest steps and batches; prints a table of peaks over the idle process, beside the profile.

    Lists that a request has for itself are charged to it, and not part of a step.
    """
    seen = measure(PROGRAM, str(save_outline(tmp_path, vocab_size)), str(_ID_BYTES))
    profiled = seen["step"] + seen["batch"]
    with capsys.disabled():
        print(
            f"\nvocabulary {vocab_size:,}, profile {profiled / MIB:.0f} MiB: "
            f"step {seen['step'] / MIB:.0f}, batch {seen['batch'] / MIB:.0f}"
        )
        for name, (peak, charged) in seen["peaks"].items():
            print(f"  {name:45} {peak / MIB:6.0f} MiB" + (f" ({charged / MIB:.0f} charged)" if charged else ""))
    assert all(peak <= profiled + charged + _RESERVE for peak, charged in seen["peaks"].values())
