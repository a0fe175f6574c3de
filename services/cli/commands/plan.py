"""``ringline plan``: how many processes a load needs, how much memory, and how fast it will be; by arithmetic alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from engine_core.config import CacheConfig, EngineConfig, LoadConfig
from engine_core.errors import CheckpointError, ConfigError
from engine_core.kv_cache_interface import KVCacheGroup
from services.cli.commands._capacity import (
    Demand,
    Impossible,
    Memory,
    Plan,
    figure,
    plan_ring,
    size,
)
from services.cli.commands.engine import INSTEAD_OF_VLLM_OPTIONS, engine_extra
from services.common.config.errors import ExitCode, FatalError, unusable_option
from services.common.config.flags import Command
from services.common.config.options import build, settings_of
from services.common.process.memory import collection_paused

if TYPE_CHECKING:
    from engine_core.model_loader.checkpoint import Checkpoint
    from engine_core.models.language_model import LanguageModel

Function = TypeVar("Function", bound=Callable[..., Any])
_GB = 1e9
_GPU_RUNTIME, _CPU_RUNTIME = 0.8 * _GB, 0.3 * _GB
"""Estimates: a GPU's context and captured graphs; interpreter, libraries and buffers of gRPC."""
_HEADROOM = 0.8
"""Share of its capacity that an engine is planned to use: arrivals are uneven, and an engine may be lost."""


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table."""

    layers: int
    sliding_window: int | None
    """How many tokens they keep of a sequence; None: all."""
    token: int
    """Bytes that a block has for one token, in all of these layers: with padding, as many in every group."""


@dataclass(frozen=True, slots=True)
class Model:
    """What is to be read and computed, whatever the load."""

    kept_as: str
    """How weights are kept, for a person."""
    weights: int
    """Numbers, not bytes."""
    active_weights: float
    """Those that compute one token, in the layers and the output projection: of experts, those that it is routed to."""
    token: int
    """Bytes that the KV cache takes for one token, in a block of every group."""
    groups: tuple[CacheGroup, ...]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one rank of an engine runs on; most engines have one."""

    memory: float
    """Bytes."""
    bandwidth: float
    """Of the memory, in bytes per second."""
    flops: float
    """Operations per second of matrix products in bfloat16, without sparsity."""

    def times(self, count: int) -> Hardware:
        """That many of them, if what they tell each other took no time."""
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
    """An option of the engine."""
    setting = _OF_ENGINE[name]
    kind: click.Choice[str] | click.IntRange
    text = f"The engine's {setting.flag}."
    if isinstance(setting.default, bool):
        return click.option(setting.flag, is_flag=True, default=setting.default, help=text)
    if setting.choices is not None:
        kind = click.Choice(list(map(str, setting.choices)))
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


