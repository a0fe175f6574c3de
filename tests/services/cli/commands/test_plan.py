"""``ringline plan``: the arithmetic holds at its edges, and grows the way that memory, speed and load do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file
from transformers import (
    DeepseekV2Config,
    GptOssConfig,
    Lfm2Config,
    LlamaConfig,
    MixtralConfig,
    OlmoConfig,
    PretrainedConfig,
)

from engine_core.kv_cache_interface import group_layers
from engine_core.llm import LLM
from engine_core.model_loader.loader import make_model
from services.cli.commands._capacity import MIN_CPU_TIERS, Demand, Impossible, Memory, Plan, blocks_of, plan_ring
from services.cli.commands._memory_estimate import blocks_per_sequence
from services.cli.commands.plan import GPUS
from services.cli.main import cli
from services.common.config.errors import ExitCode, FatalError
from tests.doors.pooling_models import write_embedder
from tests.engine_core.models import tiny_models
from tests.engine_core.models.driver import CPU, chosen_attention, layers_of, open_at
from tests.engine_core.models.eagle3_heads import make_head
from tests.engine_core.models.mtp_models import save_with_mtp
from tests.engine_core.scheduling.harness import Harness
from tests.ring import MODEL

MEMORY = Memory(
    usable=1000.0,
    weights=280.0,
    angles=20.0,
    activations=50.0,
    runtime=50.0,
    block=15,
    sequence_blocks=4,
    prompt_blocks=4,
)
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
    assert MEMORY.blocks == 40
    plan = planned()
    assert (plan.bound, plan.capacity.sequences) == ("memory", 10)  # of 4 blocks each
    assert plan.capacity.gap == pytest.approx(1 + 10 * 50 / 1000)  # half of the output is there, on average
    assert plan.capacity.tokens == pytest.approx(10 / 1.5)
    assert planned(max_num_seqs=4).bound == "max_num_seqs"
    assert planned(max_num_seqs=4).capacity.sequences == 4


def test_prompts_that_are_computed_take_more_of_the_cache() -> None:
    memory = replace(MEMORY, prompt_blocks=14)
    assert planned(memory=memory).capacity.sequences == 7  # one computes its prompt
    assert planned(memory=memory, demand=replace(DEMAND, output_len=2)).capacity.sequences == 4  # every other one does
    assert planned(memory=memory, demand=replace(DEMAND, input_len=50_000)).capacity.sequences == 2  # all do: 25 steps


@pytest.mark.parametrize("windows", [[None], [48], [48, None], [20, 70, None]])
@pytest.mark.parametrize(("input_len", "output_len"), [(100, 60), (100, 12), (300, 40)])
def test_an_engine_runs_as_many_sequences_as_planned(
    windows: list[int | None], input_len: int, output_len: int
) -> None:
    """Of a cache made for twelve, the scheduler has at least twelve at a time, and few more."""
    demand = replace(DEMAND, input_len=input_len, output_len=output_len)
    decoding, prompt = blocks_per_sequence(group_layers(windows), demand, block_size=16, step_tokens=2048)
    blocks = blocks_of(replace(MEMORY, sequence_blocks=decoding, prompt_blocks=prompt), demand, 12)
    longest = input_len + output_len
    engine = Harness(
        windows=windows,
        blocks=blocks,
        block_size=16,
        max_model_len=longest,
        max_num_batched_tokens=512,
        max_num_seqs=40,
    )
    for number in range(40):
        engine.add(f"{number}", input_len, max_tokens=output_len)
    running = []
    while engine.scheduler.stats().waiting_seqs:
        engine.step()
        running.append(len(engine.batch))
    assert 12 <= max(running) <= 15


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
        (
            {"memory": replace(MEMORY, weights=9e10)},
            r"weights \(90 GB\), angles \(20 bytes\), largest step \(50 bytes\) and runtime \(50 bytes\) take 90 GB, "
            r"and an engine gets 1 kB: divide the model among ranks \(--tensor-parallel-size, "
            r"--pipeline-parallel-size\), or raise --memory-gb or --memory-share$",
        ),
        (
            {"memory": replace(MEMORY, prompt_blocks=41)},
            r"one request takes 615 bytes of KV cache, and 600 bytes are left for it: divide the model among ranks "
            r"\(--tensor-parallel-size, --pipeline-parallel-size\), raise --memory-gb or --memory-share, or lower "
            r"--input-len or --output-len$",
        ),
        (
            {"memory": replace(MEMORY, weights=9e10), "rank": "tp0/2 pp0/1"},
            r"^on rank tp0/2 pp0/1, weights \(90 GB\), .* take 90 GB, and it gets 1 kB: divide the model among more "
            r"ranks \(--tensor-parallel-size, ",
        ),
        (
            {"memory": replace(MEMORY, prompt_blocks=41), "rank": "tp0/2 pp0/1"},
            r"^on rank tp0/2 pp0/1, one request takes 615 bytes .*: divide the model among more ranks ",
        ),
        (
            {"demand": replace(DEMAND, max_gap=0.5)},
            "one sequence alone takes 1,050 ms from token to token: raise --max-gap-ms$",
        ),
    ],
)
def test_what_no_number_of_engines_can_do_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(Impossible, match=words):
        planned(**changes)


def test_slots_for_states_bound_the_sequences() -> None:
    """Two of them are left free and a quarter for snapshots, and what they take is not there for blocks."""
    assert planned(memory=replace(MEMORY, state=20, states=9)).capacity.sequences == 5
    assert planned(memory=replace(MEMORY, state=20, states=18)).capacity.sequences == 4
    alone = replace(MEMORY, block=0, sequence_blocks=0, prompt_blocks=0, state=20, states=30)
    assert (planned(memory=alone).bound, planned(memory=alone).capacity.sequences) == ("memory", 21)
    assert planned(memory=replace(MEMORY, block=0)).capacity.sequences == 100, "other ranks have the blocks"
    with pytest.raises(
        Impossible, match=r"needs room for 3 states of 290 bytes beside the 60 bytes of its KV cache, and"
    ):
        planned(memory=replace(MEMORY, state=290))


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
    on_gpu = json.loads(ringline_plan(str(MODEL), "--gpu", "h100", "--json"))
    assert on_gpu["memory"]["usable"] == pytest.approx(0.9 * GPUS["h100"].memory)
    whole = json.loads(ringline_plan(str(MODEL), *HARDWARE, "--json"))
    rounded = json.loads(ringline_plan(str(MODEL), *HARDWARE, "--quantization", "int8", "--json"))
    assert 0.5 <= rounded["memory"]["weights"] / whole["memory"]["weights"] < 0.52
    assert rounded["expected"]["gap"] < whole["expected"]["gap"]


def test_4_bits_take_less_in_larger_groups() -> None:
    """Of a number 4 bits, and of a group 2 bytes; the norms stay as they are."""
    arguments = (str(MODEL), *HARDWARE, "--quantization", "int4")
    of_32 = json.loads(ringline_plan(*arguments, "--json"))
    of_128 = json.loads(ringline_plan(*arguments, "--quantization-group-size", "128", "--json"))
    bits = [8 * each["memory"]["weights"] / each["model"]["weights"] for each in (of_32, of_128)]
    assert 4.6 < bits[0] < 4.75
    assert 4.2 < bits[1] < 4.4
    assert "int4 in groups of 128" in of_128["model"]["kept_as"]


def test_a_family_that_only_transformers_has_is_planned_for(tmp_path: Path) -> None:
    """A Llama is one, where the option says so."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
    llama = LlamaConfig(**sizes, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    llama.save_pretrained(tmp_path / "llama")
    own, through = (
        json.loads(ringline_plan(str(tmp_path / "llama"), *HARDWARE, "--json", "--model-impl", impl))
        for impl in ("ringline", "transformers")
    )
    kept = ("weights", "block", "sequence_blocks", "prompt_blocks")
    assert [through["memory"][figure] for figure in kept] == [own["memory"][figure] for figure in kept]
    assert through["memory"]["cache"] == pytest.approx(own["memory"]["cache"], rel=0.001)  # it has no table of angles
    assert through["model"]["active_weights"] == own["model"]["active_weights"]
    olmo = OlmoConfig(**sizes, architectures=["OlmoForCausalLM"], dtype="bfloat16")
    olmo.save_pretrained(tmp_path / "olmo")
    assert json.loads(ringline_plan(str(tmp_path / "olmo"), *HARDWARE, "--json"))["memory"]["weights"] > 1e6


def test_what_each_rank_takes_is_told() -> None:
    """Of four query heads and two of keys and values: half on each of two ranks, one of each where there are four."""
    load = (str(MODEL), *HARDWARE, "--json")
    one = json.loads(ringline_plan(*load))
    assert [*one["ranks"].values()] == [one["memory"]]
    two = json.loads(ringline_plan(*load, "--tensor-parallel-size", "2"))
    four = json.loads(ringline_plan(*load, "--tensor-parallel-size", "4"))
    assert [*two["ranks"]] == ["tp0/2 pp0/1", "tp1/2 pp0/1"]
    assert two["total_ranks"] == 2 * two["engines"]
    for rank in two["ranks"].values():
        assert 1 / 2 <= rank["weights"] / one["memory"]["weights"] < 1.01 / 2
        assert rank["block"] == one["memory"]["block"] / 2
    assert {rank["block"] for rank in four["ranks"].values()} == {one["memory"]["block"] / 2}  # replicated
    assert two["model"] == one["model"], "the model stays one"
    assert two["capacity"]["gap"] < one["capacity"]["gap"]
    text = ringline_plan(*load[:-1], "--tensor-parallel-size", "2")
    assert "needs      engines: 1, each of 2 ranks (2 ranks in all), processors: 2" in text
    assert "\nranks      each of 2 ranks: weights 2.71 MB, KV cache " in text
    assert "\nrank       tp0/2 pp0/1, 3.6 GB: weights 2.71 MB, " in text
    busy = ("--tensor-parallel-size", "2", "--pipeline-parallel-size", "3")
    gpus = (str(MODEL), "--gpu", "h100", "--rate", "1e4", *busy)
    text, engines = ringline_plan(*gpus), json.loads(ringline_plan(*gpus, "--json"))["engines"]
    assert engines > 1
    assert f"needs      engines: {engines}, each of 6 ranks ({6 * engines} GPUs in all), " in text
    assert "ranks      each of 2 ranks, the first of them tp0/2 pp0/3: weights " in text
    assert "; each of 2 ranks, the first of them tp0/2 pp2/3: weights " in text


def test_the_tightest_rank_decides() -> None:
    """Of five layers the first stage has three; each stage has the table, as embedding or as head."""
    figures = json.loads(ringline_plan(str(MODEL), *HARDWARE, "--json", "--pipeline-parallel-size", "2"))
    first, last = figures["ranks"].values()
    assert first["block"] == last["block"] * 3 / 2
    assert first["weights"] > last["weights"]
    assert figures["memory"] == first
    text = ringline_plan(str(MODEL), *HARDWARE, "--pipeline-parallel-size", "2")
    assert "\nranks      tp0/1 pp0/2: weights " in text
    assert "; tp0/1 pp1/2: weights " in text
    assert "\nrank       tp0/1 pp0/2, 3.6 GB: " in text


def test_no_hardware_is_faster_than_the_engines_own_work() -> None:
    endless = ("--memory-gb", "8", "--bandwidth-gbs", "1e9", "--tflops", "1e9", "--rate", "0.001", "--json")
    found = json.loads(ringline_plan(str(MODEL), *endless))
    assert found["expected"]["gap"] == pytest.approx(0.1e-3 + 0.03e-3, rel=0.01)
    assert found["capacity"]["gap"] == pytest.approx(0.1e-3 + 256 * 0.03e-3, rel=0.01)


@pytest.mark.parametrize("experts", [1, 16])
def test_stages_do_not_make_a_single_stream_faster(experts: int, tmp_path: Path) -> None:
    """A token goes through all stages one after the other, and reads of each layer what it is routed to, not less."""
    config = MixtralConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=experts, num_experts_per_tok=1, max_position_embeddings=512,
        pad_token_id=0, dtype="bfloat16", architectures=["MixtralForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    load = (str(tmp_path), *HARDWARE, "--input-len", "64", "--output-len", "64", "--rate", "0.001", "--json")
    one, eight = (json.loads(ringline_plan(*load, "--pipeline-parallel-size", stages)) for stages in ("1", "8"))
    assert one["expected"]["sequences"] == eight["expected"]["sequences"] == 1
    assert eight["expected"]["gap"] == one["expected"]["gap"]
    assert eight["expected"]["gap"] > 2 * one["model"]["active_weights"] / 57e9
    assert eight["capacity"]["tokens"] > one["capacity"]["tokens"], "many streams fill all stages"


def test_ranks_may_have_whole_experts(tmp_path: Path) -> None:
    """Of three, one rank has two."""
    experts = MixtralConfig(
        vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=3, num_experts_per_tok=1, max_position_embeddings=512, pad_token_id=0,
        dtype="bfloat16", architectures=["MixtralForCausalLM"],
    )  # fmt: skip
    experts.save_pretrained(tmp_path)
    load = (str(tmp_path), *HARDWARE, "--input-len", "64", "--tensor-parallel-size", "2", "--json")
    parts, whole = (
        [rank["weights"] for rank in json.loads(ringline_plan(*load, *flags))["ranks"].values()]
        for flags in ((), ("--enable-expert-parallel",))
    )
    expert = 3 * 64 * 96 * 2
    assert parts[0] == parts[1]
    assert sorted(whole) == [parts[0] - expert, parts[0] + expert]  # half an expert in each of two layers


@pytest.mark.parametrize(
    ("flags", "accepted"),
    [
        (("--tensor-parallel-size", "3"), "a divisor of num_attention_heads=4"),
        (("--pipeline-parallel-size", "6"), "at most 5: the model has 5 layers"),
    ],
)
def test_sizes_that_an_engine_refuses_are_refused(flags: tuple[str, str], accepted: str) -> None:
    result = CliRunner().invoke(cli, ["plan", str(MODEL), *HARDWARE, *flags])
    assert isinstance(result.exception, FatalError)
    assert str(result.exception) == f"{flags[0]}={flags[1]} is not usable: expected {accepted}"
    assert result.exception.code == ExitCode.USAGE


def test_experts_windows_and_the_groups_of_the_cache_are_told(tmp_path: Path) -> None:
    """One of six layers has a window; each has four experts, of which a token meets one.

    The window keeps 32 tokens, in three blocks, and one more to go on; and the prompt while it is computed.
    """
    config = GptOssConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=1, sliding_window=32,
        max_position_embeddings=512, dtype="bfloat16", architectures=["GptOssForCausalLM"],
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        layer_types=["sliding_attention", *5 * ["full_attention"]],
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    load = (*HARDWARE, "--input-len", "192", "--output-len", "64")
    figures = json.loads(ringline_plan(str(tmp_path), *load, "--json"))
    model, memory, token = figures["model"], figures["memory"], 2 * 2 * 16 * 2  # two heads of 16, in bfloat16
    assert (memory["sequence_blocks"], memory["prompt_blocks"]) == (5 * 16 + 3 + 1, 5 * 16 + 12)
    assert memory["block"] == 16 * token
    assert memory["blocks"] == memory["cache"] // memory["block"]
    assert model["token"] == 6 * token
    assert model["groups"] == [
        {"layers": 1, "sliding_window": 32, "token": token},
        *[{"layers": 1, "sliding_window": None, "token": token}] * 5,
    ]
    expert = 3 * 64 * 96 + 2 * 96 + 64
    assert model["weights"] - model["active_weights"] == 6 * 3 * expert + 200 * 64 + 64  # embeddings, last norm
    assert memory["angles"] == 512 * 16 * 4
    assert memory["weights"] == 2 * model["weights"]
    text = ringline_plan(str(tmp_path), *load)
    assert "(172 kB for a sequence of this load, 188 kB while its prompt is computed)" in text
    assert "KV cache of a token: 768 bytes (1 layer, window 32: 128 bytes; 5 groups of 1 layer: 128 bytes each)" in text


def test_states_are_told_beside_the_cache(tmp_path: Path) -> None:
    """Of 128 channels two inputs each, in four layers; 18 slots are of use to two sequences."""
    kinds = ["conv", "conv", "full_attention", "conv", "conv", "full_attention"]
    sizes = {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4}
    lfm2 = Lfm2Config(**sizes, num_key_value_heads=2, layer_types=kinds, vocab_size=500, dtype="bfloat16")
    lfm2.architectures = ["Lfm2ForCausalLM"]
    lfm2.save_pretrained(tmp_path)
    load = (str(tmp_path), *HARDWARE, "--max-num-seqs", "2")
    figures = json.loads(ringline_plan(*load, "--json"))
    memory, state = figures["memory"], 4 * 2 * 128 * 2
    assert (figures["model"]["state"], memory["state"], memory["states"]) == (state, state, 18)
    assert memory["blocks"] == (memory["cache"] - 18 * state) // memory["block"]
    assert figures["capacity"]["sequences"] == 2
    text = ringline_plan(*load)
    assert "(2 layers: 512 bytes); states of a sequence: 2.05 kB" in text
    assert "18 slots of 2.05 kB for states: one for a sequence, 6 to spare)" in text
    two = json.loads(ringline_plan(*load, "--json", "--tensor-parallel-size", "2"))
    assert two["memory"]["state"] == state // 2
    share = ("--max-num-seqs", "60000", "--max-num-batched-tokens", "64", "--state-cache-share", "0.25")
    large = json.loads(ringline_plan(str(tmp_path), *HARDWARE, *share, "--json"))["memory"]
    assert large["states"] == min(60000 * 4 + 10, large["cache"] * 0.25 // state)


def test_a_gpu_has_experts_in_the_models_type(tmp_path: Path) -> None:
    """Those of gpt-oss, which a CPU keeps in 4 bits; a step reads them, too."""
    config = GptOssConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=1, max_position_embeddings=512,
        dtype="bfloat16", architectures=["GptOssForCausalLM"], quantization_config={"quant_method": "mxfp4"},
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    load = (str(tmp_path), "--input-len", "64", "--output-len", "32", "--json")
    on_cpu, on_gpu = (json.loads(ringline_plan(*load, *device)) for device in (HARDWARE, (*HARDWARE, "--gpu", "l4")))
    assert on_gpu["memory"]["weights"] == 2 * on_gpu["model"]["weights"]
    assert on_gpu["memory"]["weights"] > 2 * on_cpu["memory"]["weights"]
    assert on_gpu["expected"]["gap"] > on_cpu["expected"]["gap"]


ODD = {
    "vocab_size": 200, "hidden_size": 80, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
    "max_position_embeddings": 512, "dtype": "bfloat16", "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
LATENTS = {
    "kv_lora_rank": 20, "q_lora_rank": None, "qk_rope_head_dim": 6, "qk_nope_head_dim": 10, "v_head_dim": 10,
    "first_k_dense_replace": 3, "num_experts_per_tok": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**ODD, num_key_value_heads=2, architectures=["LlamaForCausalLM"]),  # heads of 20
        GptOssConfig(
            **ODD, num_key_value_heads=2, head_dim=18, num_local_experts=4, num_experts_per_tok=1, sliding_window=32,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4}, architectures=["GptOssForCausalLM"],
            layer_types=["sliding_attention", "full_attention", "full_attention"],
        ),
        DeepseekV2Config(**ODD, **LATENTS, architectures=["DeepseekV2ForCausalLM"]),
        OlmoConfig(**ODD, architectures=["OlmoForCausalLM"]),  # through transformers
    ],
    ids=lambda config: config.model_type,
)  # fmt: skip
def test_a_block_takes_what_it_takes_in_an_engine(config: PretrainedConfig, tmp_path: Path) -> None:
    """Where no width is a multiple of 16, to which the native kernels pad it; kernels on GPUs do not."""
    config.save_pretrained(tmp_path)
    load = ("--input-len", "64", "--output-len", "32", "--json")
    figures = json.loads(ringline_plan(str(tmp_path), *HARDWARE, *load))
    checkpoint, attention = open_at(tmp_path, load_format="dummy"), chosen_attention()
    caches = make_model(checkpoint, attention, layers_of(checkpoint), CPU).kv_cache_spec(16)
    block, allocated = attention.bytes_per_block(caches), attention.allocate(caches, 3, CPU)
    memories = {cache.data_ptr(): cache.untyped_storage().nbytes() for cache in allocated}
    assert sum(memories.values()) == 3 * block
    assert figures["memory"]["block"] == block
    groups = figures["model"]["groups"]
    assert [group["token"] for group in groups] == len(groups) * [block // 16]
    assert figures["model"]["token"] == sum(group["token"] for group in groups)
    on_gpu = json.loads(ringline_plan(str(tmp_path), "--gpu", "h100", *load))
    assert on_gpu["memory"]["block"] < block
    in_8_bits = json.loads(ringline_plan(str(tmp_path), *HARDWARE, *load, "--kv-cache-dtype", "int8"))
    assert in_8_bits["memory"]["block"] == attention.bytes_per_block(replace(caches, cache_dtype="int8"))


def test_adapters_take_what_an_engine_sets_aside_for_them() -> None:
    options = ("--enable-lora", "--max-loras", "3", "--max-lora-rank", "24")
    figures = json.loads(ringline_plan(str(MODEL), *HARDWARE, *options, "--input-len", "64", "--json"))
    with LLM(MODEL, enable_lora=True, max_loras=3, max_lora_rank=24, kv_cache_memory_bytes="8MiB") as llm:
        lora = llm._engine.executor.lora
    assert lora is not None
    assert 0 < figures["memory"]["adapters"] <= lora.max_bytes < 1.1 * figures["memory"]["adapters"]  # with padding


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [("--kv-cache-dtype", "fp8", "auto on a GPU"), ("--quantization", "int4", "no value on a GPU")],
)
def test_what_a_gpu_cannot_is_refused(flag: str, value: str, expected: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["plan", str(tmp_path), "--gpu", "h100", "--input-len", "64", flag, value])
    assert f"{flag}={value} is not usable: expected {expected}" in str(result.exception)
    assert isinstance(result.exception, FatalError)
    assert result.exception.code == ExitCode.USAGE


def test_a_layer_that_is_too_wide_for_8_bits_is_refused(tmp_path: Path) -> None:
    config = LlamaConfig(**ODD | {"intermediate_size": 131_088}, architectures=["LlamaForCausalLM"])
    config.save_pretrained(tmp_path)
    arguments = ["plan", str(tmp_path), *HARDWARE, "--input-len", "64", "--quantization", "int8"]
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, FatalError)
    assert "model.layers.0.mlp.down_proj has 131088 inputs, and 8 bits allow at most 131072" in str(result.exception)


