"""Engines that speculate, for tests: models of every kind of layer, drafters for them, and what goes on meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    Lfm2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen3_5TextConfig,
    Qwen3MoeConfig,
)

from engine_core.engine import EngineCore
from engine_core.llm import configure
from engine_core.progress import StartupProgress
from engine_core.scheduling.speculation import Offer, Speculation
from engine_core.speculation import StepTimes
from engine_core.startup import StartedEngine, choose_workers, start_executor

from ..checkpoints.twins import perturbed, pruned
from .executor.small_caches import blocks_to_spare
from .executor.threaded_workers import ThreadedWorkers
from .models import mtp_models
from .models.eagle3_heads import make_head
from .models.families.hybrid import DELTA_NET
from .models.families.latent import LATENT
from .models.tiny_models import SIZES, make_model, save_model
from .speculated_workload import MAX_MODEL_LEN, TINY

_SIZES = SIZES | {"vocab_size": 2560}
FREE = StepTimes((1,), (1.0,))
"""Steps take as long with drafts."""
_FULL, _LINEAR, _WINDOW = "full_attention", "linear_attention", "sliding_attention"

CONFIGS: dict[str, PretrainedConfig] = {
    "windows": Gemma3TextConfig(
        **_SIZES, head_dim=16, query_pre_attn_scalar=16, sliding_window=24, layer_types=[_WINDOW, _WINDOW, _FULL]
    ),
    "sinks": GptOssConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=24),
    "experts": Qwen3MoeConfig(**_SIZES, head_dim=16, moe_intermediate_size=48, num_experts=8, num_experts_per_tok=3),
    "latents": DeepseekV3Config(**LATENT | {"vocab_size": 2560}, n_group=4, topk_group=2, first_k_dense_replace=1),
    "delta net": Qwen3_5TextConfig(**_SIZES | DELTA_NET),
    "mamba": GraniteMoeHybridConfig(
        **_SIZES,
        mamba_n_heads=8,
        mamba_d_state=16,
        num_local_experts=0,
        num_experts_per_tok=0,
        shared_intermediate_size=80,
        layer_types=[_LINEAR, _FULL, _LINEAR],
    ),
    "convolutions": Lfm2Config(**_SIZES, block_multiple_of=16, layer_types=["conv", _FULL, "conv"]),
}
"""Of models with random weights. All that speculate have the bundled model's vocabulary, so that grammars can be asked
for."""
WITH_MTP = ("latents", "delta net")
"""Of these, what has a layer for multi-token prediction."""
WEIGHTS: dict[str, dict[str, Any]] = {
    "bundled": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int8 cache": {"kv_cache_dtype": "int8"},
}
"""Options of the bundled model, by the names that it has as a target with them."""
DRAFTING = LlamaConfig(**_SIZES | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2})
"""Of a model that drafts for models whose own layers cannot draft."""


def make_target(name: str, directory: Path) -> Path:
    """The checkpoint of one of ``CONFIGS``, or the bundled model."""
    if name not in CONFIGS:
        return TINY
    if name in WITH_MTP:
        with mock.patch.object(mtp_models, "configuration", CONFIGS.__getitem__):
            return with_tokenizer(mtp_models.save_with_mtp(name, directory))
    return with_tokenizer(save_model(make_model(CONFIGS[name]), directory))


def with_tokenizer(directory: Path) -> Path:
    """Give a checkpoint the bundled model's vocabulary."""
    for file in TINY.glob("*token*.json"):
        shutil.copy(file, directory)
    return directory


@dataclass(frozen=True)
class Condition:
    """What goes on while requests are computed."""

    options: dict[str, Any] = field(default_factory=dict)
    spare_blocks: int | None = None
    """Of the cache, besides those of the longest sequence; None: many."""

    @property
    def preempts(self) -> bool:
        return self.spare_blocks is not None

    @property
    def stages(self) -> int:
        return int(self.options.get("pipeline_parallel_size", 1))


