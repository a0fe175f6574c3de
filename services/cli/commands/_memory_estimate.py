"""Estimates an engine's memory for ``ringline plan``, without starting it: its model, steps and KV cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from engine_core.config import CacheConfig, EngineConfig, LoadConfig, ModelSpec, encoder_cache_tokens
from engine_core.errors import CheckpointError, ConfigError
from engine_core.kv_cache_interface import KVCacheGroup
from services.cli.commands._capacity import Demand, Memory
from services.cli.commands.engine import engine_extra
from services.common.config.errors import ExitCode, FatalError, unusable_option
from services.common.process.memory import collection_paused

if TYPE_CHECKING:
    from engine_core.attention.base import KVCacheSpec
    from engine_core.model_loader.checkpoint import Checkpoint
    from engine_core.models.language_model import LanguageModel
    from engine_core.speculation import SpeculativeConfig

_GB = 1e9
_INPUT_LEN, _OUTPUT_LEN = 512, 128
"""Tokens of a request, unless its user says otherwise."""
_GPU_RUNTIME, _CPU_RUNTIME = 0.8 * _GB, 0.3 * _GB
"""Estimates: a GPU's context and captured graphs; interpreter, libraries and buffers of gRPC."""


@dataclass(frozen=True, slots=True)
class Load:
    """The load as its user gives it; None: not given."""

    rate: float
    input_len: int | None = None
    output_len: int | None = None
    max_gap_ms: float | None = None

    def on(self, model: ModelSpec) -> Demand:
        """With defaults that suit the model: an input that is pooled is a prompt with one result.

        Raises ``FatalError`` for what the model does not do, and for lengths beyond its own.
        """
        longest = model.max_model_len
        if model.pooling is not None:
            for flag, value in (("output_len", self.output_len), ("max_gap_ms", self.max_gap_ms)):
                if value is not None:
                    accepted = "no value for a model that makes vectors, scores or labels: it generates no tokens"
                    raise FatalError(unusable_option(flag, value, accepted), ExitCode.USAGE)
            if (self.input_len or 0) > longest:
                problem = f"--input-len {self.input_len:,} is more than the {longest:,} tokens that an input may have"
                raise FatalError(f"{problem}; lower it")
            return Demand(self.rate, self.input_len or min(_INPUT_LEN, longest), 1, None)
        input_len, output_len = self.input_len or _INPUT_LEN, self.output_len or _OUTPUT_LEN
        if input_len + output_len > longest:
            lengths = f"--input-len {input_len:,} and --output-len {output_len:,}"
            raise FatalError(f"{lengths} are more than the model's context of {longest:,} tokens; lower one of them")
        return Demand(self.rate, input_len, output_len, None if self.max_gap_ms is None else self.max_gap_ms / 1e3)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share a block table."""

    layers: int
    sliding_window: int | None
    """Tokens that they keep of a sequence; None: all."""
    token: int
    """Bytes per token of a block, over all of these layers; padding makes it equal in every group."""


@dataclass(frozen=True, slots=True)
class Model:
    """The model's size, independent of the load."""

    kept_as: str
    """How weights are stored, as text."""
    weights: int
    """Numbers, not bytes."""
    active_weights: float
    """Weights that compute one token, in layers and output projection; of experts, those it is routed to."""
    token: int
    """KV cache bytes per token, in a block of every group."""
    groups: tuple[CacheGroup, ...]
    state: int
    """Bytes of a sequence's states; 0: no layer keeps any."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A model's memory in an engine, as a whole and by rank."""

    checkpoint: Checkpoint
    demand: Demand
    outline: LanguageModel
    """The whole model, without weights."""
    whole: Memory
    ranks: Mapping[str, Memory]
    """By the rank's name."""

    @property
    def pools(self) -> bool:
        """Whether the model makes vectors, scores or labels in place of tokens."""
        return self.checkpoint.spec.pooling is not None

    @property
    def tightest(self) -> str:
        """The rank with the least room."""

        def room(rank: str) -> tuple[float, float, float]:
            each = self.ranks[rank]
            return each.blocks if each.block else math.inf, each.sequences, each.usable - each.taken

        return min(self.ranks, key=room)

    def model(self, active_weights: float) -> Model:
        token = self.whole.block // self.whole.block_size
        groups = self.outline.kv_cache_groups
        described = tuple(CacheGroup(len(group.layers), group.sliding_window, token) for group in groups)
        weights = sum(part.num_weights for part in self.outline.parts)
        return Model(self.checkpoint.kept_as, weights, active_weights, token * len(groups), described, self.whole.state)


