"""Stages of a model: what each of them has, and that together they compute the bits of one process."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, OPTConfig, PretrainedConfig, Qwen3MoeConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_core.distributed.ranks import cut_layers
from engine_core.errors import ConfigError
from engine_core.models.language_model import StagedModel
from engine_core.worker.input_batch import BatchLimits
from engine_core.worker.self_test import is_bitwise_stable
from tests.engine_core.models.driver import BLOCK_SIZE, CPU, Driver, build_model, chosen_attention, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.stages import Pipeline, load_stages
from tests.engine_core.models.tiny_models import SIZES, make_model, save_model

OPT = {
    "hidden_size": 84,
    "num_attention_heads": 6,
    "ffn_dim": 230,
    "num_hidden_layers": 3,
    "vocab_size": 131,
    "init_std": 0.2,
}
CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**(SIZES | {"num_hidden_layers": 4})),
    "tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "experts": Qwen3MoeConfig(
        **SIZES, head_dim=16, moe_intermediate_size=48, num_experts=7, num_experts_per_tok=3, decoder_sparse_step=2
    ),
    "opt": OPTConfig(**OPT, do_layer_norm_before=True),
    "opt-projected": OPTConfig(**OPT, word_embed_proj_dim=40, do_layer_norm_before=False),
    "gemma4": configuration("gemma4_text-plain"),
    "gemma4-shared-per-layer": configuration("gemma4_text"),
    "gemma4-everything": configuration("gemma4_text-everything-padded"),
    "mamba": configuration("granitemoehybrid-mamba-experts-rotation-biases-limits-tied-padded"),
    "mamba-alone": configuration("mamba2"),
    "one-block-each": configuration("nemotron_h-latents-groups-biases-limits-mqa-padded"),
    "delta-net": configuration("qwen3_5_text"),
    "delta-net-padded": configuration("qwen3_next-some-dense-biases-tied-padded"),
}
TWO_AT_MOST = {"gemma4-shared-per-layer"}
"""Too few layers come before those whose caches others share."""
CASES = [(name, stages) for name in CONFIGS for stages in (2, 3) if stages == 2 or name not in TWO_AT_MOST]


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    directory = tmp_path_factory.mktemp(request.param)
    return request.param, save_model(make_model(CONFIGS[request.param]), directory)


def _logits(driver: Driver) -> list[torch.Tensor]:
    """Of two sequences whose prompts come in chunks, and that then are decoded together."""
    ids = [(torch.arange(length) * 7919 + length) % 131 for length in (75, 40)]
    logits = driver.step([(0, ids[0][:33])])
    logits += driver.step([(1, ids[1][:30]), (0, ids[0][33:70])])
    for at in range(5):
        logits += driver.step([(0, ids[0][70 + at : 71 + at]), (1, ids[1][30 + at : 31 + at])], last_alone=True)
    return logits


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        *(pytest.param(other, marks=pytest.mark.wide) for other in ({"dtype": "float32"}, {"quantization": "int8"})),
    ],
    ids=str,
)
@torch.inference_mode()
def test_stages_compute_the_bits_of_one_process(checkpoint: tuple[str, Path], options: dict[str, str]) -> None:
    name, directory = checkpoint
    opened = open_at(directory, **options)
    whole = _logits(Driver(build_model(opened), [80, 60]))
    assert all(each.isfinite().all() for each in whole)
    for stages in (2, 3):
        if stages == 3 and name in TWO_AT_MOST:
            continue
        pipeline = Pipeline(load_stages(opened, stages))
        parts = _logits(Driver(pipeline, [80, 60], attention=pipeline))  # type: ignore[arg-type]
        assert all(torch.equal(one, other) for one, other in zip(whole, parts, strict=True))


def save_config(name: str, directory: Path) -> None:
    """As a model that is saved names its class."""
    config = copy.deepcopy(CONFIGS[name])
    config.architectures = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[config.model_type]]
    config.save_pretrained(directory)


def test_a_stage_is_profiled_and_tested_by_itself(checkpoint: tuple[str, Path]) -> None:
    """As ``CpuPlatform.profile`` and the self-test do, with one layer of each kind."""
    opened = open_at(checkpoint[1], dtype="bfloat16")
    limits = BatchLimits(4, 64, 64, BLOCK_SIZE, opened.config.groups_of(opened.config.caching_layers))
    for stage in load_stages(opened, 2):
        assert is_bitwise_stable(stage.one_layer_of_each_kind(), chosen_attention(), limits, CPU)
        for indices in stage.layers_by_kind():
            one = stage.with_layers(indices[:1])
            states = [] if one.state_cache_spec is None else one.state_cache_spec.allocate(1, CPU)
            kept = (opened.config.cache_specs[indices[0]], opened.config.state_specs[indices[0]])
            caches = chosen_attention().allocate(one.kv_cache_spec(BLOCK_SIZE), 1, CPU)
            assert [len(caches), len(states)] == [each is not None for each in kept]


def _made_up(stage: StagedModel, ids: list[int]) -> torch.Tensor:
    return stage.first_input(torch.tensor(ids), torch.arange(len(ids))).hidden


def test_what_a_stage_alone_makes_up_depends_on_each_rows_id(tmp_path: Path) -> None:
    save_config("llama", tmp_path)
    stage = load_stages(open_at(tmp_path, load_format="dummy"), 2)[1]
    hidden = _made_up(stage, [5, 9, 5])
    assert torch.equal(hidden[0], hidden[2])
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[1:2], _made_up(stage, [9]))
    assert 0.1 < hidden.std() < 1.0


@pytest.mark.parametrize(
    ("owners", "stages", "lengths"),
    [
        (range(8), 1, [8]),
        (range(8), 2, [4, 4]),
        (range(8), 3, [3, 3, 2]),
        (range(3), 3, [1, 1, 1]),
        (range(3), 4, None),
        ([0, 1, 2, 1, 1, 2], 2, [1, 5]),
        ([0, 1, 2, 1, 1, 2], 3, None),
        ([0, 0, 0, 3, 4, 4, 6], 3, [3, 3, 1]),
        ([0, 0, 0, 0], 1, [4]),
        ([0, 0, 0, 0], 2, None),
    ],
)
def test_layers_are_cut_as_evenly_as_shared_caches_allow(
    owners: list[int], stages: int, lengths: list[int] | None
) -> None:
    ranges = cut_layers(owners, stages)
    assert (ranges and [len(each) for each in ranges]) == lengths
    if ranges is not None:
        assert [layer for each in ranges for layer in each] == list(range(len(owners)))
        assert all(owners[layer] in each for each in ranges for layer in each)


def test_the_head_is_work_of_the_last_stage() -> None:
    """The shape of Qwen3-0.6B, whose head has the weights of ten layers."""
    for stages, lengths in ((2, [19, 9]), (3, [13, 12, 3])):
        ranges = cut_layers(range(28), stages, [157] * 28, 1556)
        assert ranges is not None
        assert [len(each) for each in ranges] == lengths


def test_most_layers_in_most_stages_are_cut_at_once() -> None:
    ranges = cut_layers(range(1000), 64)
    assert ranges is not None
    assert {len(each) for each in ranges} == {15, 16}


@pytest.mark.parametrize(
    ("name", "stages", "message"),
    [
        ("llama", 5, "pipeline_parallel_size=5: expected at most 4: the model has 4 layers"),
        (
            "gemma4-shared-per-layer",
            3,
            "at most 2: the model has 6 layers, 3 of which attend over the caches of earlier",
        ),
    ],
)
def test_more_stages_than_layers_allow_are_refused(name: str, stages: int, message: str, tmp_path: Path) -> None:
    save_config(name, tmp_path)
    with pytest.raises(ConfigError) as refused:
        open_at(tmp_path, load_format="dummy").config.stage_layers(stages)
    assert message.split(": ", 1)[-1] in str(refused.value)