@click.command("plan", cls=Command, instead=INSTEAD_OF_VLLM_OPTIONS)
@click.argument("model")
@_positive("--rate", "Requests per second.", 1.0)
@click.option(
    "--input-len",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Prompt tokens of each request that are not in the prefix cache.",
)
@click.option(
    "--output-len", type=click.IntRange(1), default=128, show_default=True, help="Output tokens of each request."
)
@_positive("--max-gap-ms", "Longest average time between two tokens of a stream.  [default: any]")
@click.option(
    "--gpu",
    type=click.Choice(sorted(GPUS)),
    help="GPU of each rank of an engine. Without it give --memory-gb, --bandwidth-gbs and --tflops; with it, they"
    " replace the GPU's own values.",
)
@_positive("--memory-gb", "Memory of the device of each rank of an engine, in 10⁹ bytes.")
@_positive(
    "--bandwidth-gbs", "Bandwidth of that memory, in 10⁹ bytes per second; `python -m benchmarks.limits` measures it."
)
@_positive(
    "--tflops", "Matrix products in bfloat16, in 10¹² operations per second; benchmarks.limits measures it, too."
)
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
@_engine_option("block_size")
@_engine_option("max_num_batched_tokens")
@_engine_option("max_num_seqs")
@_engine_option("tensor_parallel_size")
@_engine_option("pipeline_parallel_size")
@_engine_option("enable_expert_parallel")
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
    as_json: bool,
    **engine_options: Any,
) -> None:
    """Estimate what MODEL, a checkpoint's directory, GGUF file or hub id, needs to carry a load."""
    hardware = _hardware(gpu, memory_gb, bandwidth_gbs, tflops)
    config = build(EngineConfig(), {"model": model, **engine_options})
    if gpu is not None:
        _refuse_on_gpu(config)
    checkpoint, outline, parts = _outlines(config)
    longest = checkpoint.spec.max_model_len
    if input_len + output_len > longest:
        raise FatalError(
            f"--input-len {input_len:,} and --output-len {output_len:,} are more than the model's context of "
            f"{longest:,} tokens; lower one of them"
        )
    from engine_core.models.roofline import StepCost

    demand = Demand(rate, input_len, output_len, None if max_gap_ms is None else max_gap_ms / 1e3)
    budget = hardware.memory * memory_share
    runtime = _cpu_runtime(budget) if gpu is None else _GPU_RUNTIME
    whole, *of_ranks = (
        _memory(
            checkpoint,
            part,
            _block_bytes(part, config.cache, on_gpu=gpu is not None),
            budget,
            runtime,
            config,
            demand,
        )
        for part in (outline, *parts.values())
    )
    ranks = dict(zip(parts, of_ranks, strict=True))
    tightest = min(ranks, key=lambda rank: (ranks[rank].blocks, ranks[rank].usable - ranks[rank].taken))
    memory = ranks[tightest]
    kept = config.cache.kv_cache_dtype
    cost = StepCost.of_model(outline, checkpoint.dtype.itemsize, None if kept == "auto" else 1)
    stages, together = config.parallel.pipeline_parallel_size, hardware.times(config.parallel.tensor_parallel_size)

    def seconds(rows: float, sampled: float, seen: float, cached: float) -> float:
        """While a stage computes its part of one step, others compute theirs of other steps, with other sequences.

        A sequence is whole in one step, so fewer sequences than stages make as many steps as there are sequences.
        """
        steps = min(stages, sampled)
        of_step = cost.step(rows / steps, sampled / steps, seen / steps, cached / steps)
        return of_step.seconds(together) / efficiency

    try:
        planned = plan_ring(
            seconds,
            memory,
            demand,
            max_num_seqs=config.scheduler.max_num_seqs,
            headroom=_HEADROOM,
            rank=tightest if len(ranks) > 1 else None,
        )
    except Impossible as error:
        raise FatalError(f"this load cannot be served: {error}") from None
    token = whole.block // config.cache.block_size
    groups = tuple(CacheGroup(len(group.layers), group.sliding_window, token) for group in outline.kv_cache_groups)
    numbers = sum(part.num_weights for part in outline.parts)
    described = Model(checkpoint.kept_as, numbers, cost.active, token * len(groups), groups)
    if as_json:
        held = {**asdict(memory), "cache": memory.cache, "blocks": memory.blocks}
        parted = {rank: {**asdict(each), "cache": each.cache, "blocks": each.blocks} for rank, each in ranks.items()}
        total = planned.engines * len(ranks)
        shown = {"model": asdict(described), "memory": held, "ranks": parted, "total_ranks": total, **asdict(planned)}
        click.echo(json.dumps(shown, indent=2))
    else:
        click.echo(_as_text(described, tightest, ranks, demand, planned, on_gpu=gpu is not None))


def _refuse_on_gpu(config: EngineConfig) -> None:
    """Raise ``FatalError`` for what is computed on CPUs alone."""
    if config.cache.kv_cache_dtype != "auto":
        refused = unusable_option("kv_cache_dtype", config.cache.kv_cache_dtype, "auto on a GPU")
        raise FatalError(refused, ExitCode.USAGE)
    if config.model.quantization is not None:
        refused = unusable_option("quantization", config.model.quantization, "no value on a GPU")
        raise FatalError(refused, ExitCode.USAGE)