def estimate(config: EngineConfig, load: Load, budget: float, *, on_gpu: bool) -> Estimate:
    """``budget``: bytes that a rank may use. Raises ``FatalError``."""
    checkpoint, outline, parts, sampling = _outlines(config, on_gpu=on_gpu)
    demand = load.on(checkpoint.spec)
    runtime = _GPU_RUNTIME if on_gpu else _cpu_runtime(budget)
    drafts, block_of_drafts = _drafting(config, checkpoint, parts[sampling], on_gpu=on_gpu)

    def memory(part: LanguageModel, drafts: float = 0.0, block_of_drafts: int = 0) -> Memory:
        block = _block_bytes(part, config.cache, on_gpu=on_gpu) + block_of_drafts
        of_part = _memory(checkpoint, part, block, budget, runtime, config, demand)
        return _with_states(replace(of_part, state=_state_bytes(part, on_gpu=on_gpu), drafts=drafts), config)

    ranks = {
        name: memory(part, drafts, block_of_drafts) if name == sampling else memory(part)
        for name, part in parts.items()
    }
    return Estimate(checkpoint, demand, outline, memory(outline), ranks)


def _outlines(config: EngineConfig, *, on_gpu: bool) -> tuple[Checkpoint, LanguageModel, dict[str, LanguageModel], str]:
    """The checkpoint, its model without weights, each rank's part of it, by rank name, and the rank that samples."""
    with engine_extra(), collection_paused():  # they load torch
        from engine_core.distributed.ranks import ranks_on_one_host
        from engine_core.model_loader.checkpoint import open_checkpoint
        from engine_core.model_loader.loader import model_outline
    try:
        checkpoint = open_checkpoint(config.model, LoadConfig(load_format="dummy"))
        outline = partial(model_outline, expands_experts=on_gpu, enable_lora=config.lora.enable_lora)
        model = outline(checkpoint)
        model.tensors()  # refuses what an engine refuses before loading
        divided = open_checkpoint(config.model, LoadConfig(load_format="dummy"), config.parallel)
        ranks = ranks_on_one_host(config.parallel)
        parts = {str(rank): outline(divided, rank) for rank in ranks}
    except ConfigError as error:
        raise FatalError(unusable_option(error.option, error.value, error.accepted), ExitCode.USAGE) from None
    except CheckpointError as error:
        raise FatalError(str(error)) from None
    return checkpoint, model, parts, next(str(rank) for rank in ranks if rank.samples)


def _drafting(
    config: EngineConfig, checkpoint: Checkpoint, target: LanguageModel, *, on_gpu: bool
) -> tuple[float, int]:
    """Bytes of what computes drafts, and of its cache for each block of the target's, on the rank that samples.

    None if nothing does. ``target``: that rank's part of the model. Raises ``FatalError``.
    """
    speculation = config.scheduler.speculation
    if speculation is None or not speculation.is_computed:
        return 0.0, 0
    outline = {"draft_model": _drafting_model, "eagle3": _head, "mtp": _layer}[speculation.method]
    try:
        weights, spec = outline(speculation, config, checkpoint, target)
    except ConfigError as error:
        raise FatalError(unusable_option(error.option, error.value, error.accepted), ExitCode.USAGE) from None
    except CheckpointError as error:
        raise FatalError(f"{error} (--speculative-config)") from None
    return weights, _bytes_per_block(_padded(spec, on_gpu=on_gpu), on_gpu=on_gpu)


def _drafting_model(
    speculation: SpeculativeConfig, config: EngineConfig, checkpoint: Checkpoint, _target: LanguageModel
) -> tuple[float, KVCacheSpec]:
    """Bytes of its weights and angles, and its cache; so are the next two."""
    from engine_core.model_loader.checkpoint import open_checkpoint
    from engine_core.model_loader.loader import model_outline
    from engine_core.worker.drafters.draft_cache import draft_cache_spec
    from engine_core.worker.drafters.draft_model import drafting_model

    own = open_checkpoint(drafting_model(speculation, config.model), LoadConfig(load_format="dummy"))
    longest = min(checkpoint.spec.max_model_len, own.spec.max_model_len)
    model = model_outline(own)
    angles = sum(rope.nbytes(longest) for rope in own.config.distinct_ropes)
    return model.expected_weight_bytes + angles, draft_cache_spec(model, config.cache.block_size)


def _head(
    speculation: SpeculativeConfig, config: EngineConfig, checkpoint: Checkpoint, _target: LanguageModel
) -> tuple[float, KVCacheSpec]:
    from engine_core.model_loader.eagle3_head import make_head, open_head
    from engine_core.model_loader.loader import outline_parts
    from engine_core.worker.drafters.draft_cache import draft_cache_spec

    assert speculation.model is not None  # as the method needs one
    found = open_head(speculation.model, speculation.revision, config.model, checkpoint.config)
    head = make_head(found, outline_parts(checkpoint, quantized=False), checkpoint.spec.max_model_len)
    return head.expected_weight_bytes, draft_cache_spec(head, config.cache.block_size)


def _layer(
    _speculation: SpeculativeConfig, config: EngineConfig, checkpoint: Checkpoint, target: LanguageModel
) -> tuple[float, KVCacheSpec]:
    from engine_core.model_loader.loader import outline_parts
    from engine_core.models.causal_lm import CausalLM
    from engine_core.models.mtp import MultiTokenPredictor, mtp_config, mtp_names

    if not isinstance(target, CausalLM) or (names := mtp_names(target)) is None:
        accepted = f"another method: {checkpoint.choice.architecture} has no such layer, or none that is known"
        raise ConfigError("speculative_config", config.scheduler.speculative_config, accepted)
    layer, parts = mtp_config(target.config, names, ()), outline_parts(checkpoint, quantized=True)
    has_shares = config.parallel.tensor_parallel_size > 1
    predictor = MultiTokenPredictor(layer, names, parts, target, has_shares=has_shares)
    return predictor.expected_weight_bytes, predictor.kv_cache_spec(config.cache.block_size)


