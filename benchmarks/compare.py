"""Compares Ringline with other engines and servers: the same work, in turns, with the machine's limits.

    python -m benchmarks.compare --peers ~/peers                 # all parts; see README.md for what each takes
    python -m benchmarks.compare --peers ~/peers --parts offline served
    python -m benchmarks.compare --parts --report                # only writes RESULTS.md, from earlier results

Each part writes ``results/PART.json``. Peers that are not installed are left out, and the report says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import adapters, embeddings, engine, kernels, quantized, serve, speculation, startup
from benchmarks.contestants import LLAMA_CPP, OURS, TRANSFORMERS, Peers
from benchmarks.limits import Gauge
from benchmarks.offline import CONTESTS, contend, end_all_but, start_all
from benchmarks.report import Row, document, print_table, write_json
from benchmarks.results_page import write_page
from benchmarks.roofline import ModelCost
from benchmarks.rounds import interleave
from benchmarks.served import peers as served_peers
from benchmarks.served import ring
from benchmarks.served.processes import end_children_when_terminated
from benchmarks.shapes import find_model
from benchmarks.work import Work

_HERE = Path(__file__).resolve().parent
_SERVED_PROMPT, _SERVED_OUTPUT = 64, 64


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of all parts."""

    peers: Peers
    models: Path
    model: str
    small_model: str
    rounds: int
    logs: Path
    engines: list[str] | None
    """Names of the offline engines that take part; None for all."""

    def large(self) -> Path:
        """The model whose speed is bound by reading its weights."""
        return find_model(self.model, self.models)

    def small(self) -> Path:
        """The model whose speed is bound by overhead."""
        return find_model(self.small_model, self.models)


Tables = dict[str, list[Row]]
_SWEEP_KV_CACHE_BYTES, _SERVED_KV_CACHE_BYTES = 6 << 30, 1 << 28
"""KV cache for 256 sequences. Allocated at the start, so that no step's time includes the allocation of memory."""


def offline(setting: Setting) -> Tables:
    """Batches and a long prompt on every offline engine, and the time of each engine's first start."""
    model = setting.large()
    tables: Tables = {"figures": [], "ratios": []}
    specs = [s for s in setting.peers.specs(model) if setting.engines is None or s.name in setting.engines]
    with contextlib.ExitStack() as stack:
        workers, started = start_all(specs, setting.logs, stack)
        tables["first starts"] = started.rows
        gauge, cost = Gauge(), ModelCost.of(model)
        for number, contest in enumerate(CONTESTS):
            end_all_but({name for later in CONTESTS[number:] for name in later.engines}, workers)
            rows, ratios = contend(contest, workers, cost, gauge, setting.rounds)
            print_table(rows, contest.name)
            tables["figures"] += rows
            tables["ratios"] += ratios
    return tables


def starts(setting: Setting) -> Tables:
    """Process start to first token, in turns: ours stage by stage with warm and cold page cache, and the peers'."""
    model = setting.large()
    weights = sorted(model.glob("*.safetensors"))
    tables: Tables = {}
    for name, cold in (("warm", []), ("cold", weights)):
        rows = startup.measure(startup.ours(model), setting.rounds, cold, setting.logs)
        tables[name] = [*rows, startup.served(model, setting.rounds, cold, setting.logs)]
    with contextlib.ExitStack() as stack:
        specs = [s for s in setting.peers.specs(model) if s.name != TRANSFORMERS]
        tables["engines"] = start_all(specs, setting.logs, stack)[1].rows
    return tables


def served(setting: Setting) -> Tables:
    """The small model on every server, from one stream to many, in turns."""
    model = setting.small()
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        flags = ["--kv-cache-memory-bytes", str(_SERVED_KV_CACHE_BYTES)]
        place = stack.enter_context(ring.serve(model, flags, setting.logs))
        loads: dict[str, Callable[[ring.Traffic], Mapping[str, Any]]] = {
            "Ringline": lambda traffic: ring.load(place, traffic),
            "Ringline, engine alone": lambda traffic: ring.load(place, traffic, engine=True),
        }
        interpreter = setting.peers.interpreter
        if interpreter is not None and setting.peers.has("vllm") and setting.peers.has("smg"):
            environment = setting.peers.vllm_environment
            other = stack.enter_context(served_peers.serve(interpreter, model, environment, setting.logs))
            loads["vLLM + SMG"] = lambda traffic: served_peers.load(other, traffic)
            loads["vLLM, engine alone"] = lambda traffic: served_peers.load(other, traffic, engine=True)
        for streams in serve.STREAMS:
            traffic = serve.traffic_of(streams, _SERVED_PROMPT, _SERVED_OUTPUT)
            for load in loads.values():  # warm-up: compiles kernels for these batch sizes
                load(ring.Traffic(streams, streams, _SERVED_PROMPT, 8, warmup=0))
            calls = {name: lambda _, load=load: load(traffic) for name, load in loads.items()}  # noqa: B023
            measured = [serve.row(name, streams, taken) for name, taken in interleave(setting.rounds, calls).items()]
            print_table(measured, f"{streams} streams")
            rows += measured
    return {"figures": rows}


def ring_cost(setting: Setting) -> Tables:
    """The cost of serving: the ring compared with the offline engine."""
    return {"figures": [serve.ring_cost(setting.large(), 16, 128, 64, setting.rounds, setting.logs)]}


