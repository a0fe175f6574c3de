"""``ringline plan``: how many processes and how much memory a load needs, and its speed; by arithmetic alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine_core.config import EngineConfig
from engine_core.kv_cache_interface import spare_slots
from services.cli.commands._capacity import (
    Demand,
    Impossible,
    Memory,
    Plan,
    Seconds,
    figure,
    plan_ring,
    size,
)
from services.cli.commands._memory_estimate import Estimate, Load, Model, estimate
from services.cli.commands.engine import FOREIGN_FLAGS
from services.common.config.errors import ExitCode, FatalError, unusable_option
from services.common.config.flags import Command
from services.common.config.options import build, settings_of

if TYPE_CHECKING:
    from engine_core.models.roofline import StepCost

Function = TypeVar("Function", bound=Callable[..., Any])
_GB = 1e9
_HEADROOM = 0.8
"""Planned share of an engine's capacity: arrivals are uneven, and an engine may be lost."""
_STEP_SECONDS, _SEQUENCE_SECONDS = 100e-6, 30e-6
"""What a step takes besides the model, however fast the hardware, and what it takes for each sequence: scheduling,
sampling, outputs. Measured with the bundled model on two cores: 0.21 ms a step of one sequence, 3.3 ms of 64."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """One rank's hardware; most engines have one rank."""

    memory: float
    """Bytes."""
    bandwidth: float
    """Of the memory, in bytes per second."""
    flops: float
    """Operations per second of matrix products in bfloat16, without sparsity."""

    def times(self, count: int) -> Hardware:
        """``count`` of them, as if communication took no time."""
        return Hardware(count * self.memory, count * self.bandwidth, count * self.flops)


GPUS = {
    "a100-80gb": Hardware(80 * _GB, 2.04e12, 312e12),
    "h100": Hardware(80 * _GB, 3.35e12, 989e12),
    "h200": Hardware(141 * _GB, 4.8e12, 989e12),
    "l4": Hardware(24 * _GB, 0.3e12, 121e12),
    "l40s": Hardware(48 * _GB, 0.864e12, 362e12),
}
"""From the manufacturers' data sheets."""


