"""Whole checkpoints into models: sharded, tied, dummy, and within the memory they need."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_core.distributed.ranks import Rank
from engine_core.errors import CheckpointError
from engine_core.model_loader.digest import RankDigest, WeightsDigest
from engine_core.model_loader.loader import WeightsOnDisk
from engine_core.models.causal_lm import CausalLM
from tests.engine_core.distributed.ranks import shared
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families import configuration
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

IDS = torch.arange(1, 30)


def test_sharded_equals_single(tmp_path: Path) -> None:
    model = make_model(CASES["qwen2-tied"])
    single, sharded = save_model(model, tmp_path / "1"), save_model(model, tmp_path / "n", max_shard_size="100KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 2
    assert torch.equal(logits_of(load(single), IDS), logits_of(load(sharded), IDS))


def test_progress_ends_at_the_bytes_of_the_checkpoint(tmp_path: Path) -> None:
    model = make_model(CASES["llama-gqa"])
    told: list[tuple[int, int]] = []
    checkpoint = open_at(save_model(model, tmp_path))
    build_model(checkpoint, on_progress=lambda done, total: told.append((done, total)))
    nbytes = sum(parameter.nbytes for parameter in model.parameters())
    assert told[-1] == (nbytes, nbytes)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_missing_and_unexpected_tensors_of_a_real_checkpoint(tmp_path: Path) -> None:
    save_model(make_model(CASES["qwen3-tied-head-dim"]), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.bias"] = torch.zeros(128)
    del tensors["model.layers.2.self_attn.k_norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path)
    assert "1 missing (model.layers.2.self_attn.k_norm.weight)" in str(caught.value)
    assert "1 unexpected (model.layers.1.self_attn.q_proj.bias)" in str(caught.value)


def test_known_redundant_tensors_are_passed_over_and_an_untied_head_is_not(tmp_path: Path) -> None:
    tied = make_model(CASES["qwen2-tied"])
    save_model(tied, tmp_path)
    expected = logits_of(load(tmp_path), IDS)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(logits_of(load(tmp_path), IDS), expected)
    for other in (tensors["lm_head.weight"] + 1, tensors["lm_head.weight"][1:], tensors["lm_head.weight"].bfloat16()):
        save_file(tensors | {"lm_head.weight": other.contiguous()}, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
            load(tmp_path)
    del tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 missing \(model\.embed_tokens\.weight\)"):
        load(tmp_path)


def test_opt_saved_without_a_head(tmp_path: Path) -> None:
    save_model(make_model(configuration("opt-norms-behind-projected-padded")), tmp_path)
    expected = logits_of(load(tmp_path), IDS)
    tensors = {name.removeprefix("model."): x for name, x in load_file(tmp_path / "model.safetensors").items()}
    assert all(name.startswith("decoder.") for name in tensors)
    save_file(tensors | {"decoder.version": torch.tensor([3.0])}, tmp_path / "model.safetensors")
    assert torch.equal(logits_of(load(tmp_path), IDS), expected)


def test_dummy_weights_follow_the_seed_and_read_no_file(tmp_path: Path) -> None:
    config = CASES["qwen3-mha-biases"].to_dict() | {"architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))

    def dummy_logits(seed: int) -> torch.Tensor:
        checkpoint = open_at(tmp_path, load_format="dummy", seed=seed)
        return logits_of(build_model(checkpoint), IDS)

    first = dummy_logits(0)
    assert first.isfinite().all()
    assert first.std() > 0.05
    assert torch.equal(first, dummy_logits(0))
    assert not torch.equal(first, dummy_logits(1))


def test_a_model_with_some_of_its_layers(tmp_path: Path) -> None:
    reference = make_model(CASES["llama-gqa"])
    model = load(save_model(reference, tmp_path / "all"))
    cut = model.one_layer_of_each_kind()
    assert (model.kv_cache_spec(16).num_places, cut.kv_cache_spec(16).num_places) == (3, 1)
    reference.model.layers = reference.model.layers[:1]
    with torch.no_grad():
        expected = reference(IDS[None]).logits[0]
    torch.testing.assert_close(logits_of(cut, IDS), expected, atol=2e-4, rtol=1e-4)


def test_a_table_stays_in_the_16_bits_in_which_it_is_stored(tmp_path: Path) -> None:
    """Its rows are those that a table in float32 would have."""
    reference = make_model(CASES["qwen3-mha-biases"]).bfloat16()
    directory = save_model(reference, tmp_path)
    model = load(directory, "float32")
    assert isinstance(model, CausalLM)
    weight = reference.get_input_embeddings().weight
    assert model.embed_tokens.nbytes == 2 * weight.numel()
    rows = model.embed_tokens(IDS)
    assert rows.dtype == torch.float32
    assert torch.equal(rows, weight[IDS].float())


@pytest.mark.parametrize("name", ["qwen2-tied", "phi3-window", "glm", "gpt_oss", "gemma4_text"])
def test_a_checkpoint_on_disk_has_the_digest_of_one_that_is_loaded(name: str, tmp_path: Path) -> None:
    checkpoint = open_at(save_model(make_model(configuration(name)), tmp_path))
    digest = WeightsDigest()
    build_model(checkpoint, digest=digest)
    assert WeightsOnDisk(checkpoint).digest(Event()) == checkpoint.digest(digest)


def test_what_a_rank_has_taken_of_another_checkpoint_is_named(tmp_path: Path) -> None:
    made = make_model(CASES["llama-gqa"])
    checkpoint = open_at(save_model(made, tmp_path / "ours"))
    with torch.no_grad():
        made.model.layers[1].mlp.down_proj.weight[40, 3] += 1
    other = open_at(save_model(made, tmp_path / "theirs"))
    differing = []
    for tp in range(2):
        digest = RankDigest()
        build_model(shared(other, 2), digest=digest, rank=Rank(tp, 2))
        differing.append(WeightsOnDisk(checkpoint).first_other(digest.taken))
        assert WeightsOnDisk(other).first_other(digest.taken) is None
    assert differing == [None, "model.layers.1.mlp.down_proj.weight"]  # the second rank has outputs 32 to 63


def test_ranks_take_all_rows_between_them_and_none_twice(tmp_path: Path) -> None:
    checkpoint = open_at(save_model(make_model(CASES["llama-mha-tied-biases"]), tmp_path))
    taken: dict[str, list[tuple[int, int]]] = {}
    for tp in range(2):
        digest = RankDigest()
        build_model(shared(checkpoint, 2), digest=digest, rank=Rank(tp, 2))
        for each in digest.taken:
            taken.setdefault(each.name, []).append((each.start, each.start + each.count))
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        if name.endswith(("norm.weight", "layernorm.weight")):
            assert taken[name] == [(0, tensor.nbytes)] * 2
        else:
            (start, middle), (after, end) = sorted(taken[name])
            assert (start, middle, end) == (0, after, tensor.nbytes), name
