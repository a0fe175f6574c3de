"""The one client of all servers: the load and the measurement of ``ringline bench``, over each server's own wire.

Run by an interpreter that has the wire's protocol, apart from what is measured; prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from dataclasses import asdict

from benchmarks.work import Work
from services.bench.link import Link
from services.bench.load import Load
from services.bench.measure import Report


def main() -> None:
    """Drive the load and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wire", choices=("ring", "ring-engine", "gateway", "vllm-engine"))
    parser.add_argument("address", help="of a gateway, its URL")
    parser.add_argument("model", help="as the server names it")
    for flag in ("--requests", "--concurrency", "--input-len", "--output-len", "--warmup"):
        parser.add_argument(flag, type=int, required=True)
    arguments = parser.parse_args()
    report, cpu = asyncio.run(_measure(arguments))
    print(json.dumps(_to_json(report, cpu)))


def _link(wire: str, address: str, model: str) -> Link:
    """Imported where needed: no interpreter has the protocols of all."""
    match wire:
        case "ring":
            from benchmarks.served.text_session_link import TextSessionLink

            return TextSessionLink(address)
        case "ring-engine":
            from services.bench.engine import EngineLink

            return EngineLink(address)
        case "gateway":
            from benchmarks.served.gateway_link import GatewayLink

            return GatewayLink(address, model)
    from benchmarks.served.vllm_link import VllmLink

    return VllmLink(address)


async def _measure(arguments: argparse.Namespace) -> tuple[Report, float]:
    async with _link(arguments.wire, arguments.address, arguments.model) as link:
        if arguments.warmup:
            await _drive(link, arguments, arguments.warmup)
        before = time.process_time()
        report = await _drive(link, arguments, arguments.requests)
        return report, (time.process_time() - before) / report.seconds


async def _drive(link: Link, arguments: argparse.Namespace, requests: int) -> Report:
    seed = random.SystemRandom().getrandbits(32)  # another each time, so that no prompt is cached
    link.prepare(Work(requests, arguments.input_len, arguments.output_len, seed).prompts(), arguments.output_len)
    load = Load(link, requests, arguments.output_len)
    await load.keep(arguments.concurrency)
    return load.measurement.report()


def _to_json(report: Report, cpu: float) -> dict[str, object]:
    """Under the names of ``ringline bench --json``."""
    spreads = {"ttft_ms": report.ttft, "gap_ms": report.gap, "tpot_ms": report.tpot, "latency_ms": report.latency}
    return {
        "completed": report.completed,
        "failed": report.failed,
        "failures": report.failures,
        "seconds": report.seconds,
        "output_tokens": report.output_tokens,
        "output_tokens_per_second": report.output_tokens / report.seconds,
        **{name: None if spread is None else asdict(spread) for name, spread in spreads.items()},
        "client_cpu_share": cpu,
    }


if __name__ == "__main__":
    main()
