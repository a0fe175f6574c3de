"""``ringline plan``: the arithmetic holds at its edges, and grows the way that memory, speed and load do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from transformers import Qwen2Config

from services.cli import cli
from services.commands.plan import GPUS, MIN_CPU_TIERS, Demand, Impossible, Memory, Plan, plan_ring
from tests.ring import MODEL

MEMORY = Memory(usable=1000.0, weights=300.0, activations=50.0, runtime=50.0, per_token=1.0)
DEMAND = Demand(rate=1.0, input_len=40, output_len=20, max_gap=None)
HARDWARE = ("--memory-gb", "4", "--bandwidth-gbs", "57", "--tflops", "0.43")


def weights_and_cache(rows: float, sampled: float, seen: float, cached: float) -> float:
    """A step that takes 1 s for the weights, and 1 ms for each token whose keys and values it reads."""
    return 1.0 + cached / 1000


def planned(**changes: Any) -> Plan:
    options = {"max_num_seqs": 100, "headroom": 0.8, "memory": MEMORY, "demand": DEMAND} | changes
    memory, demand = options.pop("memory"), options.pop("demand")
    return plan_ring(weights_and_cache, memory, demand, **options)


def test_the_cache_bounds_the_sequences() -> None:
    assert MEMORY.tokens == 600
    plan = planned()
    assert (plan.bound, plan.capacity.sequences) == ("memory", 10)  # of 60 tokens each
    assert plan.capacity.gap == pytest.approx(1 + 10 * 50 / 1000)  # half of the output is there, on average
    assert plan.capacity.tokens == pytest.approx(10 / 1.5)
    assert planned(max_num_seqs=4).bound == "max_num_seqs"
    assert planned(max_num_seqs=4).capacity.sequences == 4


def test_engines_are_as_many_as_carry_the_load_with_room_to_spare() -> None:
    one = 10 / 1.5 * 0.8 / 20  # requests per second of an engine that has 0.8 of its work
    assert planned(demand=replace(DEMAND, rate=0.99 * one)).engines == 1
    assert planned(demand=replace(DEMAND, rate=1.01 * one)).engines == 2
    assert planned(demand=replace(DEMAND, rate=6.99 * one)).engines == 7


def test_the_expected_batch_is_the_least_that_keeps_up() -> None:
    for rate, engines, tokens in ((0.2, 1, 4.0), (0.5, 2, 5.0)):
        plan = planned(demand=replace(DEMAND, rate=rate))
        assert plan.engines == engines
        assert plan.expected.tokens >= tokens
        fewer = plan.expected.sequences - 1
        assert fewer / (1 + fewer * 0.05) < tokens


def test_a_gap_that_may_not_be_exceeded_bounds_the_sequences() -> None:
    plan = planned(demand=replace(DEMAND, max_gap=1.2))
    assert (plan.bound, plan.capacity.sequences) == ("max_gap", 4)
    assert plan.engines > planned().engines


def test_new_prompts_are_part_of_every_step() -> None:
    rows = []

    def note(*work: float) -> float:
        rows.append(work)
        return 1.0

    plan_ring(note, MEMORY, replace(DEMAND, rate=0.01), max_num_seqs=1, headroom=1.0)
    assert set(rows) == {(3.0, 1, 50 + 2 * 20, 50)}  # one token of the output, two of a prompt


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory": replace(MEMORY, weights=900.0)}, "the KV cache holds 0 tokens, one request has 60"),
        ({"demand": replace(DEMAND, max_gap=0.5)}, "one sequence alone takes"),
    ],
)
def test_what_no_number_of_engines_can_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Impossible, match=words):
        planned(**changes)


def test_cpu_tiers_grow_with_the_tokens() -> None:
    assert planned().processors == planned().detokenizers == MIN_CPU_TIERS
    assert planned(demand=replace(DEMAND, rate=10_000)).processors > MIN_CPU_TIERS


def test_a_model_is_planned_for() -> None:
    printed = ringline_plan(str(MODEL), *HARDWARE, "--rate", "10", "--json")
    figures = json.loads(printed)
    memory = figures["memory"]
    assert memory["weights"] == pytest.approx((MODEL / "model.safetensors").stat().st_size, rel=0.01)
    assert memory["usable"] == pytest.approx(3.6e9)
    assert memory["cache"] < memory["usable"] - memory["weights"]
    assert figures["engines"] == 1
    text = ringline_plan(str(MODEL), *HARDWARE, "--rate", "10")
    assert "needs      engines: 1, processors: 2, detokenizers: 2" in text


def test_int8_takes_half_of_the_weights_and_a_gpu_is_known_by_name() -> None:
    whole = json.loads(ringline_plan(str(MODEL), "--gpu", "h100", "--json"))
    rounded = json.loads(ringline_plan(str(MODEL), "--gpu", "h100", "--quantization", "int8", "--json"))
    assert whole["memory"]["usable"] == pytest.approx(0.9 * GPUS["h100"].memory)
    assert 0.5 <= rounded["memory"]["weights"] / whole["memory"]["weights"] < 0.52
    assert rounded["capacity"]["gap"] < whole["capacity"]["gap"]


def test_a_sliding_window_keeps_less_of_a_long_request(tmp_path: Path) -> None:
    """Half of the layers keep 64 of 256 tokens."""
    config = Qwen2Config(
        hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=512, dtype="bfloat16", architectures=["Qwen2ForCausalLM"],
        use_sliding_window=True, sliding_window=64, max_window_layers=2,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    load = (*HARDWARE, "--input-len", "192", "--output-len", "64", "--json")
    figures = json.loads(ringline_plan(str(tmp_path), *load))
    assert figures["memory"]["per_token"] == 2 * 2 * 2 * 16 * (2 + 2 * 64 / 256)


def test_a_request_that_the_model_does_not_take_is_refused() -> None:
    result = CliRunner().invoke(cli, ["plan", str(MODEL), "--gpu", "h100", "--input-len", "1000000"])
    assert result.exit_code != 0
    assert "a request has 1000000 + 128 tokens, and the model takes " in str(result.exception or result.output)


def test_hardware_that_is_not_said_is_asked_for() -> None:
    result = CliRunner().invoke(cli, ["plan", str(MODEL), "--memory-gb", "4"])
    assert result.exit_code == 2
    assert "--gpu, or --bandwidth-gbs, --tflops" in result.output


def ringline_plan(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
