"""The same client for all servers: load and measurement of ``ringline bench``, over each server's own protocol.

Runs in a separate process, with an interpreter that has the protocol; prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import asdict

from benchmarks.work import Work
from services.cli.bench.load_generator import LoadGenerator
from services.cli.bench.load_stream import LoadStream
from services.cli.bench.measurement import Report


def main() -> None:
    """Drive the load and print the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wire", choices=("ring", "ring-engine", "gateway", "vllm-engine"))
    parser.add_argument("address", help="of a gateway, its URL")
    parser.add_argument("model", help="as the server names it")
    for flag in ("--requests", "--concurrency", "--input-len", "--output-len", "--warmup"):
        parser.add_argument(flag, type=int, required=True)
    arguments = parser.parse_args()
    report, cpu = asyncio.run(_measure(arguments))
    print(json.dumps(_to_json(report, cpu)))


def _load_stream(wire: str, address: str, model: str) -> LoadStream:
    """The load stream of a protocol. Imports only what it needs: no interpreter has the protocols of all servers."""
    match wire:
        case "ring":
            from benchmarks.served.text_session_load_stream import TextSessionLoadStream

            return TextSessionLoadStream(address)
        case "ring-engine":
            from services.cli.bench.ring_load_streams import EngineLoadStream

            return EngineLoadStream(address)
        case "gateway":
            from benchmarks.served.gateway_load_stream import GatewayLoadStream

            return GatewayLoadStream(address, model)
    from benchmarks.served.vllm_load_stream import VllmLoadStream

    return VllmLoadStream(address)


async def _measure(arguments: argparse.Namespace) -> tuple[Report, float]:
    async with _load_stream(arguments.wire, arguments.address, arguments.model) as stream:
        if arguments.warmup:
            await _drive(stream, arguments, arguments.warmup)
        before = time.process_time()
        report = await _drive(stream, arguments, arguments.requests)
        return report, (time.process_time() - before) / report.seconds


async def _drive(stream: LoadStream, arguments: argparse.Namespace, requests: int) -> Report:
    seed = random.SystemRandom().getrandbits(32)  # a new seed each time, so that no prompt is cached
    stream.prepare(Work(requests, arguments.input_len, arguments.output_len, seed).prompts(), arguments.output_len)
    generator = LoadGenerator(stream, requests, arguments.output_len)
    await generator.run_closed_loop(arguments.concurrency)
    return generator.measurement.report()


def _to_json(report: Report, cpu: float) -> dict[str, object]:
    """The report with the names of ``ringline bench --json``."""
    latencies = {"ttft_ms": report.ttft, "gap_ms": report.itl, "tpot_ms": report.tpot, "latency_ms": report.latency}
    return {
        "completed": report.completed,
        "failed": report.failed,
        "failures": report.failures,
        "seconds": report.seconds,
        "output_tokens": report.output_tokens,
        "output_tokens_per_second": report.output_tokens / report.seconds,
        **{name: None if summary is None else asdict(summary) for name, summary in latencies.items()},
        "client_cpu_share": cpu,
    }


if __name__ == "__main__":
    main()
