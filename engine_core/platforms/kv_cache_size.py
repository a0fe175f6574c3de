"""How many KV blocks and slots of states fit, calculated from measurements.

They share budget − resident − step peak − batch state − requests − reserve, where the budget is
``gpu_memory_utilization`` of what this process may use; without states, blocks = this ÷ bytes per block. The caches'
memory is counted in full but not touched before it is used, so an idle engine stays small.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

from engine_core.config import CacheConfig, RequestMemory
from engine_core.errors import OutOfMemoryError
from engine_core.kv_cache_interface import KVCacheConfig
from engine_core.platforms.cache_division import FEWEST_STATES, Claim, divide, useful_states
from engine_core.worker.input_batch import BatchLimits

SCHEDULER_BYTES_PER_BLOCK = 512
"""Python objects of the scheduler and its prefix cache per block (list entries, a hash, its dictionary entry):
negligible beside the blocks of a real model, but not of a tiny one."""

RESERVE_BYTES = 24 << 20
"""For memory that no profile shows, as it comes with the requests. Measured in an engine's process with built kernels
and a written cache: 8 MiB with the first 64 requests (gRPC, the C allocator's arenas of its threads, code paged in for
the first time), and 12 MiB more with a thousand requests of 200 tokens: 8 MiB of Python objects (about 1 KiB a request
and 32 bytes a token), the rest freed memory that the C allocator keeps. Without gRPC, a load that fills batch and cache
stays within 1 MiB of the profile."""

_UTILIZATION = "--gpu-memory-utilization"
_REQUESTS_SHARE, _REQUESTS_MOST = 32, 512 << 20
"""Log probabilities that requests hold may take 1 / ``_REQUESTS_SHARE`` of the budget, and at most ``_REQUESTS_MOST``
bytes; token ids as much again."""


class Profile(Protocol):
    """Measurements between loading and allocating, on any device; all in bytes."""

    @property
    def step_peak(self) -> int:
        """What the largest step takes on top of what is loaded."""

    @property
    def overhead_per_block(self) -> int:
        """What a block takes of the same memory besides its keys and values."""

    def with_adapters(self, nbytes: int) -> Self:
        """The same, with so many bytes set aside for loaded adapters."""

    def left(self, utilization: float) -> int:
        """What remains for the KV cache if the budget is this share of the memory."""

    def describe(self, utilization: float) -> str:
        """The numbers from which ``left`` is calculated, for a person."""


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Measurements on a CPU; all in bytes."""

    usable: int
    """What this process may grow to."""
    resident: int
    """Taken after loading: weights, libraries, interpreter."""
    weights: int
    """The part of ``resident`` that is weights."""
    step_peak: int
    """What the largest step adds."""
    batch_state: int
    """The most that the persistent batch takes."""
    draft_weights: int = 0
    """The part of ``resident`` that is weights of a drafting model."""
    encoder_cache: int = 0
    """The most that embeddings of pictures take."""
    limit: str = ""
    """What makes ``usable`` less than the machine has, for a person."""
    pixels: int = 0
    """The most that pixels of pictures take."""
    indexes: int = 0
    """The most that indexes of texts take, in which drafts are looked up."""
    adapters: int = 0
    """The most that loaded adapters take."""

    def with_adapters(self, nbytes: int) -> Self:
        """The same, with so many bytes set aside for loaded adapters."""
        return replace(self, adapters=nbytes)

    @property
    def overhead_per_block(self) -> int:
        """The scheduler's share, which is in the same memory."""
        return SCHEDULER_BYTES_PER_BLOCK

    def left(self, utilization: float) -> int:
        """What remains for the KV cache if the budget is this share of ``usable``."""
        taken = self.resident + self.step_peak + self.batch_state + self._requests(utilization) + RESERVE_BYTES
        return int(self.usable * utilization) - taken - self.encoder_cache - self.pixels - self.indexes - self.adapters

    def _requests(self, utilization: float) -> int:
        """The part of the budget set aside for what requests hold."""
        room = request_memory(int(self.usable * utilization))
        return room.logprob_bytes + room.id_bytes

    def describe(self, utilization: float) -> str:
        """The numbers from which ``left`` is calculated, each with the options that change it, for a person."""
        pixels = f"pixels of pictures {size(self.pixels)} (--media-memory-bytes), " if self.pixels else ""
        indexes = f"indexes of texts {size(self.indexes)} (--speculative-config), " if self.indexes else ""
        return (
            f"the budget is {size(self.usable * utilization)}, {utilization:g} (--gpu-memory-utilization) of the "
            f"{size(self.usable)} that this process may use{_because(self.limit)}; weights take "
            f"{size(self.weights)} (--model, --dtype, --quantization), {describe_drafts(self.draft_weights)}"
            f"{describe_adapters(self.adapters)}"
            f"the runtime {size(self.resident - self.weights - self.draft_weights)}, "
            f"the largest step {size(self.step_peak)} (--max-num-batched-tokens, --max-num-seqs), "
            f"the batch's state {size(self.batch_state)} (--max-num-seqs, --max-model-len), "
            f"{describe_pictures(self.encoder_cache)}"
            f"token ids and log probabilities of requests {size(self._requests(utilization))} (a sixteenth of the "
            f"budget, at most {size(2 * _REQUESTS_MOST)}), {pixels}{indexes}and the reserve "
            f"{size(RESERVE_BYTES)}"
        )