def _cpu_runtime(budget: float) -> float:
    """On CPU, one ``budget`` covers everything, including memory reserved for requests."""
    from engine_core.platforms.kv_cache_size import RESERVE_BYTES, request_memory

    requests = request_memory(int(budget))
    return _CPU_RUNTIME + RESERVE_BYTES + requests.logprob_bytes + requests.id_bytes


def _block_bytes(model: LanguageModel, cache: CacheConfig, *, on_gpu: bool) -> int:
    spec = replace(model.kv_cache_spec(cache.block_size), cache_dtype=cache.kv_cache_dtype)
    return _bytes_per_block(_padded(spec, on_gpu=on_gpu), on_gpu=on_gpu)


def _padded(spec: KVCacheSpec, *, on_gpu: bool) -> KVCacheSpec:
    """Native kernels on CPU pad keys and values, those on GPU do not."""
    from engine_core.ops.native_packing import padded_width

    return spec if on_gpu else replace(spec, layers=tuple(layer.padded(padded_width) for layer in spec.layers))


def _bytes_per_block(spec: KVCacheSpec, *, on_gpu: bool) -> int:
    from engine_core.attention.base import AttentionBackend
    from engine_core.attention.native import NativeAttention

    return (AttentionBackend if on_gpu else NativeAttention).bytes_per_block(spec)


def _state_bytes(model: LanguageModel, *, on_gpu: bool) -> int:
    """Bytes of a sequence's states, padded like ``_block_bytes``."""
    from engine_core.ops.native_packing import padded_width

    spec = model.state_cache_spec
    if spec is None:
        return 0
    layers = spec.layers if on_gpu else tuple(layer.padded(padded_width) for layer in spec.layers)
    return replace(spec, layers=layers).bytes_per_state


def _with_states(memory: Memory, config: EngineConfig) -> Memory:
    """``memory`` with the slots for states that an engine would have."""
    from engine_core.platforms.cache_division import FEWEST_STATES, Claim, divide, useful_states

    if not memory.state:
        return memory
    caching = config.cache.enable_prefix_caching
    blocks = Claim(memory.block, max(memory.sequence_blocks, memory.prompt_blocks), None if memory.block else 0)
    useful = useful_states(config.scheduler.max_num_seqs, enable_prefix_caching=caching)
    states = Claim(memory.state, FEWEST_STATES, useful)
    if memory.cache < blocks.least_bytes + states.least_bytes:
        return memory
    return replace(memory, states=divide(int(memory.cache), blocks, states, config.cache.state_cache_share)[1])


def _memory(
    checkpoint: Checkpoint,
    model: LanguageModel,
    block: int,
    usable: float,
    runtime: float,
    config: EngineConfig,
    demand: Demand,
) -> Memory:
    """An estimate; engines measure their largest step and runtime memory."""
    shape = checkpoint.config
    widest = max(part.outputs_per_row for part in model.layer_parts)
    row = 8 * shape.hidden_size + 1.5 * widest  # the widest output, and what an activation leaves of it
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
        tower=sum(part.weight_bytes(checkpoint.dtype.itemsize) for part in model.vision_parts),
        pictures=_embedding_bytes(checkpoint, model, config),
        adapters=0
        if model.lora is None
        else config.lora.most_loaded * model.lora.most_bytes(config.lora.max_lora_rank),
    )


def _embedding_bytes(checkpoint: Checkpoint, model: LanguageModel, config: EngineConfig) -> int:
    """Bytes of the embeddings of pictures that a rank keeps, if it encodes them."""
    from engine_core.ops.native_packing import padded_width

    if model.vision is None:
        return 0
    shape = model.vision.shape
    tokens = encoder_cache_tokens(config.cache, config.scheduler, shape)
    return tokens * padded_width(model.config.hidden_size) * (1 + shape.num_deepstack) * checkpoint.dtype.itemsize


def blocks_per_sequence(
    groups: Sequence[KVCacheGroup], demand: Demand, block_size: int, step_tokens: int
) -> tuple[int, int]:
    """``Memory.sequence_blocks`` and ``Memory.prompt_blocks``.

    The scheduler starts a sequence only if every running one could get one more block in every group. So a sequence
    counts at its full length or, if that is more, at half its output plus this block.
    """
    whole, half = demand.input_len + demand.output_len, demand.input_len + demand.output_len // 2
    decoding = [
        max(group.held_blocks(whole, 1, block_size), group.held_blocks(half, 1, block_size) + 1) for group in groups
    ]
    prompt = [group.held_blocks(demand.input_len, step_tokens, block_size) for group in groups]
    return sum(decoding), sum(map(max, decoding, prompt))
