"""A model that drafts changes no token; and one that is the target itself proposes exactly what will be drawn."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig

from engine_core.errors import ConfigError
from engine_core.ops.base import Greatest
from engine_core.worker.drafters.drawer import FittedHead

from ...engines import StageDetails, speculating, started
from ...models.tiny_models import SIZES, make_model, save_model
from ...sampled_workload import WORKLOAD, Streams, streams
from ...test_forced_tokens import TINY, answers


def drafting_by(model: Path, count: int = 4) -> dict[str, object]:
    return {"method": "draft_model", "model": str(model), "num_speculative_tokens": count}


@pytest.fixture(scope="module")
def smaller(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama without its last layer."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    model.model.layers = model.model.layers[:-1]
    model.config.num_hidden_layers -= 1
    return save_model(model, tmp_path_factory.mktemp("smaller"))


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> Streams:
    with started(checkpoint) as engine:
        return streams(engine, NAMES)


LAYERS = ["conv", "full_attention"]
NAMES = [*WORKLOAD.prompts][:16]
SIZE: dict[str, object] = {"kv_cache_memory_bytes": 16 << 20, "num_threads": 1}
OPTIONS: dict[str, dict[str, object]] = {
    "alone": {},
    "chunks": {"max_num_batched_tokens": 64},
    "preemption": {"block_size": 4, "kv_cache_memory_bytes": 800_000},
    "overlapping": {"async_scheduling": True},
}


def cases(*always: str) -> list[Any]:
    """The ``OPTIONS``: ``always``, and those of the wide suite."""
    return [
        pytest.param(options, marks=() if name in always else pytest.mark.wide, id=name)
        for name, options in OPTIONS.items()
    ]


@pytest.mark.parametrize("options", cases("alone", "preemption"))
def test_the_target_drafts_for_itself_without_a_mistake(
    checkpoint: Path, expected: Streams, options: dict[str, object]
) -> None:
    """At every temperature, with penalties, top-k, top-p, bans, budgets of reasoning and rules against loops."""
    with speculating(checkpoint, drafting_by(checkpoint), **SIZE | options) as found:
        assert streams(found.engine, NAMES) == expected
    assert found.executor.accepted == found.executor.planned > 150


@pytest.mark.parametrize("options", cases("chunks", "overlapping"))
def test_drafts_of_another_model_change_nothing(
    checkpoint: Path, smaller: Path, expected: Streams, options: dict[str, object]
) -> None:
    with speculating(checkpoint, drafting_by(smaller, 3), **SIZE | options) as found:
        assert streams(found.engine, NAMES) == expected
    assert 10 < found.executor.accepted < found.executor.planned


def test_drafts_follow_grammars() -> None:
    """The bundled model drafts for itself: its drafts are masked as its tokens are."""
    with speculating(TINY, drafting_by(TINY), num_threads=1, max_model_len=200) as found:
        answers(found.engine)
    assert found.executor.accepted == found.executor.planned > 300


def varied(directory: Path, **fields: object) -> Path:
    """A tiny Llama that differs from the others."""
    return save_model(make_model(LlamaConfig(**(SIZES | fields))), directory)


def test_a_vocabulary_with_less_padding_fits(checkpoint: Path, expected: Streams, tmp_path: Path) -> None:
    """The same model without its last rows, for a target that draws from all of them."""
    target = tmp_path / "target"
    shutil.copytree(checkpoint, target)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    model.resize_token_embeddings(191, mean_resizing=False)
    drafting = save_model(model, tmp_path / "fewer")
    for each in (target, drafting):
        tokens = {"model": {"vocab": {f"t{number}": number for number in range(190)}}}
        (each / "tokenizer.json").write_text(json.dumps(tokens))
    with speculating(target, drafting_by(drafting), **SIZE) as found:
        assert streams(found.engine, NAMES) == expected
    assert found.executor.accepted > 0.6 * found.executor.planned > 100


class Logits:
    """A head whose hidden states are logits."""

    masks_argmax = True

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        raise AssertionError("it may name a token that the target lacks")


def test_tokens_that_one_of_two_models_lacks_are_not_drawn() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 9.0], [0.0, -1.0, -2.0, -3.0]])
    for vocab_size, kept in ((3, 3), (6, 4)):
        head = FittedHead(Logits(), vocab_size)
        assert head.logits(logits).shape == (2, vocab_size)
        assert torch.equal(head.logits(logits)[:, :kept], logits[:, :kept])
        assert head.logits(logits)[:, kept:].isneginf().all()
        assert head.greatest(logits).ids.tolist() == [1 if kept == 3 else 3, 0]


def test_drafts_end_with_the_drafting_models_context(checkpoint: Path, expected: Streams, tmp_path: Path) -> None:
    shorter = shutil.copytree(checkpoint, tmp_path / "shorter")
    config = json.loads((shorter / "config.json").read_text())
    (shorter / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 40}))
    with speculating(checkpoint, drafting_by(shorter), **SIZE) as found:
        assert streams(found.engine, NAMES) == expected
    assert found.executor.accepted == found.executor.planned > 20


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"num_hidden_layers": 4}, r"no larger than the target; \S+ has \d+,\d+ weights, the target \d+,"),
        ({"vocab_size": 200}, "vocabulary; one has 200 tokens and the other 199"),
    ],
)
def test_what_does_not_fit_the_target_is_refused(
    checkpoint: Path, fields: dict[str, object], problem: str, tmp_path: Path
) -> None:
    drafting = varied(tmp_path / "other", **({"num_hidden_layers": 1} | fields))
    with pytest.raises(ConfigError, match=problem) as refused, speculating(checkpoint, drafting_by(drafting)):
        pass
    assert refused.value.option == "speculative_config"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        ("gone", "one that can be used: .*config.json"),
        ("truncated", "one that can be used: .*model.safetensors"),
        ("nan", "is damaged: layer 1 of 0 … 1 puts out NaN"),
    ],
)
def test_a_damaged_model_is_refused(smaller: Path, checkpoint: Path, damage: str, problem: str, tmp_path: Path) -> None:
    drafting = tmp_path / damage
    if damage == "nan":
        model = AutoModelForCausalLM.from_pretrained(smaller)
        model.model.layers[1].mlp.up_proj.weight.data.fill_(torch.nan)
        save_model(model, drafting)
    else:
        shutil.copytree(smaller, drafting)
        weights = drafting / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
    if damage == "gone":
        (drafting / "config.json").unlink()
    with pytest.raises(ConfigError, match=problem) as refused, speculating(checkpoint, drafting_by(drafting)):
        pass
    assert refused.value.option == "speculative_config"


def test_a_model_with_states_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    hybrid = save_model(make_model(Lfm2Config(**(SIZES | {"num_hidden_layers": 2}), layer_types=LAYERS)), tmp_path)
    with (
        pytest.raises(ConfigError, match="Lfm2ForCausalLM keeps states, which cannot be taken back"),
        speculating(checkpoint, drafting_by(hybrid)),
    ):
        pass


def test_the_start_says_who_drafts_and_counts_it(checkpoint: Path, smaller: Path) -> None:
    said, alone = StageDetails(), StageDetails()
    sizes: dict[str, object] = {"num_threads": 1, "kv_cache_memory_bytes": None, "max_num_seqs": 8}
    with started(checkpoint, said=alone, **sizes) as engine:
        without = engine.executor.kv_cache_config.bytes_per_block
    config = json.dumps(drafting_by(smaller))
    with started(checkpoint, said=said, speculative_config=config, **sizes) as engine:
        assert engine.executor.kv_cache_config.bytes_per_block == without + without * 2 // 3  # two layers of three
    named = re.search(rf"; drafts by {smaller.name}, ([0-9.]+ \wiB)$", said.details["load weights"])
    assert named is not None
    assert f"those of the drafts {named[1]} (--speculative-config)" in said.details["profile"]
    assert "drafts" not in alone.details["load weights"] + alone.details["profile"]