def test_a_request_that_the_model_does_not_take_is_refused() -> None:
    result = CliRunner().invoke(cli, ["plan", str(MODEL), "--gpu", "h100", "--input-len", "1000000"])
    assert result.exit_code != 0
    said = str(result.exception or result.output)
    assert "--input-len 1,000,000 and --output-len 128 are more than the model's context of " in said


def test_hardware_that_is_not_said_is_asked_for() -> None:
    result = CliRunner().invoke(cli, ["plan", str(MODEL), "--memory-gb", "4"])
    assert result.exit_code == 2
    needed = "Give what each rank of an engine runs on: --gpu, or --memory-gb, --bandwidth-gbs and --tflops."
    assert f"{needed} Missing: --bandwidth-gbs, --tflops.\n" in result.output
    assert "Missing:" not in CliRunner().invoke(cli, ["plan", str(MODEL)]).output


def test_the_options_of_the_engine_count() -> None:
    def memory(*flags: str) -> dict[str, float]:
        result = CliRunner().invoke(cli, ["plan", str(MODEL), "--gpu", "h100", "--json", *flags])
        return dict(json.loads(result.output)["memory"])

    usual = memory("--dtype", "bfloat16")
    assert memory("--dtype", "float32")["block"] == 2 * usual["block"]
    assert memory("--dtype", "bfloat16", "--block-size", "32")["block"] == 2 * usual["block"]
    assert memory("--max-num-batched-tokens", "512")["activations"] < usual["activations"]
    assert memory("--max-model-len", "1024")["angles"] == usual["angles"] / 2


