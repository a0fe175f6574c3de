"""The arithmetic of the KV cache's size and the refusals, by hand-computed numbers."""

from dataclasses import replace

import pytest

from engine_core.config import CacheConfig, RequestMemory
from engine_core.errors import OutOfMemoryError
from engine_core.kv_cache_interface import KVCacheGroup
from engine_core.layers.rotary import RopeParameters
from engine_core.platforms.kv_cache_size import (
    RESERVE_BYTES,
    SCHEDULER_BYTES_PER_BLOCK,
    MemoryProfile,
    describe_states,
    request_memory,
    require_room_for_angles,
    require_room_for_weights,
    size_as_given,
    size_by_profile,
)
from engine_core.worker.input_batch import BatchLimits

MIB = 1 << 20
PROFILE = MemoryProfile(
    usable=1280 * MIB,
    resident=300 * MIB - RESERVE_BYTES,
    weights=200 * MIB,
    step_peak=70 * MIB,
    batch_state=10 * MIB,
)
LIMITS = BatchLimits(max_num_seqs=64, max_num_batched_tokens=512, max_model_len=2048, block_size=16)
BLOCK = MIB - SCHEDULER_BYTES_PER_BLOCK  # with the scheduler's share, a block takes one MiB


def given(count: int) -> CacheConfig:
    return CacheConfig(kv_cache_memory_bytes=count)


def test_blocks_are_what_the_budget_leaves() -> None:
    sized = size_by_profile(PROFILE, CacheConfig(gpu_memory_utilization=0.75), LIMITS, BLOCK)
    assert (sized.num_blocks, sized.block_size, sized.bytes_per_block) == (960 - 300 - 70 - 10 - 60, 16, BLOCK)
    looking_up = replace(PROFILE, indexes=50 * MIB)
    assert size_by_profile(looking_up, CacheConfig(gpu_memory_utilization=0.75), LIMITS, BLOCK).num_blocks == 470
    assert "indexes of texts 50 MiB (--speculative-config)" in looking_up.describe(0.75)


@pytest.mark.parametrize(("budget", "each"), [(1024 * MIB, 32 * MIB), (64 * 1024 * MIB, 512 * MIB)])
def test_what_requests_may_hold_is_a_share_of_the_budget(budget: int, each: int) -> None:
    assert request_memory(budget) == RequestMemory(logprob_bytes=each, id_bytes=each)


def test_a_refusal_lists_every_part_with_its_number_and_its_flags() -> None:
    with pytest.raises(OutOfMemoryError) as refused:
        size_by_profile(PROFILE, CacheConfig(gpu_memory_utilization=0.25), LIMITS, BLOCK)
    for part in (
        "nothing is left for the KV cache: ",
        "choose a smaller model or dtype",
        "the budget is 320 MiB, 0.25 (--gpu-memory-utilization) of the 1.25 GiB that this process may use",
        "weights take 200 MiB (--model, --dtype, --quantization)",
        "the runtime 76 MiB",
        "the largest step 70 MiB (--max-num-batched-tokens, --max-num-seqs)",
        "the batch's state 10 MiB (--max-num-seqs, --max-model-len)",
        "token ids and log probabilities of requests 20 MiB (a sixteenth of the budget, at most 1.00 GiB)",
        "the reserve 24 MiB",
    ):
        assert part in str(refused.value)


def test_refusals_say_what_limits_the_memory() -> None:
    limit = "its address space is limited to 1.25 GiB"
    limited = replace(PROFILE, limit=limit)
    with pytest.raises(OutOfMemoryError, match=r"process may use \(its address space .*\); weights"):
        size_by_profile(limited, CacheConfig(gpu_memory_utilization=0.25), LIMITS, BLOCK)
    with pytest.raises(OutOfMemoryError, match=r"may use 1 MiB \(its address space"):
        require_room_for_angles(2 * MIB, 4096, MIB, limit)
    with pytest.raises(OutOfMemoryError, match=r"may use 1 MiB \(its address space"):
        require_room_for_weights(2 * MIB, "int8", MIB, limit)