_ROOM: dict[str, Any] = {"max_num_seqs": 64}
_LITTLE: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 48, "block_size": 4}
CONDITIONS: dict[str, Condition] = {
    "room": Condition(_ROOM),
    "chunks": Condition({"max_num_seqs": 12, "max_num_batched_tokens": 29}),
    "few blocks": Condition(_LITTLE, spare_blocks=30),
    "overlapping steps": Condition(_ROOM | {"async_scheduling": True}),
    "overlapping steps, few blocks": Condition(_LITTLE | {"async_scheduling": True}, spare_blocks=30),
    "two stages": Condition(_ROOM | {"pipeline_parallel_size": 2}),
    "two stages, few blocks": Condition(_LITTLE | {"pipeline_parallel_size": 2}, spare_blocks=30),
    "two ranks": Condition(_ROOM | {"tensor_parallel_size": 2}),
}


@contextmanager
def every_draft() -> Iterator[None]:
    """Steps take all drafts that there is room for, however improbable they are."""

    def all_of(self: Speculation, offers: list[Offer], most: int) -> list[tuple[Offer, int]]:
        taken = []
        for offer in offers:
            self._of(offer.seq)
            count = min(offer.room, self._most, most)
            most -= count
            if count > 0:
                taken.append((offer, count))
        return taken

    with (
        mock.patch.object(Speculation, "ask", lambda self, offers, decoding, most: all_of(self, offers, most)),
        mock.patch.object(Speculation, "choose", lambda self, offers, rows, decoding, most: all_of(self, offers, most)),
    ):
        yield


@contextmanager
def engine_of(
    model: Path, speculation: dict[str, Any] | None = None, condition: str = "room", **options: Any
) -> Iterator[StartedEngine]:
    """An engine to which drafts cost nothing; ``speculation`` as in ``--speculative-config``."""
    under = CONDITIONS[condition]
    options = {"dtype": "float32", "num_threads": 1, "max_model_len": MAX_MODEL_LEN, **under.options, **options}
    options.setdefault("kv_cache_memory_bytes", 16 << 20)
    if speculation is not None:
        options["speculative_config"] = json.dumps(speculation)
    config = configure(model=str(model), **options)
    workers = ThreadedWorkers(config) if config.parallel.world_size > 1 else choose_workers(config)
    with blocks_to_spare(under.spare_blocks):
        executor = start_executor(workers, StartupProgress())
    executor.step_times = FREE
    try:
        yield StartedEngine(EngineCore(config, executor), executor)
    finally:
        executor.close()


@dataclass(frozen=True)
class Drafter:
    """A method, and the models that have it."""

    method: str
    make: Callable[[Path, Path], Path] | None = None
    """The drafting checkpoint, for a target and into a folder; None: the method needs none."""
    targets: Collection[str] = (*WEIGHTS, *CONFIGS)
    in_stages: bool = True
    """Whether it goes with pipeline stages."""
    fields: Mapping[str, int] = field(default_factory=dict)
    """More of ``--speculative-config``."""

    def __str__(self) -> str:
        return self.method

    def options(self, target: Path, directory: Path, count: int) -> dict[str, Any]:
        """As in ``--speculative-config``; what is in ``directory`` is made once."""
        found: dict[str, Any] = {"method": self.method, "num_speculative_tokens": count, **self.fields}
        if self.make is not None:
            place = directory / self.method
            found["model"] = str(place if place.exists() else self.make(target, place))
        return found


def _drafting_model(target: Path, directory: Path) -> Path:
    """The bundled model without two layers, or for others one that often agrees: nearly the same, if it can draft."""
    if target == TINY:
        return pruned(target, directory, [0, 2, 4])
    if json.loads((target / "config.json").read_text())["model_type"] in _WITH_STATES:
        return with_tokenizer(save_model(make_model(DRAFTING), directory))
    return perturbed(target, directory, share=0.3)


def _head(target: Path, directory: Path) -> Path:
    """A random head: where few tokens may be drawn, it agrees with the target now and then, as it has its noise."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    return make_head(model, draft_vocab_size=None, taps=(0, 1, 2)).save(directory)


_WITH_STATES = {CONFIGS[name].model_type for name in ("delta net", "mamba", "convolutions")}
DRAFTERS: dict[str, Drafter] = {
    # Runs of one token are found in random text, too, and mostly mislead.
    "ngram": Drafter("ngram", fields={"prompt_lookup_min": 1}),
    "draft_model": Drafter("draft_model", _drafting_model),
    "mtp": Drafter("mtp", targets=WITH_MTP),
    "eagle3": Drafter("eagle3", _head, ("bundled", "bfloat16", "int8", "experts"), in_stages=False),
}