def describe_pictures(encoder_cache: int) -> str:
    """The embeddings of pictures, as one of several parts, for a person; empty without any."""
    return f"embeddings of pictures {size(encoder_cache)} (--encoder-cache-tokens), " if encoder_cache else ""


def describe_drafts(weights: int) -> str:
    """A drafting model's weights, as one of several parts, for a person; empty without any."""
    return f"those of the drafts {size(weights)} (--speculative-config), " if weights else ""


def describe_adapters(nbytes: int) -> str:
    """Loaded adapters, as one of several parts, for a person; empty without any."""
    return f"adapters {size(nbytes)} (--max-cpu-loras, --max-lora-rank), " if nbytes else ""


def request_memory(budget: int) -> RequestMemory:
    """The part of a ``budget`` of host memory that is set aside for requests."""
    share = min(budget // _REQUESTS_SHARE, _REQUESTS_MOST)
    return RequestMemory(logprob_bytes=share, id_bytes=share)


def _because(limit: str) -> str:
    return f" ({limit})" if limit else ""


def require_room_for_angles(angles: int, max_model_len: int, usable: int, limit: str = "") -> None:
    """Raise ``OutOfMemoryError`` if the angles of rotary embedding alone do not fit; ``limit`` as in ``Platform``."""
    if angles > usable:
        raise OutOfMemoryError(
            f"rotary embedding takes {size(angles)} for max_model_len={max_model_len}, but this process may use "
            f"{size(usable)}{_because(limit)}. Lower --max-model-len."
        )


def require_room_for_weights(weights: int, kept_as: str, usable: int, limit: str = "") -> None:
    """Raise ``OutOfMemoryError`` if the system would kill the process while it loads; ``limit`` as in ``Platform``."""
    if weights > usable:
        raise OutOfMemoryError(
            f"the weights take {size(weights)} as {kept_as}, but this process may use {size(usable)}"
            f"{_because(limit)}. "
            f"Give it more memory, or choose a smaller --model or --dtype, or --quantization int8 or int4."
        )


def size_by_profile(
    profile: Profile, cache: CacheConfig, limits: BatchLimits, bytes_per_block: int, bytes_per_state: int = 0
) -> KVCacheConfig:
    """The caches that fit into the budget.

    There are never more blocks than ``max_num_seqs`` sequences of ``max_model_len`` fill, or twice that with prefix
    caching: as many again for cached prefixes that no sequence uses. Where tokens see those after them, there are those
    of the steps in flight. Nor are there more slots than ``useful_states``.
    Raises ``OutOfMemoryError`` if one sequence of ``max_model_len`` does not fit.
    """
    utilization = cache.gpu_memory_utilization
    left = profile.left(utilization)
    numbers = profile.describe(utilization)
    if left <= 0:
        raise OutOfMemoryError(
            f"nothing is left for the KV cache: {numbers}. Raise --gpu-memory-utilization, give the process more "
            f"memory, lower --max-num-batched-tokens or --max-num-seqs, or choose a smaller model or dtype."
        )
    blocks, states = _claims(cache, limits, bytes_per_block, bytes_per_state)
    blocks = replace(blocks, unit=bytes_per_block + profile.overhead_per_block)
    return _divided(
        left, blocks, states, cache, limits, bytes_per_block, f"{size(left)} are left: {numbers}", _UTILIZATION
    )


def size_as_given(
    cache: CacheConfig, limits: BatchLimits, bytes_per_block: int, bytes_per_state: int = 0
) -> KVCacheConfig:
    """The caches that fill ``kv_cache_memory_bytes``.

    Raises ``OutOfMemoryError`` if one sequence of ``max_model_len`` does not fit.
    """
    given = cache.kv_cache_memory_bytes
    assert given is not None
    blocks, states = _claims(cache, limits, bytes_per_block, bytes_per_state)
    if bytes_per_block and not limits.attends_both_ways:
        blocks = replace(blocks, most=None)
    elif not limits.kv_cache_groups and bytes_per_state:
        states = replace(states, most=None)
    numbers = f"--kv-cache-memory-bytes is {given} ({size(given)})"
    return _divided(given, blocks, states, cache, limits, bytes_per_block, numbers, "--kv-cache-memory-bytes")


def _claims(cache: CacheConfig, limits: BatchLimits, bytes_per_block: int, bytes_per_state: int) -> tuple[Claim, Claim]:
    """What blocks and slots can use; a model without attention uses no blocks, one without states no slots."""
    needed, prefix_caching = limits.max_blocks_per_seq, cache.enable_prefix_caching
    useful = limits.most_blocks
    if not limits.attends_both_ways and prefix_caching:
        useful *= 2
    blocks = Claim(bytes_per_block, needed, useful)
    if not limits.keeps_states:
        return blocks, Claim(0, 0, 0)
    useful = useful_states(limits.max_num_seqs, enable_prefix_caching=prefix_caching)
    return blocks, Claim(bytes_per_state, FEWEST_STATES, useful)


def _divided(
    left: int,
    blocks: Claim,
    states: Claim,
    cache: CacheConfig,
    limits: BatchLimits,
    bytes_per_block: int,
    numbers: str,
    flag: str,
) -> KVCacheConfig:
    """The caches in ``left`` bytes; ``numbers`` and ``flag`` say in an error what is there, and what changes it."""
    if left < states.least_bytes:
        raise OutOfMemoryError(
            f"no sequence fits: the states of one take {size(states.unit)}, and there must be room for "
            f"{FEWEST_STATES}, but {numbers}. Raise {flag}, or choose a smaller --model or --dtype."
        )
    if states.least_bytes:
        numbers = f"{FEWEST_STATES} states take {size(states.least_bytes)}, and {numbers}"
    rest = left - states.least_bytes
    _require_longest(
        replace(blocks, most=None).fitting(rest) if blocks.unit else blocks.fitting(rest),
        limits,
        bytes_per_block,
        numbers,
        flag,
    )
    num_blocks, num_states = divide(left, blocks, states, cache.state_cache_share)
    return KVCacheConfig(
        num_blocks,
        limits.block_size,
        bytes_per_block,
        limits.kv_cache_groups,
        num_states=num_states,
        bytes_per_state=states.unit,
    )


def describe_states(config: KVCacheConfig) -> str:
    """The slots of states, for a person; empty without any."""
    if not config.num_states:
        return ""
    count, each, share = config.num_states, size(config.bytes_per_state), "--state-cache-share"
    return f"{count} states of {each} ({share}): those of running sequences, and snapshots that others continue from"


def _require_longest(blocks: int, limits: BatchLimits, bytes_per_block: int, numbers: str, flag: str) -> None:
    needed = limits.max_blocks_per_seq
    if blocks >= needed:
        return
    raise OutOfMemoryError(
        f"max_model_len={limits.max_model_len} does not fit: a sequence of that length takes "
        f"{size(needed * bytes_per_block)} of KV cache ({needed} blocks of {limits.block_size} tokens, "
        f"{bytes_per_block} bytes each), but {numbers}. Raise {flag}{_ways_to_need_less(blocks, limits)}."
    )


def _ways_to_need_less(blocks: int, limits: BatchLimits) -> str:
    """Alternatives to more memory, as the end of a sentence."""
    ways = []
    step = _longest(
        blocks, lambda tokens: replace(limits, max_num_batched_tokens=tokens), limits.max_num_batched_tokens
    )
    if step >= limits.min_batched_tokens:
        ways.append(f"lower --max-num-batched-tokens to at most {step}")
    length = _longest(blocks, lambda tokens: replace(limits, max_model_len=tokens), limits.max_model_len)
    if length > 1:
        ways.append(f"lower --max-model-len to at most {length}")
    elif limits.block_size > 1:
        ways.append("lower --block-size and --max-model-len")
    else:
        ways.append("choose a smaller --model or --dtype")
    return "".join(f", {way}" for way in ways[:-1]) + f", or {ways[-1]}"


def _longest(blocks: int, limits_of: Callable[[int], BatchLimits], below: int) -> int:
    """The largest number below ``below`` whose limits need at most ``blocks`` per sequence; 0 if none."""
    return bisect_right(range(1, below), blocks, key=lambda tokens: limits_of(tokens).max_blocks_per_seq)


def size(count: float) -> str:
    """A number of bytes for a person: 1.50 GiB."""
    if count == 1:
        return "1 byte"
    for unit in ("bytes", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
