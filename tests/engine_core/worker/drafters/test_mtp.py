"""The layer for multi-token prediction drafts what transformers computes with it, and changes no token."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine_core.errors import ConfigError
from engine_core.request import SamplingParams
from engine_core.worker.drafters.mtp import MtpDrafter

from ...engines import run, speculating, started
from ...executor.threaded_workers import ThreadedWorkers
from ...models.families import configuration
from ...models.greedy import assert_greedy
from ...models.mtp_models import NAMES, Reference, move_layer, save_truthful, save_with_mtp, with_layer
from ...models.tiny_models import make_model, save_model
from ...quantization.quantizing import save_quantized
from ...quantization.test_stored_formats import FORMATS
from ...quantization.test_stored_models import MODELS
from ...sampled_workload import WORKLOAD, streams

MTP = {"method": "mtp", "num_speculative_tokens": 3}
Proposals = list[tuple[list[int], list[int]]]
"""Known tokens of a sequence, and the drafts that follow them."""
QUICK = ("deepseek_v3", "qwen3_5_moe_text")
PROMPTS = {f"{length}": [(7 * length + 31 * place) % 196 + 3 for place in range(length)] for length in (1, 5, 37)}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


@pytest.fixture
def proposals(monkeypatch: pytest.MonkeyPatch) -> Proposals:
    """What is proposed in this process."""
    found: Proposals = []
    propose = MtpDrafter.propose

    def recording(drafter: MtpDrafter, wanted: Mapping[int, int]) -> dict[int, list[int]]:
        drafts = propose(drafter, wanted)
        found.extend((drafter._batch.known_token_ids(slot).tolist(), each) for slot, each in drafts.items())
        return drafts

    monkeypatch.setattr(MtpDrafter, "propose", recording)
    return found


def assert_drafts(reference: Reference, found: Proposals, start: int = 1) -> None:
    """Those of transformers, whose layer sees the tokens from ``start`` on."""
    for known, drafts in found:
        assert drafts == reference.drafts(torch.tensor(known), len(drafts), start)
    assert sum(len(drafts) for _, drafts in found) >= 10


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[] if each in QUICK else pytest.mark.models) for each in NAMES]
)
def test_drafts_are_those_of_transformers(name: str, proposals: Proposals, tmp_path: Path) -> None:
    """Of prompts in chunks, behind tokens of which the drafts were wrong."""
    reference = Reference(save_with_mtp(name, tmp_path))
    with speculating(tmp_path, MTP, max_num_batched_tokens=16) as found:
        proposals.clear()  # of the warm-up
        outcomes = run(found.engine, PROMPTS, dict.fromkeys(PROMPTS, GREEDY))
    for prompt, ids in PROMPTS.items():
        assert_greedy(reference.model, ids, outcomes[prompt, 0].token_ids)
    assert_drafts(reference, proposals)


@pytest.mark.models
@pytest.mark.parametrize(
    ("model", "name"), [("deepseek-v3", "deepseek-fp8"), ("qwen3-next", "awq"), ("qwen3.5", "nf4")]
)
def test_so_they_are_if_the_checkpoint_is_quantized(
    model: str, name: str, proposals: Proposals, tmp_path: Path
) -> None:
    quantized = save_quantized(with_layer(MODELS[model]), FORMATS[name], tmp_path, torch.float32)
    reference = Reference(move_layer(tmp_path / "expanded"))
    with speculating(move_layer(quantized), MTP) as found:
        proposals.clear()
        run(found.engine, PROMPTS, dict.fromkeys(PROMPTS, GREEDY))
    assert_drafts(reference, proposals)


@pytest.mark.models
def test_without_the_prefix_that_the_cache_has_they_see_what_follows(proposals: Proposals, tmp_path: Path) -> None:
    reference = Reference(save_with_mtp("glm4_moe", tmp_path))
    with speculating(tmp_path, MTP) as found:
        params = {"37": replace(GREEDY, max_tokens=24)}
        run(found.engine, {"37": PROMPTS["37"]}, params)
        proposals.clear()
        outcomes = run(found.engine, {"37": PROMPTS["37"]}, params)
        assert outcomes["37", 0].cached_tokens == 32
    assert_drafts(reference, proposals, start=33)


@pytest.fixture(scope="module")
def truthful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_truthful(tmp_path_factory.mktemp("truthful"))


LITTLE_CACHE: dict[str, object] = {"block_size": 4, "kv_cache_memory_bytes": 150_000, "max_model_len": 128}
OPTIONS: dict[str, dict[str, object]] = {
    "overlapping preemption": LITTLE_CACHE | {"async_scheduling": True},
    "chunks": {"max_num_batched_tokens": 64, "max_num_seqs": 32},
    "preemption": LITTLE_CACHE,
    "rounded at load": {"quantization": "int8"},
    "tensor parallel": {"tensor_parallel_size": 2},
    "stages": {"pipeline_parallel_size": 2},
    "stages of ranks": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
}
MARKS = {
    "overlapping preemption": (),
    **dict.fromkeys(("chunks", "preemption", "rounded at load"), (pytest.mark.wide,)),
    **dict.fromkeys(("tensor parallel", "stages", "stages of ranks"), (pytest.mark.distributed,)),
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=marks) for way, marks in MARKS.items()])
def test_drafts_change_nothing(truthful: Path, way: str) -> None:
    """At every temperature, with all that changes logits; drafts are right often, but not always."""
    options, names = OPTIONS[way], list(WORKLOAD.prompts)[:: 1 if MARKS[way] else 5]
    with started(truthful, quantization=options.get("quantization")) as engine:
        expected = streams(engine, names)
    workers = ThreadedWorkers if MARKS[way] == (pytest.mark.distributed,) else None
    with speculating(truthful, MTP, workers, num_threads=1, **options) as found:
        assert streams(found.engine, names) == expected
        assert 0.3 < found.executor.accepted / found.executor.planned < 0.95
        assert bool(found.engine.core.stats().preemptions) == ("preemption" in way)


@pytest.mark.parametrize(
    ("name", "problem"),
    [("qwen3-tied-head-dim", "Qwen3ForCausalLM has no such layer"), ("deepseek_v3", "no model.layers.3.hnorm.weight")],
)
def test_a_checkpoint_without_the_layer_is_refused(name: str, problem: str, tmp_path: Path) -> None:
    save_model(make_model(configuration(name)), tmp_path)
    with (
        pytest.raises(ConfigError, match=rf"speculative_config.*{problem}"),
        started(tmp_path, speculative_config=json.dumps(MTP)),
    ):
        pass
