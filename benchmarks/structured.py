"""Answers held to a JSON Schema beside free ones, and beside vLLM's with its default backend; in turns.

    python -m benchmarks.structured --model qwen3-0.6b --peers /tmp/peers
    python -m benchmarks.structured --streams 1 16 --rounds 5

Prompts and lengths are the same for all. No answer ends early: the schema asks for more records than there is room for.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.contestants import OURS, VLLM, Peers
from benchmarks.report import Row, emit, output_options, print_table
from benchmarks.rounds import Figure, interleave, ratio
from benchmarks.shapes import find_model, model_options
from benchmarks.work import Work
from benchmarks.worker import Worker

_PROMPT = 32
LEAST_RATIO = 0.97
"""Wanted: constrained tokens per second, as a part of unconstrained ones."""

SCHEMA = json.dumps(
    {
        "type": "array",
        "minItems": 200,
        "items": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 24},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
                "email": {"type": "string", "maxLength": 24},
                "role": {"enum": ["admin", "editor", "reader"]},
                "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
            },
            "required": ["name", "age", "email", "role", "tags"],
            "additionalProperties": False,
        },
    }
)


def compare(workers: dict[str, Worker], streams: int, output: int, rounds: int, seeds: Iterator[int]) -> Row:
    """Tokens per second of every engine, free and constrained."""

    def speed(worker: Worker, schema: str) -> Callable[[int], float]:
        def one_round(_: int) -> float:
            work = Work(streams, _PROMPT, output, seed=next(seeds), json_schema=schema)
            return streams * output / worker.run(work).seconds

        return one_round

    for worker in workers.values():  # compiles the grammar, and what else the first request waits for
        worker.run(Work(streams, 16, 2, seed=next(seeds), json_schema=SCHEMA))
    contestants = {}
    for name, worker in workers.items():
        contestants[name] = speed(worker, "")
        contestants[f"{name} constrained"] = speed(worker, SCHEMA)
    taken = interleave(rounds, contestants)
    ours = taken[f"{OURS} constrained"]
    found = ratio(ours, taken[OURS])
    row = {"streams": streams, **{name: Figure.of(values).median for name, values in taken.items()}}
    row |= {"ratio": found.median, "lowest": found.lowest, "highest": found.highest, "wanted": LEAST_RATIO}
    if VLLM in workers:
        row["of vLLM's"] = ratio(ours, taken[f"{VLLM} constrained"]).median
    return row


def main() -> None:
    """Compare, and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    model_options(parser, "qwen3-0.6b")
    output_options(parser)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64], help="(%(default)s)")
    parser.add_argument("--output", type=int, default=64, help="tokens of each answer (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are shown (%(default)s)")
    parser.add_argument("--peers", metavar="DIRECTORY", help="virtual environment that has vLLM")
    arguments = parser.parse_args()
    model = find_model(arguments.model, arguments.models)
    specs = [spec for spec in Peers.at(arguments.peers).specs(model) if spec.name in (OURS, VLLM)]
    seeds = itertools.count(100)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workers = {spec.name: stack.enter_context(Worker(spec, logs)) for spec in specs}
        rows = []
        for streams in arguments.streams:
            rows.append(compare(workers, streams, arguments.output, arguments.rounds, seeds))
            print_table(rows[-1:])
    emit(arguments, "structured", rows)


if __name__ == "__main__":
    main()
