"""What a model says of its layers' states, whole, cut down and in stages; and which ranks can share them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import Lfm2Config

from engine_core.distributed.ranks import Rank
from engine_core.errors import ConfigError
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec, RecurrentSpec, ShortConvSpec, StateSpec
from engine_core.model_loader.loader import model_outline
from engine_core.models.language_model import LanguageModel
from engine_core.models.model_config import ModelShape
from engine_core.models.roofline import StepCost
from engine_core.models.stage_work import work_of_layers
from tests.engine_core.models.driver import open_at
from tests.engine_core.models.tiny_models import SIZES

KINDS = ["conv", "full_attention", "conv", "full_attention", "conv"]
STATE = ShortConvSpec(64, 3)


def outline(directory: Path, kinds: list[str], rank: Rank | None = None) -> LanguageModel:
    sizes = SIZES | {"num_hidden_layers": len(kinds)}
    config = Lfm2Config(
        **sizes, layer_types=kinds, conv_L_cache=4, block_auto_adjust_ff_dim=False, architectures=["Lfm2ForCausalLM"]
    )
    config.save_pretrained(directory)
    return model_outline(open_at(directory, "dummy", dtype="float32"), rank)


def test_layers_have_caches_or_states(tmp_path: Path) -> None:
    model = outline(tmp_path, KINDS)
    assert model.cache_of_layers == (None, 0, None, 1, None)
    assert model.state_of_layers == (0, None, 1, None, 2)
    assert [group.layers for group in model.kv_cache_groups] == [(0, 1)]
    states = model.state_cache_spec
    assert states is not None
    assert (states.layers, states.bytes_per_state) == ((STATE,) * 3, 3 * 3 * 64 * 4)
    assert model.layers_by_kind() == [[0, 2, 4], [1, 3]]
    cut = model.with_layers([2])
    assert (cut.cache_of_layers, cut.state_of_layers, cut.kv_cache_groups) == ((None,), (0,), ())
    assert cut.kv_cache_spec(16).num_places == cut.kv_cache_spec(16).elements == 0
    attending = model.with_layers([3])
    assert (attending.cache_of_layers, attending.state_of_layers, attending.state_cache_spec) == ((0,), (None,), None)


def test_stages_have_their_own_layers_states(tmp_path: Path) -> None:
    """The groups stay the whole model's, so that all stages have the same block tables."""
    first, last = (outline(tmp_path, KINDS, Rank(pp=stage, pp_size=2)) for stage in range(2))
    assert len(first.stage_layers) + len(last.stage_layers) == 5
    kept = [spec for stage in (first, last) for spec in stage.state_cache_spec.layers]  # type: ignore[union-attr]
    assert kept == [STATE] * 3
    alone = outline(tmp_path, ["full_attention", "conv", "conv"], Rank(pp=1, pp_size=2))
    assert ([group.layers for group in alone.kv_cache_groups], alone.cache_of_layers) == ([()], (None,))


def test_a_step_reads_and_writes_states(tmp_path: Path) -> None:
    model = outline(tmp_path, KINDS)
    cost = StepCost.of_model(model, 4)
    assert (cost.state_bytes, cost.recurrence) == (3 * 3 * 64 * 4, 3 * 2 * 64 * 4)
    assert cost.kv_read == cost.kv_bytes == 2 * 2 * 2 * 16 * 4
    one, two = (cost.step(10, sampled, 0, 0) for sampled in (1, 2))
    assert two.read - one.read == pytest.approx(2 * cost.state_bytes)
    work = work_of_layers(model.config)
    assert work[0] - work[1] == 4 * 64 * 64 - 64 * 2 * (4 + 2) * 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(ModelShape):
    """One layer with a recurrence, none that attends."""

    state: StateSpec

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec | None, ...]:
        return (None,)

    @property
    def state_specs(self) -> tuple[StateSpec | None, ...]:
        return (self.state,)

    @property
    def state_fields(self) -> dict[str, str]:
        return {"num_heads": "linear_num_value_heads", "num_key_heads": "linear_num_key_heads", "channels": "width"}


def shape(state: StateSpec, intermediate_size: int = 512) -> Shape:
    return Shape(
        vocab_size=512,
        hidden_size=512,
        intermediate_size=intermediate_size,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=1024,
        max_position_embeddings=64,
        sliding_windows=(None,),
        state=state,
    )


@pytest.mark.parametrize(
    ("state", "ranks", "problem"),
    [
        (RecurrentSpec(4, 8, 16, 16, 3), 3, "=3 is not usable: expected a divisor of linear_num_value_heads=8$"),
        (RecurrentSpec(6, 12, 16, 16, 3), 4, "expected a divisor or a multiple of linear_num_key_heads=6$"),
        (ShortConvSpec(40, 3), 4, "expected at most 3, as width=40 is cut in units of 16$"),
    ],
)
def test_states_that_ranks_cannot_share_are_refused_by_name(state: StateSpec, ranks: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        shape(state).for_ranks(ranks)


def test_ranks_share_states() -> None:
    """Heads of keys are copied where there are fewer than ranks. A model without attention needs no heads for them."""
    spec = RecurrentSpec(2, 8, 16, 16, 3)
    whole, shared = shape(spec), shape(spec, intermediate_size=0).for_ranks(4)
    assert shared.rank_state_specs == (RecurrentSpec(1, 2, 16, 16, 3),)
    assert (whole.keeps_states, whole.caching_layers, whole.groups_of([])) == (True, (), ())
    assert whole.largest_head_dim == 0, "no kernel of attention has to compute it"
    assert not whole.has_plain_layers
    moved = 2 * (spec.nbytes(2) // 2) * 16
    assert work_of_layers(whole) == [512 * (spec.channels + 2 * 8 * 16) + moved + 3 * 512 * 512]


def test_layers_that_attend_are_plain_beside_others(tmp_path: Path) -> None:
    config = outline(tmp_path, KINDS).config
    assert config.has_plain_layers
    assert config.cache_specs == (None, AttentionSpec(2, 16), None, AttentionSpec(2, 16), None)
