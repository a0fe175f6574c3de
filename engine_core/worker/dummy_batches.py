"""Dummy steps to measure and warm up, and the duration of the largest step, estimated from smaller ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.forward_context import Caches
from engine_core.kv_cache_interface import NO_STATE, KVCacheGroup, LayerCacheSpec, MLAAttentionSpec
from engine_core.media import Picture, PictureShape, Placeholder
from engine_core.pooling.facts import PoolingFacts
from engine_core.pooling.params import PoolingParams
from engine_core.request import SamplingParams
from engine_core.step import EncoderPlan, NewSequence, StatePlan, StepPlan
from engine_core.validation import MAX_LIST_ITEMS, MAX_LOGPROBS
from engine_core.worker.forward import TimedForward
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.model_runner import PROMPT_LOGPROB_ROWS, ModelRunner

_WARM_UP_STEPS = 3
GREEDY = SamplingParams(temperature=0.0)
_LONGEST_CONTEXT = 8192
_DEMANDING_SEQS = 64
"""Fewest sequences that ask for everything, even if the sampler works on fewer rows at a time: to time it."""
_ONE_LAYER = (KVCacheGroup((0,)),)
Run = tuple[ModelRunner, Caches, int]
"""The runner of a model with one layer of a kind, its caches, and the model's number of such layers."""
_PAIRS = 2**18
"""Approximate pairs of a row and a token that it sees in the first run: some milliseconds on a CPU."""
_FEWEST_ROWS = 16
_LEAST_SECONDS = 0.02
"""A shorter run says more about its launch than its computation."""
_RUNS = 3
_SECONDS = 0.05
"""After two runs, another is made only while all together took less than this."""


