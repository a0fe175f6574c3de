"""Compares the answers of two source trees of the engine bit by bit: on random models of every family, in every data
type, with the kernels of every instruction set of this machine, and with torch.

``benchmarks.workers.bits`` runs on both trees. Its first process takes the fastest kernels. Each next one is denied the
kernels used before, and recomputes the models that used them; the last one computes with torch, and notes refusals.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from benchmarks.report import Row
from benchmarks.served.processes import running

_DRIVER = Path(__file__).resolve().parent / "workers" / "bits.py"
_TOKENS = 640
"""Tokens of the KV cache: too few for a batch, so that sequences are preempted and recomputed."""
_OPTIONS = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "max_model_len": 384}
_ROPE: dict[str, Any] = {"rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 128}
_LLAMA3 = _ROPE | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_BIASES = {"attention_bias": True, "mlp_bias": True}

Jobs = Mapping[str, Mapping[str, Any]]


def _config(family: Any, width: int, heads: tuple[int, int, int], *, tied: bool, **more: Any) -> PretrainedConfig:
    """``heads``: number of query heads, number of key heads, and their width."""
    sizes = {"hidden_size": width, "intermediate_size": 2 * width + 16, "num_hidden_layers": 2, "vocab_size": 512}
    attention = dict(zip(("num_attention_heads", "num_key_value_heads", "head_dim"), heads, strict=True))
    tokens = {"max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": tied}
    config: PretrainedConfig = family(**sizes | attention | tokens | {"initializer_range": 0.1} | more)
    return config


MODELS: dict[str, PretrainedConfig] = {
    "llama": _config(LlamaConfig, 128, (4, 2, 64), tied=False, rope_parameters=_LLAMA3),
    "llama-tied": _config(LlamaConfig, 128, (2, 1, 128), tied=True, vocab_size=503, **_BIASES),
    "qwen2": _config(Qwen2Config, 192, (3, 1, 64), tied=False),
    "qwen2-tied": _config(Qwen2Config, 256, (2, 2, 128), tied=True, rope_parameters=_ROPE | {"rope_type": "yarn"}),
    "qwen3": _config(Qwen3Config, 96, (4, 2, 128), tied=False),
    "qwen3-tied": _config(Qwen3Config, 160, (4, 1, 64), tied=True),
    "mistral": _config(MistralConfig, 128, (4, 1, 64), tied=False, sliding_window=None),
    "mistral-tied": _config(MistralConfig, 104, (4, 2, 64), tied=True, sliding_window=None),  # no multiple of 16
}
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_QUANTIZATIONS = (None, "int8")


def make_jobs(directory: Path, only: str = "") -> Jobs:
    """Write checkpoints to ``directory``; returns the jobs, keyed by name, whose name contains ``only``."""
    jobs: dict[str, dict[str, Any]] = {}
    for (model, config), dtype, quantization in itertools.product(MODELS.items(), _DTYPES, _QUANTIZATIONS):
        named = str(dtype).removeprefix("torch.")
        name = f"{model} {named}{f' {quantization}' if quantization else ''}"
        if only not in name:
            continue
        if not (path := directory / model).exists():
            _write(config, path)
        head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
        width = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim
        options = {"dtype": named, "quantization": quantization, **_OPTIONS}
        options["num_threads"] = 2 if config.tie_word_embeddings else 1  # always 2 would be slow on busy cores
        options["kv_cache_memory_bytes"] = _TOKENS * width * dtype.itemsize
        jobs[name] = {"model": str(path), "vocabulary": config.vocab_size, "options": options}
    return jobs


def _write(config: PretrainedConfig, path: Path) -> None:
    """Write random float32 weights, also for biases and norms: otherwise omitting one would not change the answers."""
    torch.manual_seed(0)
    factory: Any = AutoModelForCausalLM
    model = factory.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    model.save_pretrained(path)


def answer(trees: Mapping[Path, Path], jobs: Jobs, *, fastest: bool) -> None:
    """Write the answers of each tree's engine to all jobs to the tree's directory, its key in ``trees``.

    Each job is computed once with each set of kernels that the engine can use, or only with the ``fastest``.
    """
    left, denied = dict.fromkeys(trees, jobs), {out: set[str]() for out in trees}
    while computing := [out for out in trees if left[out]]:
        begun = time.monotonic()
        with contextlib.ExitStack() as stack:
            processes = {}
            for out in computing:
                task = {"tree": str(trees[out]), "out": str(out), "denied": sorted(denied[out]), "jobs": left[out]}
                out.mkdir(exist_ok=True)
                (out / "task").write_text(json.dumps(task))
                command = [sys.executable, "-P", str(_DRIVER), str(out / "task")]
                # Keep bytecode caching on, or each process would compile torch's sources.
                environment = {
                    "PYTHONPATH": str(trees[out]),
                    "OMP_WAIT_POLICY": "passive",
                    "PYTHONDONTWRITEBYTECODE": "",
                }
                processes[out] = stack.enter_context(running(command, out / "log", environment))
            for out, process in processes.items():
                if process.wait():
                    raise SystemExit(f"the engine of {trees[out]} failed:\n{(out / 'log').read_text()[-2000:]}")
        for out in computing:
            given: dict[str, list[str]] = json.loads((out / "given").read_text())
            kernels = set().union(*given.values())
            if not (kernels or denied[out]):
                raise SystemExit(f"the engine of {trees[out]} took no native kernels: were they built?")
            denied[out] |= kernels
            left[out] = {} if fastest else {name: jobs[name] for name, taken in given.items() if taken}
            told = f"{len(given)} models with {', '.join(sorted(kernels)) or 'torch'}"
            print(f"{out.name}: {told}: {time.monotonic() - begun:.0f} s", file=sys.stderr)


def compare(before: Path, now: Path) -> tuple[list[Row], str | None]:
    """Count equal answers in two directories: returns a row per model and kernels, and the first difference."""
    rows: list[Row] = []
    first: str | None = None
    for name in sorted({path.stem for directory in (before, now) for path in directory.glob("*.json")}):
        files = [directory / f"{name}.json" for directory in (before, now)]
        old, new = (json.loads(file.read_text()) if file.exists() else {} for file in files)
        if "refused" in old and "refused" in new:
            new = old  # a refusal has no bits, and its words may have changed
        pairs = {request: (old.get(request, []), new.get(request, [])) for request in old | new}
        lines = [
            (request, *pair)
            for request, both in pairs.items()
            for pair in itertools.zip_longest(*both, fillvalue="nothing")
        ]
        different = [f"{name}, {request}: {a} before, {b} now" for request, a, b in lines if a != b]
        first = first or next(iter(different), None)
        row = {"model (kernels)": name, "requests": len(pairs), "of them equal": sum(a == b for a, b in pairs.values())}
        row |= {"rows": len(lines), "of these equal": len(lines) - len(different)}
        rows.append(row | {"verdict": "DIFFERENT" if different else "refused" if "refused" in old else "equal"})
    return rows, first


def run(before: Path, now: Path, directory: Path, only: str, *, fastest: bool) -> tuple[list[Row], str | None]:
    """Compare the engines of two trees; files go to ``directory``. For the rest, see ``make_jobs`` and ``answer``."""
    trees = {directory / "before": before, directory / "now": now}
    answer(trees, make_jobs(directory / "models", only), fastest=fastest)
    return compare(*trees)