def test_a_drafting_model_counts_on_the_rank_that_samples() -> None:
    flags = ("--gpu", "h100", "--tensor-parallel-size", "2", "--json")
    drafts = ("--speculative-config", json.dumps({"model": str(MODEL)}))
    alone = json.loads(ringline_plan(str(MODEL), *flags))
    found = json.loads(ringline_plan(str(MODEL), *flags, *drafts))
    assert found["ranks"]["tp1/2 pp0/1"] == alone["ranks"]["tp1/2 pp0/1"]
    rank, alone_there = (each["ranks"]["tp0/2 pp0/1"] for each in (found, alone))
    whole = json.loads(ringline_plan(str(MODEL), "--gpu", "h100", "--json"))["memory"]
    assert rank["drafts"] == whole["weights"] + whole["angles"]
    assert rank["block"] == alone_there["block"] + whole["block"]
    assert rank["cache"] < alone_there["cache"]
    assert found["model"] == alone["model"]
    assert "drafts 5.9" in ringline_plan(str(MODEL), *HARDWARE, *drafts)


@pytest.mark.parametrize("method", ["mtp", "eagle3"])
def test_a_layer_or_a_head_that_drafts_counts(method: str, tmp_path: Path) -> None:
    model, given = tmp_path / "model", {"method": method}
    if method == "mtp":
        save_with_mtp("deepseek_v3", model)
        of_layer = f"model.layers.{json.loads((model / 'config.json').read_text())['num_hidden_layers']}."
        drafting = {name: one for name, one in load_file(model / "model.safetensors").items() if of_layer in name}
    else:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3}
        target = tiny_models.make_model(LlamaConfig(**sizes, vocab_size=200, max_position_embeddings=512))
        target.save_pretrained(model)
        head = make_head(target, taps=[0, 1, 1]).save(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 1])
        given["model"], drafting = str(head), load_file(head / "model.safetensors")
    flags = (str(model), *HARDWARE, "--json", "--input-len", "64", "--output-len", "64")
    alone = json.loads(ringline_plan(*flags))["memory"]
    found = json.loads(ringline_plan(*flags, "--speculative-config", json.dumps(given)))["memory"]
    taken = sum(one.nbytes for one in drafting.values() if one.is_floating_point())
    assert found["drafts"] == pytest.approx(taken, rel=0.02)
    assert found["block"] > alone["block"]
    with pytest.raises(FatalError, match="speculative-config"):
        ringline_plan(str(MODEL), *HARDWARE, "--speculative-config", json.dumps({"method": "mtp"}))