def largest_step(limits: BatchLimits, vocab_size: int, sampler_rows: int) -> StepPlan:
    """As many rows and sequences as allowed, all of them sampling, with every feature of the sampler.

    The first sequence asks for log probabilities of its prompt, which send all rows through all of every layer. It has
    two chunks of them: more would take time, but no memory besides reports, which the batch's state counts. The second
    takes all rows that the others leave; the last is as long as any may become. Every block table names only block 0,
    and every state is in slot 0, so that one block and one slot are enough.

    The sampler works on ``sampler_rows`` rows at a time. All of these ask for everything, and all but the last sample
    from a nucleus, which costs most; the last uses top-k instead, which makes the sampler copy the others' logits.
    """
    if limits.pooling is not None:
        return _largest_pooled_step(limits, limits.pooling, vocab_size)
    seqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)
    demanding, at_once = min(seqs, max(sampler_rows, _DEMANDING_SEQS)), min(seqs, sampler_rows)
    nucleus, top_k = (_demanding(vocab_size, top_k=another_way) for another_way in (False, True))
    scored = replace(nucleus, prompt_logprobs=min(MAX_LOGPROBS, vocab_size))
    rows_left = limits.max_num_batched_tokens
    new: list[NewSequence] = []
    num_tokens: list[int] = []
    for seq in range(seqs):
        spare = rows_left - (seqs - 1 - seq)
        wanted = PROMPT_LOGPROB_ROWS + 2 if seq == 0 and seqs > 1 else spare
        rows = max(1, min(wanted, spare, limits.max_model_len - 1))
        rows_left -= rows
        num_tokens.append(rows)
        computed = max(0, limits.max_model_len - 1 - rows) if seq == seqs - 1 else 0
        tokens = [(seq + position) % vocab_size for position in range(computed + rows)]
        blocks = [[0] * -(-len(tokens) // limits.block_size) for _ in limits.kv_cache_groups]
        another_way = at_once > 1 and seq % at_once == at_once - 1
        params = scored if seq == 0 else GREEDY if seq >= demanding else top_k if another_way else nucleus
        new.append(NewSequence(seq, 0, tokens, len(tokens), computed, blocks, params))
    sources = [0 if each.num_computed_tokens else NO_STATE for each in new]
    states = StatePlan(sources, [0] * seqs) if limits.keeps_states else None
    return StepPlan(0, [], new, list(range(seqs)), num_tokens, [True] * seqs, {}, states=states)


def _largest_pooled_step(limits: BatchLimits, pooling: PoolingFacts, vocab_size: int) -> StepPlan:
    """As ``largest_step`` for a model that pools: as long inputs as there may be, each with a result for each token, if
    the model makes such. The last one is a chunk at the end of the longest, unless inputs are computed whole.
    """
    params = most_demanding(pooling)
    lengths, rows_left = list[int](), limits.max_num_batched_tokens
    while rows_left and len(lengths) < limits.max_num_seqs:
        lengths.append(min(rows_left, limits.longest_prompt))
        rows_left -= lengths[-1]
    before = [0] * len(lengths)
    if not pooling.attends_both_ways:
        before[-1] = limits.longest_prompt - lengths[-1]
    new = []
    for seq, (computed, rows) in enumerate(zip(before, lengths, strict=True)):
        tokens = [(seq + position) % vocab_size for position in range(computed + rows)]
        blocks = [[0] * -(-len(tokens) // limits.block_size) for _ in limits.kv_cache_groups]
        new.append(NewSequence(seq, seq, tokens, len(tokens), computed, blocks, GREEDY, pooling=params))
    states = None
    if limits.keeps_states:
        states = StatePlan([0 if computed else NO_STATE for computed in before], [0] * len(new))
    return StepPlan(0, [], new, list(range(len(new))), lengths, [True] * len(new), {}, states=states)


def most_demanding(pooling: PoolingFacts) -> PoolingParams:
    """The parameters of results that take most memory."""
    task = next((task for task in pooling.tasks if task.per_token), pooling.tasks[0])
    return PoolingParams(task, normalize=task.embeds)


def _demanding(vocab_size: int, *, top_k: bool) -> SamplingParams:
    """Every parameter at its most expensive; top-k and the nucleus of all tokens exclude each other."""
    listed = range(min(MAX_LIST_ITEMS, vocab_size))
    return SamplingParams(
        temperature=1.0,
        top_k=min(1000, vocab_size) if top_k else None,
        top_p=0.99,
        min_p=1e-6,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        repetition_penalty=1.1,
        logit_bias=dict.fromkeys(listed, 1.0),
        bad_words_token_ids=tuple(zip(listed[::2], listed[1::2], strict=False)),
        allowed_token_ids=tuple(range(vocab_size)),
        min_tokens=1,
        stop_token_ids=frozenset(listed),
        logprobs=min(MAX_LOGPROBS, vocab_size),
    )


def warm_up_steps(limits: BatchLimits, vocab_size: int) -> list[StepPlan]:
    """A short prompt and a few greedy tokens, or a result, in the first blocks and slot; the last plan releases the
    sequence.

    Groups use the same blocks, so their layers overwrite each other's keys: the generated tokens are arbitrary.
    """
    prompt = limits.warm_up_tokens(vocab_size)
    longest, pooling = len(prompt), limits.pooling
    steps = min(_WARM_UP_STEPS, limits.max_model_len - longest) if pooling is None else 1
    blocks = list(range(-(-(longest + steps) // limits.block_size)))[: limits.max_blocks_per_table]
    new = NewSequence(0, 0, prompt, longest, 0, [blocks] * len(limits.kv_cache_groups), GREEDY)
    if pooling is not None:
        new = replace(new, pooling=most_demanding(pooling))
    first, following = (StatePlan([source], [0]) if limits.keeps_states else None for source in (NO_STATE, 0))
    plans = [StepPlan(0, [], [new], [0], [longest], [True], {}, states=first)]
    plans += [StepPlan(step, [], [], [0], [1], [True], {}, states=following) for step in range(1, steps)]
    plans.append(StepPlan(steps, [0], [], [], [], [], {}))
    return plans


def picture_step(limits: BatchLimits, picture: Picture, vocab_size: int, released: Sequence[int]) -> StepPlan:
    """As many rows as one sequence can have, all of them of copies of ``picture``, whose embeddings are kept by its
    digest. All blocks are block 0, and states are in slot 0; ``released`` are the sequences that are there.
    """
    rows, count = min(limits.max_num_batched_tokens, limits.max_model_len - 1), picture.shape.num_tokens
    shape = picture.shape if count <= rows else PictureShape(rows)  # of one that is cut, only rows matter
    copies = range(0, rows - shape.num_tokens + 1, shape.num_tokens)
    media = tuple(Placeholder(picture.digest, offset, shape) for offset in copies)
    return _one_sequence(limits, rows, media, vocab_size, released)


def picture_warm_up(limits: BatchLimits, picture: Picture, vocab_size: int) -> tuple[StepPlan, StepPlan] | None:
    """A prompt that is ``picture`` between two tokens, and the plan that releases it; None: it is too long."""
    rows = picture.shape.num_tokens + 2
    if rows > min(limits.max_num_batched_tokens, limits.max_model_len - 1):
        return None
    blocks = list(range(-(-rows // limits.block_size)))
    media = (Placeholder(picture.digest, 1, picture.shape),)
    step = _one_sequence(limits, rows, media, vocab_size, (), blocks)
    step = replace(step, encoder=EncoderPlan([], [(picture.digest, picture)]))
    return step, StepPlan(1, [0], [], [], [], [], {})


def _one_sequence(
    limits: BatchLimits,
    rows: int,
    media: tuple[Placeholder, ...],
    vocab_size: int,
    released: Sequence[int],
    blocks: list[int] | None = None,
) -> StepPlan:
    """A greedy sequence with pictures, computed whole; ``blocks`` by default are all block 0."""
    tokens = [position % vocab_size for position in range(rows)]
    blocks = blocks or [0] * -(-rows // limits.block_size)
    new = NewSequence(0, 0, tokens, rows, 0, [blocks] * len(limits.kv_cache_groups), GREEDY, media)
    states = StatePlan([NO_STATE], [0]) if limits.keeps_states else None
    return StepPlan(0, list(released), [new], [0], [rows], [True], {}, states=states)


def step_seconds(
    runs: Sequence[Run],
    plan: StepPlan,
    synchronize: Callable[[], None] = lambda: None,
) -> float:
    """Seconds of the whole model for ``plan``, estimated from one layer of each kind, head and sampler.

    ``runs``: one for each kind. ``synchronize`` waits for the device.
    """
    longest_rest = seconds = 0.0
    for runner, caches, count in runs:
        forward = TimedForward(runner.forward, synchronize)
        runner.forward = forward
        start = time.perf_counter()
        if runner.samples:
            runner.launch(plan, caches).result()
        else:
            runner.follow(plan, caches)
        synchronize()
        longest_rest = max(longest_rest, time.perf_counter() - start - forward.seconds)
        seconds += count * forward.seconds
    return seconds + longest_rest


@torch.inference_mode()
def attention_seconds(
    attention: AttentionBackend,
    spec: KVCacheSpec,
    caches: Sequence[int | None],
    num_heads: int,
    limits: BatchLimits,
    device: torch.device,
) -> float:
    """Seconds of all layers' attention in a step with as many rows as allowed, all after the longest context.

    This may be a first step: a chunk of a prompt whose beginning is in the prefix cache. ``caches``: for each layer,
    the index in ``spec`` of the cache it attends over; None: it does not attend.
    """
    windows = {cache: group.sliding_window for group in spec.groups for cache in group.layers}
    seen: dict[LayerCacheSpec, int] = {}
    for cache in caches:
        if cache is None:
            continue
        window = min(windows[cache] or limits.max_model_len, limits.max_model_len)
        seen[spec.layers[cache]] = seen.get(spec.layers[cache], 0) + window
    return limits.max_rows * sum(
        count
        * _seconds_per_pair(attention, replace(spec, layers=(kind,), groups=_ONE_LAYER), num_heads, limits, device)
        for kind, count in seen.items()
    )


def _seconds_per_pair(
    attention: AttentionBackend, spec: KVCacheSpec, num_heads: int, limits: BatchLimits, device: torch.device
) -> float:
    """Seconds of the only layer of ``spec`` per pair of a row and a token that it sees; time is proportional to pairs.

    Measured on enough pairs that the launch does not dominate.
    """
    context = min(limits.max_model_len, _LONGEST_CONTEXT)
    most_rows = min(limits.max_rows, context)
    rows = min(max(_FEWEST_ROWS, _PAIRS // context), most_rows)
    while (seconds := _quickest(attention, spec, num_heads, rows, context, device)) < _LEAST_SECONDS:
        if rows == most_rows:
            break
        rows = min(2 * rows, most_rows)
    return seconds / (rows * (2 * context - rows + 1) // 2)


def _quickest(
    attention: AttentionBackend, spec: KVCacheSpec, num_heads: int, rows: int, context: int, device: torch.device
) -> float:
    """Seconds of one layer's attention for the last ``rows`` of a context.

    The quickest of some runs counts, as the first may compile kernels, and others may wait for the processor.
    """
    table = torch.zeros(1, -(-context // spec.block_size), dtype=torch.int32)
    on_host = AttentionMetadata.of_sequences([context], [rows], table, spec.block_size)
    attend = _attention_of(attention, spec, num_heads, on_host.on(device), device)
    attention.plan(on_host)
    runs: list[float] = []
    while len(runs) < 2 or (len(runs) < _RUNS and sum(runs) < _SECONDS):
        start = time.perf_counter()
        attend().cpu()  # waits for the device
        runs.append(time.perf_counter() - start)
    return min(runs)


def _attention_of(
    attention: AttentionBackend, spec: KVCacheSpec, num_heads: int, metadata: AttentionMetadata, device: torch.device
) -> Callable[[], torch.Tensor]:
    """Attention of the only layer of ``spec``, with all numbers zero."""
    [cache], [layer] = attention.allocate(spec, 1, device), spec.layers
    rows, options = len(metadata.slot_mapping), AttentionOptions(layer.shape[-1] ** -0.5)

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(rows, *shape, dtype=spec.dtype, device=device)

    if isinstance(layer, MLAAttentionSpec):
        latent_dim, rope_dim = layer.kv_lora_rank, layer.qk_rope_head_dim
        queries = zeros(num_heads, latent_dim), zeros(num_heads, rope_dim)
        latents = zeros(latent_dim), zeros(rope_dim)
        return lambda: attention.forward_latents(*queries, *latents, cache, metadata, options)
    query, key = zeros(num_heads, layer.head_dim), zeros(layer.num_kv_heads, layer.head_dim)
    return lambda: attention.forward(query, key, key, cache, metadata, options)