@pytest.mark.parametrize(("prefix_caching", "factor"), [(False, 1), (True, 2)])
def test_never_more_than_the_batch_can_use(prefix_caching: bool, factor: int) -> None:
    cache = CacheConfig(enable_prefix_caching=prefix_caching)
    assert size_by_profile(PROFILE, cache, LIMITS, 1000).num_blocks == factor * 64 * (2048 // 16)


def test_refusal_names_the_numbers_the_flag_and_the_longest_that_fits() -> None:
    limits = BatchLimits(64, 512, 16 * 521, 16)
    with pytest.raises(OutOfMemoryError) as refused:
        size_by_profile(PROFILE, CacheConfig(gpu_memory_utilization=0.75), limits, BLOCK)
    text = str(refused.value)
    for part in ("max_model_len=8336", "521 blocks", "520 MiB", "960 MiB", "200 MiB", "--gpu-memory-utilization"):
        assert part in text
    assert "lower --max-model-len to at most 8320" in text
    fitting = BatchLimits(64, 512, 8320, 16)
    assert size_by_profile(PROFILE, CacheConfig(gpu_memory_utilization=0.75), fitting, BLOCK).num_blocks == 520


def test_a_size_that_was_given_is_taken_as_it_is() -> None:
    assert size_as_given(given(128 * BLOCK + 5), LIMITS, BLOCK).num_blocks == 128
    with pytest.raises(OutOfMemoryError, match=r"Raise --kv-cache-memory-bytes, or lower --max-model-len to .* 2032"):
        size_as_given(given(128 * BLOCK - 5), LIMITS, BLOCK)


WINDOWS = (KVCacheGroup((0, 1), sliding_window=48),)


def test_refusal_names_the_step_with_which_a_window_fits() -> None:
    """⌈(47 + step) / 16⌉ + 1 blocks for the window and the step, and 3 + 1 for the window behind the prompt."""
    limits = BatchLimits(64, 512, 1024, 16, WINDOWS)
    with pytest.raises(OutOfMemoryError) as refused:
        size_as_given(given(13 * BLOCK), limits, BLOCK)
    ways = "lower --max-num-batched-tokens to at most 81, or lower --max-model-len to at most 208."
    assert str(refused.value).endswith(f". Raise --kv-cache-memory-bytes, {ways}")
    for fitting in (replace(limits, max_num_batched_tokens=81), replace(limits, max_model_len=208)):
        assert size_as_given(given(13 * BLOCK), fitting, BLOCK).num_blocks == 13
    for larger in (replace(limits, max_num_batched_tokens=82), replace(limits, max_model_len=209)):
        with pytest.raises(OutOfMemoryError):
            size_as_given(given(13 * BLOCK), larger, BLOCK)


def test_refusal_names_no_step_that_other_options_forbid() -> None:
    limits = BatchLimits(64, 1024, 1024, 16, WINDOWS, min_batched_tokens=1024)
    with pytest.raises(OutOfMemoryError, match=r"Raise --kv-cache-memory-bytes, or lower --max-model-len to .* 208\.$"):
        size_as_given(given(13 * BLOCK), limits, BLOCK)


@pytest.mark.parametrize(
    ("block_size", "way"), [(16, "lower --block-size and --max-model-len"), (1, "choose a smaller --model or --dtype")]
)
def test_refusal_of_a_cache_without_any_block_names_what_makes_blocks_smaller(block_size: int, way: str) -> None:
    limits = BatchLimits(64, 512, 2048, block_size)
    with pytest.raises(OutOfMemoryError, match=rf"Raise --kv-cache-memory-bytes, or {way}\.$"):
        size_as_given(given(BLOCK - 1), limits, BLOCK)


def test_angles_larger_than_the_memory_are_refused_before_they_are_computed() -> None:
    require_room_for_angles(1 << 20, 4096, usable=1 << 20)
    with pytest.raises(OutOfMemoryError, match=r"takes 2\.00 GiB for max_model_len=8388608.*Lower --max-model-len"):
        require_room_for_angles(RopeParameters("default", 1e4, 64).nbytes(1 << 23), 1 << 23, usable=1 << 30)


STATE = 20 * MIB
STATEFUL = replace(LIMITS, keeps_states=True)


def test_states_share_the_budget_with_blocks() -> None:
    cache = CacheConfig(gpu_memory_utilization=0.75, state_cache_share=0.25)
    sized = size_by_profile(PROFILE, cache, STATEFUL, BLOCK, STATE)
    assert (sized.num_states, sized.bytes_per_state) == (520 // 4 // 20, STATE)
    assert sized.num_blocks == 520 - 6 * 20
    assert sized.nbytes == 400 * BLOCK + 6 * STATE
    assert size_by_profile(PROFILE, cache, LIMITS, BLOCK).num_states == 0
    assert describe_states(sized) == (
        "6 states of 20 MiB (--state-cache-share): those of running sequences, and snapshots that others continue from"
    )
    assert describe_states(size_by_profile(PROFILE, cache, LIMITS, BLOCK)) == ""


def test_a_model_without_attention_has_states_alone() -> None:
    limits = replace(STATEFUL, kv_cache_groups=())
    sized = size_by_profile(PROFILE, CacheConfig(gpu_memory_utilization=0.75), limits, 0, STATE)
    assert (sized.num_blocks, sized.num_states) == (0, 26)
    assert sized.describe() == "no keys and values, as no layer attends"
    assert size_by_profile(PROFILE, CacheConfig(), limits, 0, 1000).num_states == 4 * 64 + 10
    assert size_as_given(given(500 * STATE), limits, 0, STATE).num_states == 500


def test_a_size_that_was_given_is_shared() -> None:
    cache = replace(given(512 * BLOCK), state_cache_share=0.5)
    sized = size_as_given(cache, STATEFUL, BLOCK, 4 * BLOCK)
    assert (sized.num_blocks, sized.num_states) == (256, 64)
    assert size_as_given(cache, STATEFUL, 0, 4 * BLOCK).num_states == 128, "other ranks have the blocks"
    assert size_as_given(cache, STATEFUL, BLOCK, 0).num_blocks == 512, "other ranks have the states"


def test_refusal_names_the_bytes_of_a_state_and_the_flag() -> None:
    with pytest.raises(OutOfMemoryError) as refused:
        size_as_given(given(2 * STATE), STATEFUL, BLOCK, STATE)
    assert str(refused.value) == (
        "no sequence fits: the states of one take 20 MiB, and there must be room for 3, but --kv-cache-memory-bytes is "
        "41943040 (40 MiB). Raise --kv-cache-memory-bytes, or choose a smaller --model or --dtype."
    )
    with pytest.raises(OutOfMemoryError, match=r"states of one take 200 MiB, .* 520 MiB are left: .* Raise --gpu-mem"):
        size_by_profile(PROFILE, CacheConfig(gpu_memory_utilization=0.75), STATEFUL, BLOCK, 200 * MIB)


def test_refusal_of_the_longest_sequence_counts_the_states_beside_it() -> None:
    needed = 128 * BLOCK + 3 * STATE
    assert size_as_given(given(needed), STATEFUL, BLOCK, STATE).num_states == 3
    with pytest.raises(OutOfMemoryError, match=r"but 3 states take 60 MiB, and --kv-cache-memory-bytes is .* 2032\.$"):
        size_as_given(given(needed - 1), STATEFUL, BLOCK, STATE)


def test_an_encoder_keeps_the_inputs_of_its_steps_in_flight_whatever_the_memory() -> None:
    limits = replace(LIMITS, max_num_batched_tokens=2050, attends_both_ways=True)
    for steps in (1, 2):
        sized = size_by_profile(PROFILE, CacheConfig(), replace(limits, concurrent_steps=steps), 1000)
        assert sized.num_blocks == steps * (129 + 64)
    assert size_as_given(given(500 * BLOCK), limits, 1000).num_blocks == 129 + 64
    fewer_tokens_than_sequences = replace(limits, max_num_seqs=9999)
    assert size_by_profile(PROFILE, CacheConfig(), fewer_tokens_than_sequences, 1000).num_blocks == 129 + 2050