def _hardware(gpu: str | None, memory: float | None, bandwidth: float | None, tflops: float | None) -> Hardware:
    """A known GPU, with the values that are given in place of its own."""
    known = None if gpu is None else GPUS[gpu]
    given = {"--memory-gb": memory, "--bandwidth-gbs": bandwidth, "--tflops": tflops}
    if known is None and (missing := [flag for flag, value in given.items() if value is None]):
        needed = "Give what each rank of an engine runs on: --gpu, or --memory-gb, --bandwidth-gbs and --tflops."
        raise click.UsageError(needed if len(missing) == len(given) else f"{needed} Missing: {', '.join(missing)}.")
    scales = (_GB, _GB, 1e12)
    defaults = (math.nan,) * 3 if known is None else (known.memory, known.bandwidth, known.flops)
    values = zip(given.values(), scales, defaults, strict=True)
    return Hardware(*(default if value is None else value * scale for value, scale, default in values))


def _outlines(config: EngineConfig) -> tuple[Checkpoint, LanguageModel, dict[str, LanguageModel]]:
    """The checkpoint, its model without weights, and of that each rank's part, by the rank's name."""
    with engine_extra(), collection_paused():  # they load torch
        from engine_core.distributed.ranks import ranks_on_one_host
        from engine_core.model_loader.checkpoint import open_checkpoint
        from engine_core.model_loader.loader import model_outline
    try:
        checkpoint = open_checkpoint(config.model, LoadConfig(load_format="dummy"))
        model = model_outline(checkpoint)
        model.tensors()  # refuses what an engine refuses before it loads them
        divided = open_checkpoint(config.model, LoadConfig(load_format="dummy"), config.parallel)
        parts = {str(rank): model_outline(divided, rank) for rank in ranks_on_one_host(config.parallel)}
    except ConfigError as error:
        raise FatalError(unusable_option(error.option, error.value, error.accepted), ExitCode.USAGE) from None
    except CheckpointError as error:
        raise FatalError(str(error)) from None
    return checkpoint, model, parts


def _cpu_runtime(budget: float) -> float:
    """Where an engine keeps everything within one ``budget``, with what it sets aside for requests."""
    from engine_core.platforms.kv_cache_size import RESERVE_BYTES, request_memory

    requests = request_memory(int(budget))
    return _CPU_RUNTIME + RESERVE_BYTES + requests.logprob_bytes + requests.id_bytes


def _block_bytes(model: LanguageModel, cache: CacheConfig, *, on_gpu: bool) -> int:
    """What a block takes in an engine: the native kernels on CPU pad what layers keep, those on GPU do not."""
    from engine_core.attention.base import AttentionBackend
    from engine_core.attention.native import NativeAttention
    from engine_core.ops.native_packing import padded_width

    spec = replace(model.kv_cache_spec(cache.block_size), cache_dtype=cache.kv_cache_dtype)
    if on_gpu:
        return AttentionBackend.bytes_per_block(spec)
    return NativeAttention.bytes_per_block(
        replace(spec, layers=tuple(layer.padded(padded_width) for layer in spec.layers))
    )


def _memory(
    checkpoint: Checkpoint,
    model: LanguageModel,
    block: int,
    usable: float,
    runtime: float,
    config: EngineConfig,
    demand: Demand,
) -> Memory:
    """An estimate; an engine measures its largest step and runtime memory."""
    shape = checkpoint.config
    widest = max(part.outputs_per_row for part in model.layer_parts)
    row = 8 * shape.hidden_size + 1.5 * widest  # what it makes, and what an activation leaves of that
    block_size, step_tokens = config.cache.block_size, config.scheduler.max_num_batched_tokens
    sequence_blocks, prompt_blocks = blocks_per_sequence(model.kv_cache_groups, demand, block_size, step_tokens)
    return Memory(
        usable=usable,
        weights=model.expected_weight_bytes,
        angles=sum(rope.nbytes(checkpoint.spec.max_model_len) for rope in shape.distinct_ropes),
        activations=4 * step_tokens * row + 8 * config.scheduler.max_num_seqs * shape.vocab_size,
        runtime=runtime,
        block=block,
        sequence_blocks=sequence_blocks,
        prompt_blocks=prompt_blocks,
        block_size=block_size,
        step_tokens=step_tokens,
    )


