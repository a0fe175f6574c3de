"""The engines compared offline, each with its best options."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.worker import WorkerSpec

OURS, OURS_INT8 = "Ringline", "Ringline int8"
VLLM, VLLM_EAGER = "vLLM", "vLLM eager"
LLAMA_CPP, LLAMA_CPP_Q8 = "llama.cpp", "llama.cpp Q8_0"
TRANSFORMERS = "transformers"
OURS_NGRAM, OURS_DRAFT_MODEL = "Ringline n-grams", "Ringline draft model"
LLAMA_CPP_LOOKUP = "llama.cpp lookup"
SMOLLM2, CHAINS = "SmolLM2-135M", "qwen3-0.6b"
"""Models for which drafts are measured: a published one, and a shape that continues chains."""

_ROOT = Path(__file__).resolve().parents[1]
_KV_CACHE_GIB = "2"
"""vLLM's KV cache: just enough for the largest batch, because several engines hold theirs at the same time."""
_KV_CACHE_BYTES = 3 << 29
"""The KV cache of Ringline's engine."""
_MOST_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Peers:
    """The environment in which the peers are installed."""

    interpreter: str | None
    """The Python of their virtual environment; None: measure only engines installed in this environment."""

    @classmethod
    def at(cls, environment: str | None) -> Peers:
        """The peers in the directory of a virtual environment."""
        return cls(None if not environment else str(Path(environment) / "bin" / "python"))

    def has(self, module: str) -> bool:
        """Whether ``module`` is installed there."""
        if self.interpreter is None:
            return False
        code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        return subprocess.run([self.interpreter, "-c", code]).returncode == 0

    @property
    def vllm_environment(self) -> dict[str, str]:
        """Variables that give vLLM all cores (it would keep one free) and a timeout beyond the pauses in a step."""
        cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return {
            "VLLM_CPU_OMP_THREADS_BIND": cores,
            "VLLM_CPU_KVCACHE_SPACE": _KV_CACHE_GIB,
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "36000",
        }

    def specs(self, model: Path) -> list[WorkerSpec]:
        """All engines that can compute ``model`` here, Ringline's first."""
        ours = {"model": str(model), "max_model_len": _MOST_TOKENS, "kv_cache_memory_bytes": _KV_CACHE_BYTES}
        found = [
            _here(OURS, "ringline_engine", ours),
            _here(OURS_INT8, "ringline_engine", ours | {"quantization": "int8"}),
        ]
        if self.interpreter is not None and self.has("vllm"):
            found += [self._vllm(VLLM, model, eager=False), self._vllm(VLLM_EAGER, model, eager=True)]
        if self.interpreter is not None and self.has("llama_cpp") and self.has("gguf"):
            plain, quantized = gguf_files(self.interpreter, model)
            found += [
                WorkerSpec(name, self.interpreter, "llama_cpp_engine", {"model": str(file)}, {})
                for name, file in ((LLAMA_CPP, plain), (LLAMA_CPP_Q8, quantized))
            ]
        return [*found, _here(TRANSFORMERS, "transformers_engine", {"model": str(model)})]

    def _vllm(self, name: str, model: Path, *, eager: bool) -> WorkerSpec:
        options = {"model": str(model), "enforce_eager": eager, "max_model_len": _MOST_TOKENS}
        return WorkerSpec(name, str(self.interpreter), "vllm_engine", options, self.vllm_environment)


def _here(name: str, module: str, options: dict[str, Any]) -> WorkerSpec:
    return WorkerSpec(name, sys.executable, module, options, {})


def gguf_files(interpreter: str, model: Path) -> tuple[Path, Path]:
    """``model`` as GGUF files next to the original, in bfloat16 and in Q8_0; written if they are missing."""
    plain = model / "model.gguf"
    quantized = plain.with_suffix(".q8_0.gguf")
    if not quantized.exists():
        print(f"making {plain} and {quantized}", flush=True)
        command = [interpreter, "-m", "benchmarks.workers.gguf_file", str(model), str(plain), "Q8_0"]
        environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
        subprocess.run(command, check=True, capture_output=True, env=environment)
    return plain, quantized