@pytest.mark.parametrize(
    "flags", [("--memory-share", "2"), ("--memory-share", "0.001"), ("--efficiency", "5"), ("--rate", "nan")]
)
def test_what_no_engine_can_have_is_refused(flags: tuple[str, str]) -> None:
    result = CliRunner().invoke(cli, ["plan", str(MODEL), "--gpu", "h100", *flags])
    assert result.exit_code == 2
    assert f"Invalid value for '{flags[0]}': '{flags[1]}' is not usable: expected a number " in result.output


def test_every_number_is_one_that_a_person_reads() -> None:
    """Three significant digits of what was computed, at any magnitude; the load as it was given."""
    slow = ringline_plan(
        str(MODEL), "--memory-gb", "4", "--bandwidth-gbs", "0.01", "--tflops", "1e-6", "--rate", "12345"
    )
    fast = ringline_plan(str(MODEL), "--gpu", "h100", "--rate", "0.00285")
    assert "12,345 requests/s of 512 + 128 tokens: 1,580,160 output tokens/s" in slow
    assert "0.00285 requests/s of 512 + 128 tokens: 0.3648 output tokens/s" in fast
    assert "expected   sequences at each engine: 1, " in fast
    for number in re.findall(r"[\d.,]*\d[\w.,+-]*", slow + fast):
        assert re.fullmatch(r"\d{1,3}(,\d{3})*(\.\d+)?[,:]?", number), number