def sweeps(setting: Setting) -> Tables:
    """Cost over the number of streams, the context length and the share of prefix hits."""
    model = setting.large()
    works: dict[str, Work] = {name: engine.base_work(name, 32) for name in ("streams", "context", "prefix")}
    options = {"kv_cache_memory_bytes": _SWEEP_KV_CACHE_BYTES}
    return {
        name: engine.run_sweep(model, name, work, max(1, setting.rounds // 2), None, options)
        for name, work in works.items()
    }


def quantized_weights(setting: Setting) -> Tables:
    """Weights of 4 bits, beside llama.cpp on the same GGUF file."""
    engines = [f"{OURS} {_MIX}", f"{OURS} {_MIX}, 8-bit inputs", f"{OURS} int4", f"{LLAMA_CPP} {_MIX}"]
    return _quantized(setting, _QUANTIZED, engines, ("batch 1", "batch 16", "prefill 1024"))


def hybrids(setting: Setting) -> Tables:
    """Models whose layers keep states, the same way."""
    tables: Tables = {}
    for shape in _HYBRIDS:
        of_shape = _quantized(setting, shape, [f"{OURS} {_MIX}", f"{LLAMA_CPP} {_MIX}"], ("batch 1", "batch 16"))
        for name, rows in of_shape.items():
            tables.setdefault(name, []).extend({"model": shape, **row} for row in rows)
    return tables


def _quantized(setting: Setting, shape: str, engines: list[str], works: tuple[str, ...]) -> Tables:
    rounds = max(2, setting.rounds // 2)
    setup = quantized.Setup(setting.peers, setting.models, shape, (_MIX,), works, engines, rounds)
    rows, ratios = quantized.measure(setup)
    return {"figures": rows, "ratios": ratios}


def drafts(setting: Setting) -> Tables:
    """Speed with drafts and without."""
    rows: list[Row] = []
    rounds = max(2, setting.rounds // 2)
    for subject in speculation.subjects(speculation.Choice(setting.peers, setting.models)):
        rows += speculation.measure(subject, speculation.BATCHES, speculation.TEXTS, rounds)
    return {"figures": rows}


def vectors(setting: Setting) -> Tables:
    """Embedding models, beside other engines and over HTTP."""
    choice, rounds = embeddings.Choice(setting.models), max(2, setting.rounds // 2)
    return {
        "figures": embeddings.measure(choice, [setting.peers], rounds),
        "served": embeddings.measure_served(choice, rounds),
    }


def fine_tuned(setting: Setting) -> Tables:
    """What adapters cost, and more of them than there is memory for."""
    rounds = max(2, setting.rounds // 2)
    figures, ratios = adapters.measure(setting.models, adapters.WORKS, setting.peers, rounds)
    many = adapters.measure_zipf(setting.models, adapters.ZIPF_REQUESTS)
    return {"figures": figures, "ratios": ratios, "1,000 adapters, 64 in memory": many}


def all_kernels(_: Setting) -> Tables:
    """Every kernel separately, with one thread and with all threads."""
    return {"figures": kernels.measure_groups(list(kernels.GROUPS), (1, None))}


_QUANTIZED, _HYBRIDS, _MIX = "qwen3-0.6b", ("qwen3.5-0.8b", "lfm2-1.2b"), "Q4_K_M"

PARTS: dict[str, Callable[[Setting], Tables]] = {
    "offline": offline,
    "quantized": quantized_weights,
    "hybrids": hybrids,
    "drafts": drafts,
    "embeddings": vectors,
    "adapters": fine_tuned,
    "served": served,
    "ring-cost": ring_cost,
    "starts": starts,
    "kernels": all_kernels,
    "sweeps": sweeps,
}


def run_part(part: str, setting: Setting, results: Path) -> None:
    """Measure one part, print it, and save it."""
    print(f"\n{part}", flush=True)
    tables = PARTS[part](setting)
    for name, rows in tables.items():
        print_table(rows, f"{part}: {name}")
    interpreters = [sys.executable, *([setting.peers.interpreter] if setting.peers.interpreter else [])]
    write_json(results / f"{part}.json", document(part, [], interpreters) | {"figures": tables})


def main() -> None:
    """Measure the given parts, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ringline-benchmarks"
    parser.add_argument("--peers", default=os.environ.get("PEERS"), metavar="VENV", help="where peers are ($PEERS)")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS), help="default: all")
    parser.add_argument("--report", action="store_true", help="write RESULTS.md and its plots")
    parser.add_argument("--rounds", type=int, default=4, help="(%(default)s)")
    parser.add_argument("--model", default="qwen3-0.6b", help="whose weights decide (%(default)s)")
    parser.add_argument("--small-model", default="tiny-llama", help="whose overhead decides (%(default)s)")
    parser.add_argument("--models", type=Path, default=cache, help="where models are made and kept (%(default)s)")
    parser.add_argument("--engines", nargs="+", help="offline engines that take part; default: all that are there")
    parser.add_argument("--results", type=Path, default=_HERE / "results", help="(%(default)s)")
    parser.add_argument("--page", type=Path, default=_HERE / "RESULTS.md", help="(%(default)s)")
    arguments = parser.parse_args()
    end_children_when_terminated()
    with tempfile.TemporaryDirectory() as logs:
        setting = Setting(
            Peers.at(arguments.peers),
            arguments.models,
            arguments.model,
            arguments.small_model,
            arguments.rounds,
            Path(logs),
            arguments.engines,
        )
        for part in arguments.parts:
            run_part(part, setting, arguments.results)
    if arguments.report:
        write_page(arguments.results, arguments.page)


if __name__ == "__main__":
    main()
