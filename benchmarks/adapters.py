"""What adapters cost: tokens per second with and without them, in turns with vLLM; and more than there is memory for.

    python -m benchmarks.adapters --peers ~/peers
    python -m benchmarks.adapters --works 1x1 16x16 --rounds 2
    python -m benchmarks.adapters --zipf

A model of Qwen3-0.6B's shape, and adapters of rank 16 on all of its linear layers, with random weights. A work is
written as rows × adapters: 16x16 are 16 sequences, each with an adapter of its own; 16x0 none. The engine without the
option, and the engine with it, get the same prompts. ``--zipf`` has 1,000 adapters, 64 of which fit into memory, asked
for as often as words are (Zipf): counted are how many are found loaded, and what that costs beside the base model.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.contestants import OURS, VLLM, Peers
from benchmarks.offline import start_all
from benchmarks.random_adapters import find_adapters
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.shapes import find_model
from benchmarks.work import Work
from benchmarks.worker import Worker, WorkerSpec

SHAPE, RANK = "qwen3-0.6b", 16
WORKS = ("1x1", "16x16", "64x1", "16x0")
WITH_OPTION, VLLM_LORA = f"{OURS}, adapters", f"{VLLM}, adapters"
_PROMPT, _OUTPUT = 32, 32
_MOST = 64
_ZIPF_ADAPTERS, _ZIPF_LOADED, ZIPF_REQUESTS, _ZIPF_RANK = 1000, 64, 512, 8
_ZIPF_TARGETS = ("q_proj", "v_proj")


def specs(model: Path, peers: Peers) -> list[WorkerSpec]:
    """The engine without adapters, and with them; likewise vLLM, where it is."""
    usual = {
        "model": str(model),
        "dtype": "bfloat16",
        "max_model_len": 1024,
        "kv_cache_memory_bytes": 2 << 30,
        "enable_prefix_caching": False,
    }
    adapters = {"enable_lora": True, "max_loras": _MOST, "max_lora_rank": RANK}
    found = [
        WorkerSpec(OURS, sys.executable, "ringline_engine", usual, {}),
        WorkerSpec(WITH_OPTION, sys.executable, "ringline_engine", usual | adapters, {}),
    ]
    if peers.interpreter is not None and peers.has("vllm"):
        own = {"model": str(model), "max_model_len": 1024}
        for name, options in ((VLLM, own), (VLLM_LORA, own | adapters | {"max_loras": 16})):
            found.append(WorkerSpec(name, peers.interpreter, "vllm_engine", options, peers.vllm_environment))
    return found


def measure(models: Path, works: Sequence[str], peers: Peers, rounds: int) -> tuple[list[Row], list[Row]]:
    """Figures of each work and engine, and ratios of pairs of engines."""
    model = find_model(SHAPE, models)
    adapters = find_adapters(model, max(_sizes(work)[1] for work in works), RANK)
    figures: list[Row] = []
    ratios: list[Row] = []
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as logs:
        workers, started = start_all(specs(model, peers), Path(logs), stack)
        print_table(started.rows, SHAPE)
        for work in works:
            taken = _contest(work, adapters, workers, rounds)
            print_table(own := _figures(work, taken), work)
            figures += own
            print_table(own := _ratios(work, taken), "ratios")
            ratios += own
    return figures, ratios


def _sizes(work: str) -> tuple[int, int]:
    """Rows and adapters."""
    rows, _, adapters = work.partition("x")
    return int(rows), int(adapters)


def _contest(name: str, adapters: Sequence[Path], workers: Mapping[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each engine, by round."""
    batch, count = _sizes(name)
    named = tuple(str(adapters[row % count]) for row in range(batch)) if count else ()

    def taker(engine: str) -> Callable[[int], float]:
        takes_adapters = engine in (WITH_OPTION, VLLM_LORA)

        def take(number: int) -> float:
            work = Work(batch, _PROMPT, _OUTPUT, seed=number)
            work = replace(work, adapters=named) if takes_adapters else work
            return batch * _OUTPUT / workers[engine].run(work).seconds

        return take

    takers = {engine: taker(engine) for engine in workers}
    for take in takers.values():
        take(-1)  # warm-up
    return interleave(rounds, takers)


