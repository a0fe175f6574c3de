"""Options of ``LLM`` by name: where they go, what is taken for a value, and what is refused in which words."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from engine_core.config import EngineConfig
from engine_core.errors import ConfigError, UnknownOptionError
from engine_core.llm import configure
from services.common.config.options import settings_of

OF_FLAGS = {setting.name: setting for setting in settings_of(EngineConfig())}


def test_an_unknown_option_says_what_there_is_instead() -> None:
    for option, message in {
        "max_model_length": "unknown option max_model_length; did you mean max_model_len?",
        "enable_xyzzy": (
            "unknown option enable_xyzzy; engine_core/config.py and docs/reference/configuration.md list all options"
        ),
        "scheduling_policy": "scheduling_policy is called policy here",
        "num_gpu_blocks_override": (
            "num_gpu_blocks_override is not supported: kv_cache_memory_bytes sets the size of the KV cache"
        ),
    }.items():
        with pytest.raises(UnknownOptionError, match=f"^{re.escape(message)}$") as caught:
            configure(**{"model": "m", option: 5})
        assert (caught.value.option, caught.value.value) == (option, 5)
    with pytest.raises(ConfigError, match="data_parallel_size_local is not an option: data_parallel_size divides"):
        configure(model="m", data_parallel_size_local=1)


def test_an_option_of_vllm_that_changes_nothing_is_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="trust_remote_code has no effect: no code from a checkpoint is executed"):
        assert configure(model="m", trust_remote_code=True) == configure(model="m")
    assert configure(model="m", enable_lora=False, hf_overrides={}, cpu_offload_gb=0, swap_space=None) == configure(
        model="m"
    )
    with pytest.warns(UserWarning, match="convert has no effect"):
        configure(model="m", convert="none")
    with pytest.raises(ConfigError, match="convert='embed' is not an option: --runner pooling makes vectors"):
        configure(model="m", convert="embed")


def test_defaults_of_sampling_are_given_as_in_vllm() -> None:
    model = configure(model="m", generation_config="vllm", override_generation_config={"top_k": np.int64(3)}).model
    assert (model.generation_config, model.override_generation_config) == ("none", '{"top_k": 3}')
    speculation = configure(model="m", speculative_config={"method": "ngram", "num_speculative_tokens": np.int64(3)})
    assert speculation.scheduler.speculative_config == '{"method": "ngram", "num_speculative_tokens": 3}'
    for given, lengths in (({}, (2, 5)), ({"prompt_lookup_max": 1}, (1, 1)), ({"prompt_lookup_min": 8}, (8, 8))):
        found = configure(model="m", speculative_config={"method": "ngram", **given}).scheduler.speculation
        assert found is not None
        assert (found.prompt_lookup_min, found.prompt_lookup_max) == lengths


@pytest.mark.parametrize(
    ("given", "accepted"),
    [
        ("ngram", "a JSON object; this is none: Expecting value"),
        ("[]", 'a JSON object such as {"method": "ngram"}'),
        ({}, "as method one of ngram, draft_model, mtp, eagle3"),
        ({"method": "medusa"}, "as method one of ngram, draft_model, mtp, eagle3"),
        ({"method": "ngram", "tokens": 3}, "no 'tokens'; its fields are method, num_speculative_tokens, model"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens as an integer"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "num_speculative_tokens from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": 16}, "num_speculative_tokens of at most 15: a step has 16 rows"),
        ({"method": "draft_model"}, "a model, the drafting checkpoint, with the method draft_model"),
        ({"method": "mtp", "model": "m"}, "no model, with the method mtp"),
        ({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3}, "1 ≤ prompt_lookup_min ≤ prompt_lookup"),
        ({"method": "ngram", "prompt_lookup_min": 33}, "1 ≤ prompt_lookup_min ≤ prompt_lookup_max ≤ 32"),
        ({"method": "ngram", "prompt_lookup_scope": "all"}, "as prompt_lookup_scope one of request, tenant"),
    ],
)
def test_what_a_speculative_config_cannot_be_is_said(given: object, accepted: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configure(model="m", max_num_seqs=16, speculative_config=given)
    assert refused.value.option == "speculative_config"
    assert refused.value.accepted.startswith(accepted)


def test_weights_are_read_from_the_usual_files_whatever_vllm_calls_the_format() -> None:
    assert configure(model="m", load_format="mistral").load.load_format == "auto"
    assert configure(model="m", load_format="runai_streamer").load.load_format == "safetensors"
    with pytest.warns(UserWarning, match=r"config_format has no effect: config\.json is read"):
        configure(model="m", config_format="mistral")


def test_options_reach_their_sections() -> None:
    config = configure(model="m", block_size=32, max_num_seqs=3, load_format="dummy", num_threads=1)
    assert (config.model.model, config.cache.block_size, config.scheduler.max_num_seqs) == ("m", 32, 3)
    assert (config.load.load_format, config.device.num_threads) == ("dummy", 1)


def test_paths_and_numbers_of_numpy_are_options_too() -> None:
    config = configure(model=Path("m"), max_num_seqs=np.int64(3), gpu_memory_utilization=np.float64(0.5))
    assert config == configure(model="m", max_num_seqs=3, gpu_memory_utilization=0.5)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        configure(model="m", max_num_seqs=np.float64(3.0))
    with pytest.raises(ConfigError, match="max_num_seqs=a number of thousands of digits is not usable"):
        configure(model="m", max_num_seqs=10**5000)


@pytest.mark.parametrize(("given", "own"), [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16")])
def test_number_types_are_given_as_in_vllm(given: str, own: str) -> None:
    assert configure(model="m", dtype=given).model.dtype == own


def test_a_seed_is_that_of_random_weights() -> None:
    with pytest.warns(UserWarning, match="seed has no effect: it is that of random weights"):
        assert configure(model="m", seed=7).model.seed == 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configure(model="m", seed=7, load_format="dummy")
        configure(model="m")


# Options that count something, each with the least that it takes.
SIZES = [(each.name, each.minimum) for each in OF_FLAGS.values() if each.kind is int and each.minimum is not None]


@pytest.mark.filterwarnings("ignore:seed has no effect")
@pytest.mark.parametrize(("option", "least"), SIZES)
def test_an_option_refuses_what_is_no_number_of_its_range(option: str, least: int) -> None:
    configure(model="m", **{option: least})
    for value in (least - 1, float(least), f"{least} of them", True, [least]):
        with pytest.raises(ConfigError, match=f"^{option}=.* is not usable: expected "):
            configure(model="m", **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [("dtype", None), ("dtype", 4), ("gpu_memory_utilization", "0.9"), ("gpu_memory_utilization", float("nan"))],
)
def test_an_option_refuses_values_of_other_types(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{option}="):
        configure(model="m", **{option: value})


@pytest.mark.parametrize("text", ["1048576", "2GiB", "512 MiB", " 1.5gb ", "10B", "0.5KiB", "3TB"])
def test_sizes_are_read_as_flags_are(text: str) -> None:
    config = configure(model="m", kv_cache_memory_bytes=text)
    assert config.cache.kv_cache_memory_bytes == OF_FLAGS["kv_cache_memory_bytes"].parse(text) > 0


@pytest.mark.parametrize("text", ["", "GiB", "-1", "2 gigs", "1e9", "9" * 65])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^kv_cache_memory_bytes=.* is not usable: expected a number of bytes"):
        configure(model="m", kv_cache_memory_bytes=text)
