"""What every engine of the matrix is asked, whatever its ranks: and what it answers, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import (
    DeepseekV3Config,
    Gemma2Config,
    Gemma4TextConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    Lfm3Config,
    Llama4TextConfig,
    Mamba2Config,
    NemotronHConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from engine_core.request import SamplingParams
from engine_core.startup import StartedEngine
from engine_core.validation import MAX_LOGPROBS
from tests.engine_core import answers
from tests.engine_core.answers import Answer, answer_of, bits
from tests.engine_core.engines import run, started
from tests.engine_core.executor.ranks.forked_ranks import LOCAL_RANK, ForkedRank
from tests.engine_core.executor.small_caches import blocks_to_spare
from tests.engine_core.models.families.experts import LLAMA4
from tests.engine_core.models.families.gemma4 import EXPERTS, FULL, GEMMA, PER_LAYER, THETAS, WINDOW
from tests.engine_core.models.families.hybrid import DELTA_NET
from tests.engine_core.models.families.latent import LATENT
from tests.engine_core.models.families.mamba import MIXER, ROUTED, WITHOUT_ATTENTION, WITHOUT_LAYERS
from tests.engine_core.models.tiny_models import SIZES

FOUR = SIZES | {"num_hidden_layers": 4}
MODELS: dict[str, PretrainedConfig] = {
    "qwen3": Qwen3Config(**FOUR, head_dim=32, tie_word_embeddings=True),
    "qwen3-moe": Qwen3MoeConfig(**FOUR, head_dim=16, moe_intermediate_size=80, num_experts=8, num_experts_per_tok=3),
    "deepseek-v3": DeepseekV3Config(
        **(LATENT | {"num_hidden_layers": 4, "moe_intermediate_size": 80}),
        n_group=4,
        topk_group=2,
        first_k_dense_replace=1,
        n_shared_experts=1,
    ),
    "gpt-oss": GptOssConfig(**FOUR, num_local_experts=6, num_experts_per_tok=2, head_dim=16, sliding_window=24),
    "llama4": Llama4TextConfig(
        **(LLAMA4 | {"intermediate_size": 80, "attention_chunk_size": 22}), interleave_moe_layer_step=2
    ),
    "gemma2": Gemma2Config(
        **FOUR, head_dim=16, sliding_window=24, attn_logit_softcapping=3.0, final_logit_softcapping=5.0
    ),
    "gemma4": Gemma4TextConfig(
        **(GEMMA | PER_LAYER | EXPERTS | {"moe_intermediate_size": 80, "layer_types": [WINDOW, FULL] * 3}),
        attention_k_eq_v=True,
        num_global_key_value_heads=1,
        num_kv_shared_layers=2,
        rope_parameters=THETAS,
    ),
    "lfm3": Lfm3Config(
        **(SIZES | {"num_hidden_layers": 5, "num_key_value_heads": 4}),
        head_dim=16,
        sliding_window=24,
        layer_types=["conv", "sliding_attention", "conv", "full_attention", "conv"],
    ),
    "qwen3.5": Qwen3_5TextConfig(**SIZES | DELTA_NET),
    "qwen3-next": Qwen3NextConfig(
        **(SIZES | DELTA_NET | {"linear_num_key_heads": 4, "linear_num_value_heads": 8}),
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=80,
        shared_expert_intermediate_size=80,
        mlp_only_layers=[1],
    ),
    "granite4": GraniteMoeHybridConfig(
        **SIZES,
        mamba_n_heads=8,
        mamba_d_state=16,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=80,
        layer_types=["linear_attention", "full_attention", "linear_attention"],
    ),
    "mamba2": Mamba2Config(**WITHOUT_ATTENTION, num_heads=8, head_dim=16, n_groups=2, state_size=16),
    "nemotron-h": NemotronHConfig(
        **(WITHOUT_LAYERS | MIXER | ROUTED | {"n_groups": 4, "moe_intermediate_size": 80}),
        moe_latent_size=80,
        head_dim=16,
        layers_block_type=["linear_attention", "moe", "full_attention", "mlp"],
    ),
}
"""A dense one, experts, latents and experts, sinks and windows, chunks and weighed inputs of experts, windows and caps;
Gemma 4: shared caches, values that are keys, embeddings per layer, and experts; short convolutions; Gated DeltaNet in
three layers of four, with a dense block and with experts; Mamba-2 beside attention, with one group of heads, without
attention, and in layers of one block each, with experts that have no gates."""
DTYPES: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
}
VOCABULARY = SIZES["vocab_size"]
BLOCK_SIZE, SPARE_BLOCKS = 4, 0
"""The cache has so many blocks besides those of the longest sequence: too few for all that run, also in chunks."""


@dataclass(frozen=True)
class Ranks:
    """Of an engine."""

    tp: int
    pp: int
    expert_parallel: bool = False

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp}" + (" ep" if self.expert_parallel else "")

    def options(self) -> dict[str, Any]:
        return {
            "tensor_parallel_size": self.tp,
            "pipeline_parallel_size": self.pp,
            "enable_expert_parallel": self.expert_parallel,
            "distributed_executor_backend": "mp",
        }


SIZES_OF_ENGINES = [Ranks(*size) for size in [(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 2)]]
WITH_EXPERTS = [Ranks(2, 1, expert_parallel=True), Ranks(4, 1, expert_parallel=True), Ranks(2, 2, expert_parallel=True)]


def prompt(length: int, start: int) -> list[int]:
    return [3 + (7 * start + 5 * place + place * place % 11) % (VOCABULARY - 3) for place in range(length)]


MANY = {"logprobs": MAX_LOGPROBS, "prompt_logprobs": MAX_LOGPROBS}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
TOGETHER: dict[str, tuple[list[int], SamplingParams]] = {
    "greedy": (prompt(3, 0), GREEDY),
    "many logprobs": (
        prompt(40, 1),
        replace(GREEDY, max_tokens=12, **MANY),
    ),
    "seeded": (prompt(29, 2), SamplingParams(seed=2, max_tokens=24, ignore_eos=True, logprobs=2, top_k=50, top_p=0.9)),
    "choices": (prompt(37, 3), SamplingParams(seed=3, max_tokens=22, ignore_eos=True, n=2, logprobs=1)),
    "penalties": (
        prompt(17, 4),
        SamplingParams(seed=4, max_tokens=24, presence_penalty=0.7, frequency_penalty=0.3, repetition_penalty=1.3),
    ),
    "ends": (prompt(21, 5), SamplingParams(seed=5, max_tokens=24, stop_token_ids=frozenset(range(3, 30)), logprobs=0)),
    "long": (prompt(60, 6), replace(GREEDY, max_tokens=30, bad_words_token_ids=((5,), (7, 9)))),
}
"""Names, and what is asked at the same time."""
PREFIX = 32
AGAIN = (TOGETHER["many logprobs"][0][:PREFIX] + prompt(9, 7), replace(GREEDY, logprobs=3))
"""Asked when nothing else is computed; then its beginning is in the cache."""
RESUMED = ("seeded", "choices")
TAKEN = 7
"""Tokens after which those are resumed."""


@dataclass(frozen=True)
class Answers:
    """Of one engine."""

    numerics: str
    answers: dict[str, Answer]


def ask(engine: StartedEngine, known: Answers | None = None) -> Answers:
    """All answers; ``known``: those of another engine, whose choices are resumed, instead of this one's own."""
    requests = {name: token_ids for name, (token_ids, _) in TOGETHER.items()}
    params = {name: each for name, (_, each) in TOGETHER.items()}
    together = run(engine, requests, params)
    assert engine.core.stats().preemptions > 0
    found = {f"{name} {choice}": answer_of(outcome) for (name, choice), outcome in together.items()}
    first = known.answers if known is not None else found
    resume = {
        name: {choice: tuple(first[f"{name} {choice}"][0][: TAKEN + choice]) for choice in range(params[name].n)}
        for name in RESUMED
    }
    resumed = run(engine, {name: requests[name] for name in RESUMED}, params, resume)
    for (name, choice), outcome in resumed.items():
        token_ids, logprobs, _, finish = answer_of(outcome)
        whole = found[f"{name} {choice}"]
        assert [*resume[name][choice], *token_ids] == whole[0]
        assert bits(logprobs) == bits(whole[1])[TAKEN + choice :]
        assert finish == whole[3]
    run(engine, {"before": TOGETHER["many logprobs"][0]}, {"before": replace(GREEDY, max_tokens=1)})
    [again] = run(engine, {"again": AGAIN[0]}, {"again": AGAIN[1]}).values()
    assert again.cached_tokens == PREFIX
    return Answers(engine.executor.numerics, found | {"again": answer_of(again)})


def differences(one: Answers, other: Answers) -> list[str]:
    """What differs, in words."""
    found = [] if one.numerics == other.numerics else [f"numerics: {one.numerics} and {other.numerics}"]
    return found + answers.differences(one.answers, other.answers)


@contextmanager
def engine_of(model: Path, dtype: str, ranks: Ranks | None, *, forked: bool = True) -> Iterator[StartedEngine]:
    """An engine in this process, or with these ranks; its cache is small, whatever a rank has of a block."""
    options = {**DTYPES[dtype], "num_threads": 1, "block_size": BLOCK_SIZE}
    options |= {"max_model_len": 96, "max_num_seqs": 8, "max_num_batched_tokens": 48}
    with blocks_to_spare(SPARE_BLOCKS):
        rank_type = mock.patch(LOCAL_RANK, ForkedRank) if forked else nullcontext()
        with rank_type, started(model, **options, **(ranks.options() if ranks is not None else {})) as engine:
            yield engine