def _figures(work: str, taken: Mapping[str, list[float]]) -> list[Row]:
    rates = {engine: Figure.of(each) for engine, each in taken.items()}
    return [
        {"work": work, "engine": engine, "tok/s": each.median, "low": each.lowest, "high": each.highest}
        for engine, each in rates.items()
    ]


def _ratios(work: str, taken: Mapping[str, list[float]]) -> list[Row]:
    rows: list[Row] = []
    for ours, theirs in ((WITH_OPTION, OURS), (VLLM_LORA, VLLM), (WITH_OPTION, VLLM_LORA)):
        if ours in taken and theirs in taken:
            each = ratio(taken[ours], taken[theirs])
            found = {"ratio": each.median, "low": each.lowest, "high": each.highest}
            rows.append({"work": work, "ours": ours, "theirs": theirs, **found})
    return rows


def measure_zipf(models: Path, requests: int) -> list[Row]:
    """Requests of a thousand adapters by a law of Zipf, and as many without, in this process."""
    from engine_core.llm import LLM, LoRARequest, SamplingParams

    model = find_model(SHAPE, models)
    paths = find_adapters(model, _ZIPF_ADAPTERS, _ZIPF_RANK, _ZIPF_TARGETS)
    chosen = random.Random(0).choices(paths, [1 / (1 + place) for place in range(len(paths))], k=requests)
    llm = LLM(
        str(model),
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=32,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=2 << 30,
        enable_lora=True,
        max_loras=32,
        max_cpu_loras=_ZIPF_LOADED,
        max_lora_rank=_ZIPF_RANK,
    )
    loads: list[float] = []
    executor = llm._engine.executor
    original, lora = executor.load_adapter, executor.lora
    assert lora is not None

    def load(adapter_id: int, path: str, digest: str) -> None:
        begun = time.perf_counter()
        original(adapter_id, path, digest)
        loads.append(time.perf_counter() - begun)

    executor.load_adapter = load  # type: ignore[method-assign]
    prompts, params = Work(requests, _PROMPT, _OUTPUT).prompts(), SamplingParams(max_tokens=16, ignore_eos=True)
    named = [LoRARequest(str(path), 1, path) for path in chosen]
    rows: list[Row] = []
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    llm.generate(prompts[:64], params, lora_request=named[:64], use_tqdm=False)  # opens and warms up
    loads.clear()
    for adapters in (None, named):
        begun = time.perf_counter()
        llm.generate(prompts, params, lora_request=adapters, use_tqdm=False)
        seconds = time.perf_counter() - begun
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident
        rows.append(
            {
                "requests of": "the model" if adapters is None else f"{len(set(chosen))} adapters",
                "tok/s": 16 * requests / seconds,
                "found loaded": None if adapters is None else 1 - len(loads) / requests,
                "load ms": None if adapters is None else 1000 * sum(loads) / max(1, len(loads)),
                "grown MiB": grown / 1024,
                "set aside MiB": lora.max_bytes / 2**20,
            }
        )
    llm.close()
    return rows


def main() -> None:
    """Run the command."""
    arguments = _parser().parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if arguments.zipf:
        rows = measure_zipf(arguments.models, arguments.requests)
        print_table(rows, "more adapters than there is memory for")
    else:
        rows, _ = measure(arguments.models, arguments.works, Peers.at(arguments.peers), arguments.rounds)
    emit(arguments, "adapters", rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringline-benchmarks"
    parser.add_argument("--peers", default=os.environ.get("PEERS"), help="the virtual environment that has vllm")
    parser.add_argument("--models", type=Path, default=cache, metavar="DIR", help="where they are kept (%(default)s)")
    parser.add_argument("--works", nargs="+", default=list(WORKS), help="rows × adapters (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--zipf", action="store_true", help="1,000 adapters, 64 in memory")
    parser.add_argument("--requests", type=int, default=ZIPF_REQUESTS, help="for --zipf (%(default)s)")
    output_options(parser)
    return parser


if __name__ == "__main__":
    main()
