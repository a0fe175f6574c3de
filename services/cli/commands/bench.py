"""``ringline bench``: drive load through the ring or straight at an engine, and print the measurements."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from services.cli.bench.load_generator import LoadGenerator
from services.cli.bench.load_stream import LoadError, Target
from services.cli.bench.measurement import LatencySummary, Measurement, Report
from services.cli.bench.ring_load_streams import EngineLoadStream, SessionLoadStream
from services.cli.commands._connection import Connection
from services.cli.commands._options import ClientCommand, address_option, connection_options, describe

_PROGRESS_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Closed-loop load if ``concurrency`` is set, open-loop load if ``rate`` is."""

    requests: int
    concurrency: int | None
    """Requests in flight at any time."""
    rate: float | None
    """Requests sent per second."""
    input_len: int
    output_len: int
    prefix_share: float
    """Share of each prompt that is the same in all of them."""
    warmup: int
    seed: int


@click.command("bench", cls=ClientCommand)
@address_option
@connection_options
@click.option("--engine", metavar="ADDRESS", help="Send token ids straight to this engine, without a processor.")
@click.option("--requests", type=click.IntRange(1), default=64, show_default=True, help="Number of requests.")
@click.option(
    "--concurrency", type=click.IntRange(1), help="Number of requests in progress at any time.  [default: 16]"
)
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    help="Requests started per second at random (Poisson) times, in place of --concurrency.",
)
@click.option(
    "--input-len", type=click.IntRange(1), default=128, show_default=True, help="Prompt tokens of each request."
)
@click.option(
    "--output-len", type=click.IntRange(1), default=64, show_default=True, help="Output tokens of each request."
)
@click.option(
    "--prefix-share",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Share of each prompt that is the same in all of them.",
)
@click.option(
    "--warmup", type=click.IntRange(0), default=2, show_default=True, help="Requests sent before the measurement."
)
@click.option(
    "--seed",
    type=int,
    help="Seed of prompts and start times. Default: a new one each time, so that no prompt is cached.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(
    address: str,
    connection: Connection,
    engine: str | None,
    concurrency: int | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Send requests with random prompts over one stream, and print throughput and latency.

    Each request samples greedily and ignores stops. The exit code is 1 if one did not return exactly --output-len
    tokens.
    """
    if concurrency is not None and values["rate"] is not None:
        raise click.UsageError("--concurrency and --rate exclude each other: give one of them.")
    if values["rate"] is None:
        concurrency = concurrency or 16
    if values["seed"] is None:
        values["seed"] = random.SystemRandom().getrandbits(32)
    plan = Plan(concurrency=concurrency, **values)
    try:
        target, report, cpu = asyncio.run(_measure(engine, address, connection, plan))
    except LoadError as error:
        reached = engine or address
        wanted = "engine" if engine else "processor"
        message = f"{reached}: {error}" if error.error is None else describe(error.error, reached, connection, wanted)
        raise click.ClickException(message) from None
    place = {"target": "engine" if engine else "session", "address": engine or address, "model": target.model}
    if as_json:
        click.echo(json.dumps(place | asdict(plan) | to_json(report, plan, cpu)))
    else:
        click.echo(table(place, report, plan, cpu))
    if report.failed:
        raise click.exceptions.Exit(1)


async def _measure(
    engine: str | None, address: str, connection: Connection, plan: Plan
) -> tuple[Target, Report, float]:
    """Also returns the client's CPU seconds per second."""
    credentials, name = connection.credentials(engine or address), connection.tls_server_name
    async with (
        EngineLoadStream(engine, credentials=credentials, server_name=name)
        if engine
        else SessionLoadStream(address, credentials=credentials, server_name=name)
    ) as stream:
        _check(plan, stream.target)
        if plan.warmup:
            stream.prepare(
                _prompts(replace(plan, requests=plan.warmup, seed=plan.seed + 1), stream.target), plan.output_len
            )
            await LoadGenerator(stream, plan.warmup, plan.output_len).run_closed_loop(plan.concurrency or plan.warmup)
        stream.prepare(_prompts(plan, stream.target), plan.output_len)
        generator = LoadGenerator(stream, plan.requests, plan.output_len)
        before = time.process_time()
        with _progress(generator.measurement, plan.requests):
            if plan.rate is not None:
                await generator.run_open_loop(plan.rate, random.Random(plan.seed))
            elif plan.concurrency is not None:
                await generator.run_closed_loop(plan.concurrency)
        report = generator.measurement.report()
        return stream.target, report, (time.process_time() - before) / report.seconds


def _check(plan: Plan, target: Target) -> None:
    if plan.input_len + plan.output_len > target.max_model_len:
        raise LoadError(
            f"--input-len {plan.input_len} and --output-len {plan.output_len} are more than the model's context of "
            f"{target.max_model_len} tokens; lower one of them"
        )
    if target.max_live_requests is not None and (plan.concurrency or 0) > target.max_live_requests:
        raise LoadError(
            f"--concurrency {plan.concurrency} is too high; lower it to the processor's --max-live-requests of "
            f"{target.max_live_requests}"
        )


def _prompts(plan: Plan, target: Target) -> list[list[int]]:
    """Draw random ids from the middle of the vocabulary: special tokens are at its ends."""
    rng = random.Random(plan.seed)
    middle = range(target.vocab_size // 8, target.vocab_size - target.vocab_size // 8)
    ids = [token_id for token_id in middle if token_id not in target.eos_token_ids]
    prefix = rng.choices(ids, k=round(plan.prefix_share * plan.input_len))
    return [prefix + rng.choices(ids, k=plan.input_len - len(prefix)) for _ in range(plan.requests)]


@contextlib.contextmanager
def _progress(measurement: Measurement, requests: int) -> Iterator[None]:
    """Print progress every two seconds while the block runs, on a terminal on one line."""
    start, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")

    async def print_lines() -> None:
        tokens = 0
        while True:
            await asyncio.sleep(_PROGRESS_SECONDS)
            rate = (measurement.output_tokens - tokens) / _PROGRESS_SECONDS
            tokens = measurement.output_tokens
            line = f"{measurement.ended}/{requests} requests, {rate:,.0f} tokens/s"
            print(f"{start}{line:<60}", end=end, file=sys.stderr, flush=True)

    task = asyncio.create_task(print_lines())
    try:
        yield
    finally:
        task.cancel()
        if sys.stderr.isatty():
            print("\r" + " " * 60, end="\r", file=sys.stderr, flush=True)


def to_json(report: Report, plan: Plan, cpu: float) -> dict[str, Any]:
    """Times are in milliseconds, rates per second."""
    return {
        "completed": report.completed,
        "failed": report.failed,
        "failures": report.failures,
        "seconds": report.seconds,
        "output_tokens": report.output_tokens,
        "output_tokens_per_second": report.output_tokens / report.seconds,
        "input_tokens_per_second": report.completed * plan.input_len / report.seconds,
        "requests_per_second": report.completed / report.seconds,
        **{f"{name}_ms": None if summary is None else asdict(summary) for name, summary in _latencies(report)},
        "client_cpu_share": cpu,
    }


def table(place: dict[str, str], report: Report, plan: Plan, cpu: float) -> str:
    """Format what ``to_json`` returns for a terminal."""
    figures = to_json(report, plan, cpu)
    load = f"{plan.concurrency} at a time" if plan.concurrency else f"{plan.rate:g} a second"
    lines = [
        f"{place['target']} {place['address']}, model {place['model']}",
        f"{plan.requests} requests, {load}, {plan.input_len} tokens in, {plan.output_len} out",
        "",
        f"{'output tokens/s':<24}{figures['output_tokens_per_second']:>12,.1f}",
        f"{'input tokens/s':<24}{figures['input_tokens_per_second']:>12,.1f}",
        f"{'requests/s':<24}{figures['requests_per_second']:>12,.2f}",
        f"{'seconds':<24}{report.seconds:>12,.2f}",
        f"{'client CPU':<24}{cpu:>12.0%}",
        "",
        f"{'milliseconds':<24}{'mean':>12}{'p50':>12}{'p99':>12}",
    ]
    titles = {
        "ttft": "time to first token",
        "gap": "inter-token",
        "tpot": "per token of a request",
        "latency": "request",
    }
    for name, summary in _latencies(report):
        if summary is not None:
            lines.append(f"{titles[name]:<24}{summary.mean:>12,.2f}{summary.p50:>12,.2f}{summary.p99:>12,.2f}")
    if report.failed:
        lines += ["", f"{report.failed} requests failed:"]
        lines += [f"  {count} × {problem}" for problem, count in report.failures.items()]
    return "\n".join(lines)


def _latencies(report: Report) -> tuple[tuple[str, LatencySummary | None], ...]:
    return (("ttft", report.ttft), ("gap", report.itl), ("tpot", report.tpot), ("latency", report.latency))
