"""``ringline plan``: how many processes a load needs, how much memory, and how fast it will be; by arithmetic alone."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine_core.config import CacheConfig, LoadConfig, ModelConfig, SchedulerConfig, options_of
from engine_core.errors import CheckpointError, ConfigError
from engine_core.kv_cache_interface import KVCacheGroup
from services.commands.engine import engine_extra
from services.config.errors import FatalError
from services.process.memory import collection_paused

if TYPE_CHECKING:
    from engine_core.model_loader.checkpoint import Checkpoint
    from engine_core.models.interface import LanguageModel

CPU_TIER_SECONDS = 40e-6
"""CPU seconds per token in a processor, and again in a detokenizer. Measured with 64 streams of a tiny model on two
cores, as the difference between the ring and its engine alone (benchmarks/RESULTS.md, "Served")."""
CPU_TIER_SHARE = 0.6
"""Share of a core that a CPU tier may be busy: each process has one core for its Python code."""
MIN_CPU_TIERS = 2
"""At least this many processors and as many detokenizers, so that one can be lost or replaced."""

Seconds = Callable[[float, float, float, float], float]
"""Of a step, from the arguments of ``engine_core.models.roofline.StepCost.step``: rows, sampled, seen, cached."""
Function = TypeVar("Function", bound=Callable[..., Any])
_GB = 1e9
_RUNTIME = 0.8 * _GB
"""Interpreter, libraries, buffers of gRPC and, on a GPU, its context and captured graphs: an estimate."""
_HEADROOM = 0.8
"""Share of its capacity that an engine is planned to use: arrivals are uneven, and an engine may be lost."""
_BLOCK_SIZE = CacheConfig().block_size
_STEP_TOKENS = SchedulerConfig().max_num_batched_tokens
"""As engines have them by default."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one engine, in bytes; blocks of its KV cache are counted."""

    usable: float
    """The whole budget."""
    weights: float
    activations: float
    """Of the largest step."""
    runtime: float
    """Interpreter, libraries, captured graphs."""
    block: int
    """What one takes: keys and values of ``_BLOCK_SIZE`` tokens in one group of layers."""
    sequence_blocks: int
    """Blocks that a sequence needs once its prompt is computed."""
    prompt_blocks: int
    """Blocks that it needs until then, if more: sliding windows leave a prompt's blocks only as it is computed."""

    @property
    def cache(self) -> float:
        """What is left for the KV cache."""
        return max(0.0, self.usable - self.weights - self.activations - self.runtime)

    @property
    def blocks(self) -> int:
        """Blocks that fit into the KV cache."""
        return int(self.cache // self.block)


@dataclass(frozen=True, slots=True)
class Demand:
    """The load on the ring."""

    rate: float
    """Requests per second."""
    input_len: int
    """Prompt tokens that are not cached."""
    output_len: int
    max_gap: float | None
    """Largest average time between two tokens of a stream, in seconds; None: no limit."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine under its share of the load."""

    sequences: int
    """Running at a time."""
    gap: float
    """Seconds between two tokens of a stream."""
    tokens: float
    """Output tokens per second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many processes a load needs."""

    engines: int
    processors: int
    detokenizers: int
    capacity: EnginePlan
    """The most that one engine can do."""
    expected: EnginePlan
    """What one engine does under its share of the load."""
    bound: str
    """What limits the sequences of an engine: memory, max_num_seqs or max_gap."""


class Impossible(Exception):
    """No number of these engines can carry the load; the text says why."""


def plan_ring(seconds: Seconds, memory: Memory, demand: Demand, *, max_num_seqs: int, headroom: float) -> Plan:
    """The processes that the demand needs, if an engine uses at most ``headroom`` of its capacity.

    Raises ``Impossible``.
    """
    most = _largest(lambda count: blocks_of(memory, demand, count) <= memory.blocks, max_num_seqs)
    if most < 1:
        raise Impossible(_shortage(memory))
    bound = "max_num_seqs" if most == max_num_seqs else "memory"
    limit = math.inf if demand.max_gap is None else demand.max_gap
    if step(seconds, demand, most) > limit:
        most, bound = _largest(lambda count: step(seconds, demand, count) <= limit, most), "max_gap"
        if most < 1:
            gap = _figure(step(seconds, demand, 1) * 1e3)
            raise Impossible(f"one sequence alone takes {gap} ms from token to token: raise --max-gap-ms")
    capacity = _engine(seconds, demand, most)
    tokens = demand.rate * demand.output_len
    engines = max(1, math.ceil(tokens / (capacity.tokens * headroom)))
    enough = _largest(lambda count: _engine(seconds, demand, count).tokens < tokens / engines, most) + 1
    tiers = max(MIN_CPU_TIERS, math.ceil(tokens * CPU_TIER_SECONDS / CPU_TIER_SHARE))
    return Plan(engines, tiers, tiers, capacity, _engine(seconds, demand, min(enough, most)), bound)


def blocks_of(memory: Memory, demand: Demand, sequences: int) -> int:
    """KV blocks of so many running sequences, of which as many compute their prompts as do so in a steady state."""
    steps = math.ceil(demand.input_len / _STEP_TOKENS)
    prompts = min(sequences, math.ceil(sequences * steps / demand.output_len))
    return prompts * memory.prompt_blocks + (sequences - prompts) * memory.sequence_blocks


def _shortage(memory: Memory) -> str:
    """Why not even one sequence fits, and what to change."""
    if memory.blocks < 1:
        taken = memory.weights + memory.activations + memory.runtime
        return (
            f"weights ({_size(memory.weights)}), largest step ({_size(memory.activations)}) and runtime "
            f"({_size(memory.runtime)}) take {_size(taken)}, and an engine gets {_size(memory.usable)}: "
            "raise --memory-gb or --memory-share"
        )
    return (
        f"one request takes {_size(memory.prompt_blocks * memory.block)} of KV cache, and {_size(memory.cache)} are "
        "left for it: raise --memory-gb or --memory-share, or lower --input-len or --output-len"
    )


def step(seconds: Seconds, demand: Demand, sequences: int) -> float:
    """Seconds of a step in a steady state of ``sequences`` running sequences."""
    prompts = sequences * demand.input_len / demand.output_len
    seen = sequences * (demand.input_len + demand.output_len / 2)
    return seconds(sequences + prompts, sequences, seen + prompts * demand.input_len / 2, seen)


def _engine(seconds: Seconds, demand: Demand, sequences: int) -> EnginePlan:
    gap = step(seconds, demand, sequences)
    return EnginePlan(sequences, gap, sequences / gap)


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Binary search for the largest of 1 … ``most`` for which ``holds``; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one engine runs on."""

    memory: float
    """Bytes."""
    bandwidth: float
    """Of the memory, in bytes per second."""
    flops: float
    """Operations per second of matrix products in bfloat16, without sparsity."""


GPUS = {
    "a100-80gb": Hardware(80 * _GB, 2.04e12, 312e12),
    "h100": Hardware(80 * _GB, 3.35e12, 989e12),
    "h200": Hardware(141 * _GB, 4.8e12, 989e12),
    "l4": Hardware(24 * _GB, 0.3e12, 121e12),
    "l40s": Hardware(48 * _GB, 0.864e12, 362e12),
}
"""From the manufacturers' data sheets."""


class _Number(click.FloatRange):
    """Refuses NaN too, which click finds in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


def _positive(
    flag: str, text: str, default: float | None = None, *, most: float = 1e12
) -> Callable[[Function], Function]:
    """An option that is a number above 0."""
    kind = _Number(0, most, min_open=True)
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=text)


_SHARE = options_of(CacheConfig)["gpu_memory_utilization"]
_MODEL_IMPL = options_of(ModelConfig)["model_impl"]


@click.command("plan")
@click.argument("model")
@_positive("--rate", "Requests per second.", 1.0)
@click.option("--input-len", type=click.IntRange(1), default=512, show_default=True, help="Prompt tokens not cached.")
@click.option("--output-len", type=click.IntRange(1), default=128, show_default=True, help="Output tokens.")
@_positive("--max-gap-ms", "Longest time between two tokens of a stream, on average.  [default: any]")
@click.option(
    "--gpu",
    type=click.Choice(sorted(GPUS)),
    help="GPU of each engine. Without it, --memory-gb, --bandwidth-gbs and --tflops are required; beside it, they "
    "replace the GPU's own values.",
)
@_positive("--memory-gb", "Memory of what each engine runs on, in 10⁹ bytes.")
@_positive("--bandwidth-gbs", "Memory bandwidth in 10⁹ bytes per second; `python -m benchmarks.limits` measures it.")
@_positive("--tflops", "Products in bfloat16, in 10¹² operations per second; measured likewise.")
@_positive("--efficiency", "Share of bandwidth and operations that is reached.", 0.85, most=1)
@click.option(
    "--memory-share",
    type=_Number(_SHARE.minimum, _SHARE.maximum),
    default=CacheConfig().gpu_memory_utilization,
    show_default=True,
    help="As an engine gets it by --gpu-memory-utilization.",
)
@click.option("--max-num-seqs", type=click.IntRange(1), default=256, show_default=True, help="As an engine gets it.")
@click.option("--quantization", type=click.Choice(["int8"]), help="As an engine gets it.")
@click.option(
    "--model-impl",
    type=click.Choice(_MODEL_IMPL.choices or ()),
    default=ModelConfig().model_impl,
    show_default=True,
    help="As an engine gets it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def plan(
    model: str,
    rate: float,
    input_len: int,
    output_len: int,
    max_gap_ms: float | None,
    gpu: str | None,
    memory_gb: float | None,
    bandwidth_gbs: float | None,
    tflops: float | None,
    efficiency: float,
    memory_share: float,
    max_num_seqs: int,
    quantization: str | None,
    model_impl: str,
    as_json: bool,
) -> None:
    """Estimate what a load on MODEL, a checkpoint's directory or hub id, needs. No weights are read."""
    hardware = _hardware(gpu, memory_gb, bandwidth_gbs, tflops)
    checkpoint = _checkpoint(ModelConfig(model=model, quantization=quantization, model_impl=model_impl))
    longest = checkpoint.spec.max_model_len
    if input_len + output_len > longest:
        told = f"a request has {input_len:,} + {output_len:,} tokens, and the model takes {longest:,}"
        raise FatalError(f"{told}: lower --input-len or --output-len")
    demand = Demand(rate, input_len, output_len, None if max_gap_ms is None else max_gap_ms / 1e3)
    outline = _outline(checkpoint)
    memory = _memory(checkpoint, outline, hardware.memory * memory_share, max_num_seqs, demand)
    seconds = _seconds(checkpoint, outline, hardware)
    try:
        planned = plan_ring(
            lambda *work: seconds(*work) / efficiency, memory, demand, max_num_seqs=max_num_seqs, headroom=_HEADROOM
        )
    except Impossible as error:
        raise FatalError(f"this load cannot be served: {error}") from None
    click.echo(_as_json(memory, planned) if as_json else _as_text(memory, demand, planned))


def _hardware(gpu: str | None, memory: float | None, bandwidth: float | None, tflops: float | None) -> Hardware:
    """A known GPU, with the values that are given in place of its own."""
    known = None if gpu is None else GPUS[gpu]
    given = {"--memory-gb": memory, "--bandwidth-gbs": bandwidth, "--tflops": tflops}
    if known is None and (missing := [flag for flag, value in given.items() if value is None]):
        told = "Say what an engine runs on: --gpu, or --memory-gb, --bandwidth-gbs and --tflops together."
        raise click.UsageError(told if len(missing) == len(given) else f"{told} Missing: {', '.join(missing)}.")
    scales = (_GB, _GB, 1e12)
    defaults = (math.nan,) * 3 if known is None else (known.memory, known.bandwidth, known.flops)
    values = zip(given.values(), scales, defaults, strict=True)
    return Hardware(*(default if value is None else value * scale for value, scale, default in values))


def _checkpoint(config: ModelConfig) -> Checkpoint:
    with engine_extra(), collection_paused():
        from engine_core.model_loader.checkpoint import open_checkpoint  # loads torch
    try:
        return open_checkpoint(config, LoadConfig(load_format="dummy"))
    except (CheckpointError, ConfigError) as error:
        raise FatalError(str(error)) from None


def _outline(checkpoint: Checkpoint) -> LanguageModel:
    from engine_core.model_loader.loader import model_outline

    return model_outline(checkpoint)


def _memory(checkpoint: Checkpoint, model: LanguageModel, usable: float, max_num_seqs: int, demand: Demand) -> Memory:
    """An estimate; an engine measures its largest step and runtime memory."""
    from engine_core.attention.base import AttentionBackend

    shape = checkpoint.config
    row = 8 * shape.hidden_size + 3 * shape.intermediate_size
    sequence_blocks, prompt_blocks = blocks_per_sequence(model.kv_cache_groups, demand)
    return Memory(
        usable=usable,
        weights=model.expected_weight_bytes,
        activations=4 * _STEP_TOKENS * row + 8 * max_num_seqs * shape.vocab_size,
        runtime=_RUNTIME,
        block=AttentionBackend.bytes_per_block(model.kv_cache_spec(_BLOCK_SIZE)),
        sequence_blocks=sequence_blocks,
        prompt_blocks=prompt_blocks,
    )


def blocks_per_sequence(groups: Sequence[KVCacheGroup], demand: Demand) -> tuple[int, int]:
    """``Memory.sequence_blocks`` and ``Memory.prompt_blocks``.

    The scheduler starts a sequence only if each that runs could get one more block in each group. So a sequence counts
    at its full length or, where that is more, at half of its output and with this block.
    """
    whole, half = demand.input_len + demand.output_len, demand.input_len + demand.output_len // 2
    decoding = [
        max(group.held_blocks(whole, 1, _BLOCK_SIZE), group.held_blocks(half, 1, _BLOCK_SIZE) + 1) for group in groups
    ]
    prompt = [group.held_blocks(demand.input_len, _STEP_TOKENS, _BLOCK_SIZE) for group in groups]
    return sum(decoding), sum(map(max, decoding, prompt))


def _seconds(
    checkpoint: Checkpoint, model: LanguageModel, hardware: Hardware
) -> Callable[[float, float, float, float], float]:
    from engine_core.models.roofline import StepCost

    size = checkpoint.dtype.itemsize
    cost = StepCost.of_model(model, 1 if checkpoint.quantization else size, size)
    return lambda rows, sampled, seen, cached: cost.step(rows, sampled, seen, cached).seconds(hardware)


def _as_json(memory: Memory, planned: Plan) -> str:
    figures = {"memory": {**asdict(memory), "cache": memory.cache, "blocks": memory.blocks}, **asdict(planned)}
    return json.dumps(figures, indent=2)


def _as_text(memory: Memory, demand: Demand, planned: Plan) -> str:
    capacity, expected = planned.capacity, planned.expected
    held = f"{_size(memory.sequence_blocks * memory.block)} for a sequence of this load"
    if memory.prompt_blocks > memory.sequence_blocks:
        held += f", {_size(memory.prompt_blocks * memory.block)} while its prompt is computed"
    return "\n".join(
        [
            f"load       {_figure(demand.rate, 12)} requests/s of {demand.input_len:,} + {demand.output_len:,} tokens: "
            f"{_figure(demand.rate * demand.output_len, 12)} output tokens/s",
            f"needs      engines: {planned.engines:,}, processors: {planned.processors:,}, "
            f"detokenizers: {planned.detokenizers:,}",
            f"engine     {_size(memory.usable)}: weights {_size(memory.weights)}, "
            f"largest step {_size(memory.activations)}, runtime {_size(memory.runtime)}, "
            f"KV cache {_size(memory.cache)} ({held})",
            f"at most    sequences at each engine: {capacity.sequences:,} (bound by {planned.bound}), "
            f"{_figure(capacity.tokens)} tokens/s, {_figure(capacity.tokens / demand.output_len)} requests/s, "
            f"{_figure(capacity.gap * 1e3)} ms between tokens",
            f"expected   sequences at each engine: {expected.sequences:,}, "
            f"{_figure(expected.gap * 1e3)} ms between tokens",
        ]
    )


def _figure(value: float, digits: int = 3) -> str:
    """To so many significant digits, for a person: 37,400 or 0.00285."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def _size(count: float) -> str:
    """Bytes in powers of 1000, as ``--memory-gb`` and data sheets have them: 5.41 MB."""
    unit, scale = next((pair for pair in (("GB", _GB), ("MB", 1e6), ("kB", 1e3)) if count >= pair[1]), ("bytes", 1))
    return f"{_figure(count / scale)} {unit}"
