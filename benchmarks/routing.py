"""The gain of routing: the processor's policy compared with random and round-robin routing to the same engines.

    python -m benchmarks.routing                 # prompts of many families, and answers of very different lengths

Real processes on this machine: engines with small KV caches, a detokenizer, and one processor per policy, which take
turns. ``ringline`` is the product's policy; ``random`` and ``round robin`` replace it for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import ringline
from ringline.channel import RING_OPTIONS
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc

from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.served.processes import end_children_when_terminated, failure, running
from benchmarks.served.routed import POLICIES
from benchmarks.shapes import find_model, model_options

ENGINES = 3
KV_CACHE = "16MiB"
"""KV cache of each engine: 8192 tokens of tiny-llama. All together hold 1.5 times the families' shared prefixes."""
FAMILIES, SHARED, OWN, ANSWER = 32, 480, 32, 8
"""Number of prompt families; tokens shared by a family, unique tokens of a prompt, and tokens of an answer."""
SHORTEST, LONGEST = 4, 256
"""Range of answer lengths in tokens, evenly spread on a logarithmic scale."""
_START_TIMEOUT = 120.0
_WARM_UP = 40
"""Requests before the first round."""
_IDS = range(100, 15_000)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: its prompt and the length of its answer."""

    prompt: list[int]
    tokens: int


@dataclass(frozen=True, slots=True)
class Load:
    """The requests of a measurement, and the engines' configuration."""

    asks: Callable[[int, int], list[Ask]]
    """Called with the number of the round and the number of requests; returns the requests."""
    requests: int
    concurrency: int
    max_num_seqs: int
    """Sequences that an engine computes at a time."""
    policies: Sequence[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one round of one policy."""

    hit_rate: float
    """Share of prompt tokens found in the engines' prefix caches."""
    tokens_per_second: float
    """Answer tokens per second."""
    ttft_p50: float
    """Seconds, like all times here."""
    ttft_p99: float
    latency_p99: float


@dataclass(frozen=True, slots=True)
class Place:
    """Addresses of the processes."""

    engines: list[str]
    processors: dict[str, str]
    """Address of the processor of each policy, keyed by policy."""
    loop: asyncio.Runner
    """The client's event loop."""


def families(number: int, requests: int) -> list[Ask]:
    """Prompts of several families with shared prefixes, in random order; every round has new families."""
    rng = random.Random(f"families {number}")
    shared = [rng.choices(_IDS, k=SHARED) for _ in range(FAMILIES)]
    return [Ask(rng.choice(shared) + rng.choices(_IDS, k=OWN), ANSWER) for _ in range(requests)]


def uneven(number: int, requests: int) -> list[Ask]:
    """Prompts that have nothing in common, and answers of very different lengths."""
    rng = random.Random(f"uneven {number}")
    exponents = (rng.uniform(math.log(SHORTEST), math.log(LONGEST)) for _ in range(requests))
    return [Ask(rng.choices(_IDS, k=OWN), round(math.exp(exponent))) for exponent in exponents]


LOADS = {
    "families": Load(families, requests=320, concurrency=12, max_num_seqs=8, policies=tuple(POLICIES)),
    # In flight are as many as all engines can run: a request routed to a full engine waits although another has room.
    "uneven": Load(uneven, requests=400, concurrency=2 * ENGINES, max_num_seqs=2, policies=("ringline", "random")),
}


@contextlib.contextmanager
def started(model: Path, max_num_seqs: int, logs: Path) -> Iterator[Place]:
    """Run every process of the measurement while the body runs."""
    with contextlib.ExitStack() as stack:

        def start(name: str, module: str, *arguments: str) -> None:
            command = [sys.executable, "-m", module, *arguments]
            log = logs / f"{name}.log"
            process = stack.enter_context(running(command, log, {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}))
            waiting.append((process, log, address(name)))

        def address(name: str) -> str:
            return f"unix:{logs / name}.sock"

        waiting: list[tuple[subprocess.Popen[bytes], Path, str]] = []
        engines = [f"engine-{index}" for index in range(ENGINES)]
        options = ["--no-metrics", "--log-format=json"]
        for name in engines:
            limits = [f"--kv-cache-memory-bytes={KV_CACHE}", f"--max-num-seqs={max_num_seqs}", "--num-threads=1"]
            start(name, "services.cli", "engine", str(model), f"--uds={logs / name}.sock", *limits, *options)
        addresses = [address(name) for name in engines]
        found = f"--engines={','.join(addresses)}"
        start("detokenizer", "services.cli", "detokenizer", f"--uds={logs}/detokenizer.sock", found, *options)
        for policy in POLICIES:
            start(
                policy, "benchmarks.served.routed", policy, f"{logs / policy}.sock", address("detokenizer"), *addresses
            )
        for process, log, listens in waiting:
            _wait_serving(process, log, listens)
        time.sleep(2)  # until every processor knows that each engine is joined with the detokenizer
        loop = stack.enter_context(asyncio.Runner())
        place = Place(addresses, {policy: address(policy) for policy in POLICIES}, loop)
        for policy in POLICIES:
            drive(place, policy, uneven(-1, _WARM_UP), 2 * ENGINES)
        yield place


def _wait_serving(process: subprocess.Popen[bytes], log: Path, address: str) -> None:
    deadline = time.monotonic() + _START_TIMEOUT
    while subprocess.run([sys.executable, "-m", "services.cli", "health", address], capture_output=True).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            raise failure(log)
        time.sleep(0.2)


def prefix_cache(engines: Sequence[str]) -> tuple[int, int]:
    """Prompt tokens that the engines looked up in their prefix caches, and those found, since they started."""
    queries = hits = 0
    options = [*RING_OPTIONS, ("grpc.default_authority", "localhost")]
    for address in engines:
        with grpc.insecure_channel(address, options=options) as channel:
            load = engine_pb2_grpc.EngineServiceStub(channel).GetLoad(engine_pb2.GetLoadRequest(), timeout=10).load
        queries, hits = queries + load.prefix_queries, hits + load.prefix_hits
    return queries, hits


def drive(place: Place, policy: str, asks: Sequence[Ask], concurrency: int) -> Outcome:
    """Keep ``concurrency`` requests in flight until all have ended."""
    before = prefix_cache(place.engines)
    times = place.loop.run(_drive(place.processors[policy], asks, concurrency))
    queries, hits = (now - then for now, then in zip(prefix_cache(place.engines), before, strict=True))
    firsts, lasts = sorted(first for first, _ in times.requests), sorted(last for _, last in times.requests)
    return Outcome(
        hit_rate=hits / queries,
        tokens_per_second=sum(ask.tokens for ask in asks) / times.seconds,
        ttft_p50=firsts[len(firsts) // 2],
        ttft_p99=firsts[math.ceil(0.99 * len(firsts)) - 1],
        latency_p99=lasts[math.ceil(0.99 * len(lasts)) - 1],
    )


@dataclass(frozen=True, slots=True)
class _Times:
    seconds: float
    requests: list[tuple[float, float]]
    """Seconds to the first token and to the end, for each request."""


async def _drive(address: str, asks: Sequence[Ask], concurrency: int) -> _Times:
    pending, taken = iter(asks), []
    async with ringline.AsyncClient(address) as client:

        async def ask_on() -> None:
            for ask in pending:
                begun, first, tokens = time.perf_counter(), 0.0, 0
                stream = client.stream(token_ids=ask.prompt, max_tokens=ask.tokens, temperature=0.0, ignore_eos=True)
                async for delta in stream:
                    first = first or time.perf_counter()
                    tokens += len(delta.token_ids)
                assert tokens == ask.tokens
                taken.append((first - begun, time.perf_counter() - begun))

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(ask_on())
        return _Times(time.perf_counter() - begun, taken)


def measure(place: Place, load: Load, rounds: int) -> list[Row]:
    """A row per policy, and one per other policy with the gain of the product's own in the same rounds."""

    def call(policy: str, seed: int) -> Callable[[int], Outcome]:
        # Each policy has its own prompts, or one would find prefixes that another has computed.
        return lambda number: drive(place, policy, load.asks(10 * number + seed, load.requests), load.concurrency)

    taken = interleave(rounds, {policy: call(policy, seed) for seed, policy in enumerate(load.policies)})
    rows: list[Row] = [
        {
            "policy": policy,
            "hit rate": round(Figure.of(each.hit_rate for each in outcomes).median, 3),
            "tok/s": str(Figure.of(each.tokens_per_second for each in outcomes)),
            "TTFT p50 ms": str(Figure.of(1000 * each.ttft_p50 for each in outcomes)),
            "TTFT p99 ms": str(Figure.of(1000 * each.ttft_p99 for each in outcomes)),
            "end p99 ms": str(Figure.of(1000 * each.latency_p99 for each in outcomes)),
        }
        for policy, outcomes in taken.items()
    ]
    return rows + [_gain(taken, other) for other in taken if other != "ringline"]


def _gain(taken: dict[str, list[Outcome]], other: str) -> Row:
    ours, theirs = taken["ringline"], taken[other]

    def of(figure: Callable[[Outcome], float]) -> str:
        return str(ratio([figure(each) for each in ours], [figure(each) for each in theirs]))

    return {
        "policy": f"ringline / {other}",
        "hit rate": "",
        "tok/s": of(lambda each: each.tokens_per_second),
        "TTFT p50 ms": of(lambda each: each.ttft_p50),
        "TTFT p99 ms": of(lambda each: each.ttft_p99),
        "end p99 ms": of(lambda each: each.latency_p99),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "tiny-llama")
    output_options(parser)
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument("--only", choices=tuple(LOADS), help="one of the two loads")
    arguments = parser.parse_args()
    end_children_when_terminated()
    model = find_model(arguments.model, arguments.models)
    rows: list[Row] = []
    for name in [arguments.only] if arguments.only else list(LOADS):
        load = LOADS[name]
        with tempfile.TemporaryDirectory() as logs, started(model, load.max_num_seqs, Path(logs)) as place:
            table = measure(place, load, arguments.rounds)
        print_table(table, f"{name}: {ENGINES} engines, {load.concurrency} requests under way")
        rows += [{"load": name, **row} for row in table]
    emit(arguments, "routing", rows)


if __name__ == "__main__":
    main()