class _Number(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """A number above 0; unlike ``click.FloatRange`` it refuses NaN, and leaves its limit out of the help."""

    name = "number"

    def __init__(self, most: float, least: float | None = None) -> None:
        self._most = most
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        enough = number > 0 if self._least is None else number >= self._least
        if not (enough and number <= self._most):
            limits = (
                f"above 0, at most {self._most:g}" if self._least is None else f"from {self._least:g} to {self._most:g}"
            )
            self.fail(f"{value!r} is not usable: expected a number {limits}", param, ctx)
        return number


def _positive(
    flag: str, text: str, default: float | None = None, *, most: float = 1e12
) -> Callable[[Function], Function]:
    """An option that is a number above 0."""
    return click.option(flag, type=_Number(most), default=default, show_default=default is not None, help=text)


_OF_ENGINE = {setting.name: setting for setting in settings_of(EngineConfig())}


def _engine_option(name: str) -> Callable[[Function], Function]:
    setting = _OF_ENGINE[name]
    kind: click.Choice[str] | click.IntRange | _Number | type[str]
    text = f"The engine's {setting.flag}."
    if isinstance(setting.default, bool):
        return click.option(setting.flag, is_flag=True, default=setting.default, help=text)
    if setting.choices is not None:
        kind = click.Choice(list(map(str, setting.choices)))
    elif setting.kind is str:
        kind = str
    elif isinstance(setting.default, float):
        assert setting.maximum is not None
        kind = _Number(setting.maximum, least=setting.minimum)
    else:
        low, high = (None if bound is None else int(bound) for bound in (setting.minimum, setting.maximum))
        kind = click.IntRange(low, high)
    is_set = setting.default is not None
    return click.option(
        setting.flag,
        type=kind,
        default=setting.default,
        show_default=is_set,
        help=text,
        callback=lambda context, parameter, value: None if value is None else setting.kind(value),
    )


def _load_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that become ``load``."""

    @_positive("--rate", "Requests per second.", 1.0)
    @click.option(
        "--input-len",
        type=click.IntRange(1),
        help="Prompt tokens of each request that are not in the prefix cache.  [default: 512; of a model that makes "
        "vectors, scores or labels at most what an input may have]",
    )
    @click.option(
        "--output-len",
        type=click.IntRange(1),
        help="Output tokens of each request, of a model that generates.  [default: 128]",
    )
    @_positive("--max-gap-ms", "Longest average time between two tokens of a stream.  [default: any]")
    @wraps(command)
    def loaded(
        rate: float, input_len: int | None, output_len: int | None, max_gap_ms: float | None, **others: Any
    ) -> None:
        command(load=Load(rate, input_len, output_len, max_gap_ms), **others)

    return loaded


def _hardware_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that become ``hardware``; ``gpu`` stays."""

    @click.option(
        "--gpu",
        type=click.Choice(sorted(GPUS)),
        help="GPU of each rank of an engine. Without it give --memory-gb, --bandwidth-gbs and --tflops; with it, they"
        " replace the GPU's own values.",
    )
    @_positive("--memory-gb", "Memory of the device of each rank of an engine, in 10⁹ bytes.")
    @_positive(
        "--bandwidth-gbs",
        "Bandwidth of that memory, in 10⁹ bytes per second. At a CPU it is at most its memory's channels × MT/s × 0.008"
        " (two of DDR5-4800: 77); in Ringline's repository, `python -m benchmarks.limits` measures it.",
    )
    @_positive(
        "--tflops",
        "Matrix products in bfloat16, in 10¹² operations per second. At a CPU they are about cores × GHz × 0.06 with"
        " AVX-512, × 0.03 with AVX2; benchmarks.limits measures them, too.",
    )
    @wraps(command)
    def equipped(
        gpu: str | None, memory_gb: float | None, bandwidth_gbs: float | None, tflops: float | None, **others: Any
    ) -> None:
        command(gpu=gpu, hardware=_hardware(gpu, memory_gb, bandwidth_gbs, tflops), **others)

    return equipped


@click.command("plan", cls=Command, foreign=FOREIGN_FLAGS)
@click.argument("model", type=click.Path())
@_load_options
@_hardware_options
@_positive("--efficiency", "Share of bandwidth and operations per second that an engine reaches.", 0.85, most=1)
@click.option(
    "--memory-share",
    type=_Number(1.0, least=_OF_ENGINE["gpu_memory_utilization"].minimum),
    default=_OF_ENGINE["gpu_memory_utilization"].default,
    show_default=True,
    help="The engine's --gpu-memory-utilization.",
)
@_engine_option("dtype")
@_engine_option("max_model_len")
@_engine_option("quantization")
@_engine_option("quantization_group_size")
@_engine_option("model_impl")
@_engine_option("kv_cache_dtype")
@_engine_option("state_cache_share")
@_engine_option("block_size")
@_engine_option("max_num_batched_tokens")
@_engine_option("max_num_seqs")
@_engine_option("speculative_config")
@_engine_option("enable_lora")
@_engine_option("max_loras")
@_engine_option("max_lora_rank")
@_engine_option("max_cpu_loras")
@_engine_option("tensor_parallel_size")
@_engine_option("pipeline_parallel_size")
@_engine_option("enable_expert_parallel")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def plan(
    load: Load,
    gpu: str | None,
    hardware: Hardware,
    efficiency: float,
    memory_share: float,
    as_json: bool,
    **engine_options: Any,
) -> None:
    """Estimate what MODEL, a checkpoint's directory, GGUF file or hub id, needs to carry a load."""
    config = build(EngineConfig(), engine_options)
    if gpu is not None:
        _refuse_on_gpu(config)
    found = estimate(config, load, hardware.memory * memory_share, on_gpu=gpu is not None)
    kept = config.cache.kv_cache_dtype
    from engine_core.models.roofline import StepCost

    demand, scheduler = found.demand, config.scheduler
    most = scheduler.max_num_seqs
    if found.pools:  # as in steps of whole inputs
        most = max(1, min(most, scheduler.max_num_batched_tokens // demand.input_len))
    cost = StepCost.of_model(found.outline, found.checkpoint.dtype.itemsize, None if kept == "auto" else 1)
    try:
        planned = plan_ring(
            _step_seconds(cost, config, hardware, efficiency),
            found.ranks[found.tightest],
            demand,
            max_num_seqs=most,
            headroom=_HEADROOM,
            rank=found.tightest if len(found.ranks) > 1 else None,
        )
    except Impossible as error:
        raise FatalError(f"this load cannot be served: {error}") from None
    model = found.model(cost.active)
    if found.pools:
        planned = replace(planned, detokenizers=0)
    if as_json:
        click.echo(_as_json(model, found, planned))
    else:
        click.echo(_as_text(model, found, planned, on_gpu=gpu is not None))


def _step_seconds(cost: StepCost, config: EngineConfig, hardware: Hardware, efficiency: float) -> Seconds:
    stages, together = config.parallel.pipeline_parallel_size, hardware.times(config.parallel.tensor_parallel_size)

    def seconds(rows: float, sampled: float, seen: float, cached: float) -> float:
        """Those of the model, and of the engine's own work.

        Pipeline stages compute different steps, with different sequences, at the same time.

        A sequence is whole in one step, so there are at most as many steps as sequences.
        """
        steps = min(stages, sampled)
        of_step = cost.step(rows / steps, sampled / steps, seen / steps, cached / steps)
        return of_step.seconds(together) / efficiency + _STEP_SECONDS + _SEQUENCE_SECONDS * sampled / steps

    return seconds


def _as_json(model: Model, found: Estimate, planned: Plan) -> str:
    ranks = {rank: {**asdict(each), "cache": each.cache, "blocks": each.blocks} for rank, each in found.ranks.items()}
    total = planned.engines * len(ranks)
    shown = {
        "model": asdict(model),
        "pools": found.pools,
        "memory": ranks[found.tightest],
        "ranks": ranks,
        "total_ranks": total,
    }
    return json.dumps(shown | asdict(planned), indent=2)


def _refuse_on_gpu(config: EngineConfig) -> None:
    """Raise ``FatalError`` for options of CPUs alone."""
    if config.cache.kv_cache_dtype != "auto":
        refused = unusable_option("kv_cache_dtype", config.cache.kv_cache_dtype, "auto on a GPU")
        raise FatalError(refused, ExitCode.USAGE)
    if config.model.quantization is not None:
        refused = unusable_option("quantization", config.model.quantization, "no value on a GPU")
        raise FatalError(refused, ExitCode.USAGE)


def _hardware(gpu: str | None, memory: float | None, bandwidth: float | None, tflops: float | None) -> Hardware:
    """A known GPU, with any given values in place of its own."""
    known = None if gpu is None else GPUS[gpu]
    given = {"--memory-gb": memory, "--bandwidth-gbs": bandwidth, "--tflops": tflops}
    if known is None and (missing := [flag for flag, value in given.items() if value is None]):
        needed = "Give what each rank of an engine runs on: --gpu, or --memory-gb, --bandwidth-gbs and --tflops."
        raise click.UsageError(needed if len(missing) == len(given) else f"{needed} Missing: {', '.join(missing)}.")
    scales = (_GB, _GB, 1e12)
    defaults = (math.nan,) * 3 if known is None else (known.memory, known.bandwidth, known.flops)
    values = zip(given.values(), scales, defaults, strict=True)
    return Hardware(*(default if value is None else value * scale for value, scale, default in values))


def _as_text(model: Model, found: Estimate, planned: Plan, *, on_gpu: bool) -> str:
    demand, tightest, ranks = found.demand, found.tightest, found.ranks
    memory = ranks[tightest]
    held = [f"{size(memory.sequence_blocks * memory.block)} for a sequence of this load"] if memory.block else []
    if memory.prompt_blocks > memory.sequence_blocks:
        held.append(f"{size(memory.prompt_blocks * memory.block)} while its prompt is computed")
    if memory.state:
        slots = f"{memory.states:,} slots of {size(memory.state)} for states"
        held.append(f"{slots}: one for a sequence, {spare_slots(memory.states)} to spare")
    tower = f" ({size(memory.tower)} of them encode pictures)" if memory.tower else ""
    pictures = f"embeddings of pictures {size(memory.pictures)}, " if memory.pictures else ""
    drafts = f"drafts {size(memory.drafts)}, " if memory.drafts else ""
    drafts += f"adapters {size(memory.adapters)}, " if memory.adapters else ""
    several = len(ranks) > 1
    total = f"{planned.engines * len(ranks):,} {'GPUs' if on_gpu else 'ranks'} in all"
    divided = f", each of {len(ranks):,} ranks ({total})" if several else ""
    return "\n".join(
        [
            f"load       {_load(demand, pools=found.pools)}",
            f"needs      engines: {planned.engines:,}{divided}, processors: {planned.processors:,}, "
            f"detokenizers: {planned.detokenizers:,}",
            f"model      {model.kept_as}; weights: {figure(model.weights)}, "
            f"active for a token: {figure(model.active_weights)}" + ("" if found.pools else f"; {_of_sequence(model)}"),
            *([f"ranks      {_of_ranks(ranks)}"] if several else []),
            f"{f'rank       {tightest},' if several else 'engine    '} {size(memory.usable)}: "
            f"weights {size(memory.weights)}{tower}, {drafts}angles {size(memory.angles)}, "
            f"largest step {size(memory.activations)}, runtime {size(memory.runtime)}, {pictures}"
            + (f"left {size(memory.cache)}" if found.pools else f"KV cache {size(memory.cache)} ({', '.join(held)})"),
            *(_pooled(planned, demand) if found.pools else _generated(planned, demand)),
        ]
    )


def _load(demand: Demand, *, pools: bool) -> str:
    rate = figure(demand.rate, 12)
    if pools:
        return f"{rate} inputs/s of {demand.input_len:,} tokens: {figure(demand.rate * demand.input_len, 12)} tokens/s"
    return (
        f"{rate} requests/s of {demand.input_len:,} + {demand.output_len:,} tokens: "
        f"{figure(demand.rate * demand.output_len, 12)} output tokens/s"
    )


def _pooled(planned: Plan, demand: Demand) -> list[str]:
    """What an engine carries whose inputs each have one result, as if it were a token."""
    most = planned.capacity
    return [
        f"at most    inputs in a step of each engine: {most.sequences:,}, {figure(most.gap * 1e3)} ms a step, "
        f"{figure(most.tokens)} inputs/s, {figure(most.tokens * demand.input_len)} tokens/s"
    ]


def _generated(planned: Plan, demand: Demand) -> list[str]:
    """What an engine carries that generates."""
    capacity, expected = planned.capacity, planned.expected
    return [
        f"at most    sequences at each engine: {capacity.sequences:,} (bound by {planned.bound}), "
        f"{figure(capacity.tokens)} tokens/s, {figure(capacity.tokens / demand.output_len)} requests/s, "
        f"{figure(capacity.gap * 1e3)} ms between tokens",
        f"expected   sequences at each engine: {expected.sequences:,}, {figure(expected.gap * 1e3)} ms between tokens",
    ]


def _of_ranks(ranks: Mapping[str, Memory]) -> str:
    """What each rank takes; equal ones are grouped."""
    alike: dict[str, list[str]] = {}
    for name, each in ranks.items():
        alike.setdefault(f"weights {size(each.weights)}, KV cache {size(each.cache)}", []).append(name)
    texts = []
    for taken, (first, *others) in alike.items():
        which = "" if len(alike) == 1 else f", the first of them {first}"
        texts.append(f"each of {1 + len(others)} ranks{which}: {taken}" if others else f"{first}: {taken}")
    return "; ".join(texts)


def _of_sequence(model: Model) -> str:
    """What a sequence takes of the cache."""
    tokens = f"KV cache of a token: {size(model.token)} ({_groups(model)})" if model.groups else ""
    states = f"states of a sequence: {size(model.state)}" if model.state else ""
    return "; ".join(filter(None, (tokens, states)))


def _groups(model: Model) -> str:
    """Such as: 4 layers: 4.1 kB; 3 groups of 8 layers, window 512: 8.2 kB each."""
    texts = []
    for group, count in Counter(model.groups).items():
        window = "" if group.sliding_window is None else f", window {group.sliding_window:,}"
        before, after = ("", "") if count == 1 else (f"{count} groups of ", " each")
        layers = f"{group.layers} layer" + "s" * (group.layers > 1)
        texts.append(f"{before}{layers}{window}: {size(group.token)}{after}")
    return "; ".join(texts)