def ringline_plan(*arguments: str) -> str:
    result = CliRunner().invoke(cli, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_help_says_where_its_measuring_command_is_and_what_does_without() -> None:
    text = " ".join(CliRunner().invoke(cli, ["plan", "--help"]).output.split())
    assert "in Ringline's repository, `python -m benchmarks.limits` measures it" in text
    assert "channels × MT/s" in text
    assert "cores × GHz" in text


def test_a_model_that_pools_carries_inputs(tmp_path: Path) -> None:
    write_embedder(tmp_path)  # of inputs of 128 tokens
    told = CliRunner().invoke(cli, ["plan", str(tmp_path), *HARDWARE, "--rate", "10"])
    assert told.exit_code == 0, told.output
    assert "load       10 inputs/s of 128 tokens: 1,280 tokens/s" in told.output
    assert "detokenizers: 0" in told.output
    assert "inputs in a step of each engine: 16," in told.output, "2,048 tokens"
    assert "KV cache" not in told.output
    shown = json.loads(
        CliRunner().invoke(cli, ["plan", str(tmp_path), *HARDWARE, "--input-len", "64", "--json"]).output
    )
    assert (shown["pools"], shown["capacity"]["sequences"]) == (True, 32)
    for flags, problem in (
        (["--output-len", "5"], "--output-len=5 is not usable: expected no value for a model that makes vectors"),
        (["--max-gap-ms", "5"], "--max-gap-ms=5.0 is not usable"),
        (["--input-len", "129"], "--input-len 129 is more than the 128 tokens that an input may have"),
    ):
        refused = CliRunner().invoke(cli, ["plan", str(tmp_path), *HARDWARE, *flags], catch_exceptions=True)
        assert problem in str(refused.exception or refused.output)