def blocks_per_sequence(
    groups: Sequence[KVCacheGroup], demand: Demand, block_size: int, step_tokens: int
) -> tuple[int, int]:
    """``Memory.sequence_blocks`` and ``Memory.prompt_blocks``.

    The scheduler starts a sequence only if each that runs could get one more block in each group. So a sequence counts
    at its full length or, where that is more, at half of its output and with this block.
    """
    whole, half = demand.input_len + demand.output_len, demand.input_len + demand.output_len // 2
    decoding = [
        max(group.held_blocks(whole, 1, block_size), group.held_blocks(half, 1, block_size) + 1) for group in groups
    ]
    prompt = [group.held_blocks(demand.input_len, step_tokens, block_size) for group in groups]
    return sum(decoding), sum(map(max, decoding, prompt))


def _as_text(
    model: Model, tightest: str, ranks: Mapping[str, Memory], demand: Demand, planned: Plan, *, on_gpu: bool
) -> str:
    capacity, expected, memory = planned.capacity, planned.expected, ranks[tightest]
    held = f"{size(memory.sequence_blocks * memory.block)} for a sequence of this load"
    if memory.prompt_blocks > memory.sequence_blocks:
        held += f", {size(memory.prompt_blocks * memory.block)} while its prompt is computed"
    several = len(ranks) > 1
    total = f"{planned.engines * len(ranks):,} {'GPUs' if on_gpu else 'ranks'} in all"
    divided = f", each of {len(ranks):,} ranks ({total})" if several else ""
    return "\n".join(
        [
            f"load       {figure(demand.rate, 12)} requests/s of {demand.input_len:,} + {demand.output_len:,} tokens: "
            f"{figure(demand.rate * demand.output_len, 12)} output tokens/s",
            f"needs      engines: {planned.engines:,}{divided}, processors: {planned.processors:,}, "
            f"detokenizers: {planned.detokenizers:,}",
            f"model      {model.kept_as}; weights: {figure(model.weights)}, "
            f"active for a token: {figure(model.active_weights)}; "
            f"KV cache of a token: {size(model.token)} ({_groups(model)})",
            *([f"ranks      {_of_ranks(ranks)}"] if several else []),
            f"{f'rank       {tightest},' if several else 'engine    '} {size(memory.usable)}: "
            f"weights {size(memory.weights)}, angles {size(memory.angles)}, "
            f"largest step {size(memory.activations)}, runtime {size(memory.runtime)}, "
            f"KV cache {size(memory.cache)} ({held})",
            f"at most    sequences at each engine: {capacity.sequences:,} (bound by {planned.bound}), "
            f"{figure(capacity.tokens)} tokens/s, {figure(capacity.tokens / demand.output_len)} requests/s, "
            f"{figure(capacity.gap * 1e3)} ms between tokens",
            f"expected   sequences at each engine: {expected.sequences:,}, "
            f"{figure(expected.gap * 1e3)} ms between tokens",
        ]
    )


def _of_ranks(ranks: Mapping[str, Memory]) -> str:
    """What each takes; what several take alike is said once."""
    alike: dict[str, list[str]] = {}
    for name, each in ranks.items():
        alike.setdefault(f"weights {size(each.weights)}, KV cache {size(each.cache)}", []).append(name)
    texts = []
    for taken, (first, *others) in alike.items():
        which = "" if len(alike) == 1 else f", the first of them {first}"
        texts.append(f"each of {1 + len(others)} ranks{which}: {taken}" if others else f"{first}: {taken}")
    return "; ".join(texts)


def _groups(model: Model) -> str:
    """Such as: 4 layers: 4.1 kB; 3 groups of 8 layers, window 512: 8.2 kB each."""
    texts = []
    for group, count in Counter(model.groups).items():
        window = "" if group.sliding_window is None else f", window {group.sliding_window:,}"
        before, after = ("", "") if count == 1 else (f"{count} groups of ", " each")
        layers = f"{group.layers} layer" + "s" * (group.layers > 1)
        texts.append(f"{before}{layers}{window}: {size(group.token)}{after}")
    return "; ".join(texts)
