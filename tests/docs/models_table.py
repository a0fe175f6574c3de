"""The table of docs/reference/models.md: what each architecture is, read off the registry and the configurations it is
tested in.

``python -m tests.docs.models_table`` writes it into the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_core.kv_cache_interface import RecurrentSpec, ShortConvSpec
from engine_core.models.causal_lm import CausalLM
from engine_core.models.encoder_model import EncoderModel
from engine_core.models.fallback.rules import ENCODERS as ENCODERS_OF_TRANSFORMERS
from engine_core.models.fallback.rules import encoder_types
from engine_core.models.model_config import ArchitectureConfig
from engine_core.models.registry import ARCHITECTURES, ENCODERS
from tests.docs.documents import ROOT, Generated
from tests.engine_core.models.encoders import CASES as ENCODER_CASES
from tests.engine_core.models.families import SHAPES
from tests.engine_core.models.tiny_models import CASES

PAGE = ROOT / "docs" / "reference" / "models.md"
_BEGIN, _END = "<!-- By `python -m tests.docs.models_table`, which a test runs. -->\n", "<!-- End of the table. -->"
_HEAD = (
    "| architecture | `model_type` | attention | rotation | feed-forward blocks | never quantized | GPU |",
    "|---|---|---|---|---|---|---|",
)
_BEGIN_ENCODERS = "<!-- Encoders, by `python -m tests.docs.models_table`, which a test runs. -->\n"
_END_ENCODERS = "<!-- End of the encoders. -->"
_HEAD_OF_ENCODERS = ("| classes | `model_type` | attention | positions |", "|---|---|---|---|")
_STATES = {RecurrentSpec: "a recurrence", ShortConvSpec: "short convolutions"}


def table() -> str:
    """A row for each architecture, in the order of the registry."""
    return "\n".join([*_HEAD, *(_row(name, model) for name, model in ARCHITECTURES.items())]) + "\n"


def _row(name: str, model: type[CausalLM]) -> str:
    tested = [config for config in (*CASES.values(), *SHAPES.values()) if config.model_type == model.model_type]
    assert tested, f"{name} is tested in no configuration: add one to tests/engine_core/models/families"
    read = [model.read_config(config) for config in tested]
    mixtures = [mixture for config in read if (mixture := getattr(config, "mixture", None)) is not None]
    has_latents = any(hasattr(config, "mla") for config in read)
    cells = (
        name,
        f"`{model.model_type}`",
        _attention(read, has_latents),
        _rotation(read),
        _blocks(mixtures, has_dense=len(mixtures) < len(read)) if any(map(_has_blocks, read)) else "none",
        ", ".join(["`kv_b_proj`"] * has_latents + ["routers"] * bool(mixtures)),
        "not measured",
    )
    return f"| {' | '.join(cells)} |"


def _attention(read: Sequence[ArchitectureConfig], has_latents: bool) -> str:
    patterns = [[window is not None for window in config.sliding_windows] for config in read]
    words = ["latents" if has_latents else "heads"]
    several, one = ("chunks", "chunks") if any(config.chunked_attention for config in read) else ("windows", "a window")
    if any(any(windowed) and not all(windowed) for windowed in patterns):
        words.append(f"{several} in some layers")
    elif any(map(any, patterns)):
        words.append(one)
    if any(len(set(config.cache_owners)) < config.num_layers for config in read):
        words.append("caches that layers share")
    if any(config.attention_sinks for config in read):
        words.append("sinks")
    if any(config.attn_logit_softcap is not None for config in read):
        words.append("capped scores")
    kinds = {type(spec) for config in read for spec in config.state_specs}
    attends = any(config.caching_layers for config in read)
    words, share = (words, "some") if attends else (["none"], "all")
    words += [f"{_STATES[kind]} in {share} layers" for kind in _STATES if kind in kinds]
    return ", ".join(words)


def _rotation(read: Sequence[ArchitectureConfig]) -> str:
    ropes = [
        (config, rope)
        for config in read
        for rope, spec in zip(config.ropes, config.cache_specs, strict=True)
        if spec is not None
    ]
    rotating = [(config, rope) for config, rope in ropes if rope is not None and rope.rotary_dim > 0]
    if not rotating:
        return "none" if any(config.keeps_states for config in read) else "none: learned positions"
    words = [" or ".join(sorted({"neighbours" if rope.interleaved else "halves" for _, rope in rotating}))]
    if len(rotating) < len(ropes):
        words.append("none in some layers")
    if any(len({rope for config, rope in rotating if config is each}) > 1 for each in read):
        words.append("by type of layer")
    if any(rope.rotary_dim < config.head_dim for config, rope in rotating):
        words.append("a part of each head")
    if any(rope is not None and rope.llama_4_scaling_beta is not None for _, rope in ropes):
        words.append("queries scaled by position")
    return ", ".join(words)


def _has_blocks(config: ArchitectureConfig) -> bool:
    return config.mixture is not None or config.intermediate_size > 0


def _blocks(mixtures: Sequence[Any], *, has_dense: bool) -> str:
    if not mixtures:
        return "dense"
    shared = "experts and a shared one" if any(each.shared_size is not None for each in mixtures) else "experts"
    has_dense = has_dense or not all(all(each.is_sparse) for each in mixtures)
    return shared if not has_dense else f"{shared}, or dense"


def encoders() -> str:
    """A row for each class of Ringline's own encoders, with the classes that checkpoints are saved with, then one for
    each that runs through transformers.
    """
    classes: dict[type[EncoderModel], list[str]] = {}
    for name, model in ENCODERS.items():
        classes.setdefault(model, []).append(name)
    rows = [_row_of_encoder(names, model) for model, names in classes.items()]
    rows += [f"| {name} | {_types(name)} | both ways, by transformers' module | |" for name in ENCODERS_OF_TRANSFORMERS]
    return "\n".join([*_HEAD_OF_ENCODERS, *rows]) + "\n"


def _row_of_encoder(names: Sequence[str], model: type[EncoderModel]) -> str:
    tested = [config for _, config in ENCODER_CASES.values() if config.model_type == model.model_type]
    assert tested, f"{model.__name__} is tested in no configuration: add one to tests/engine_core/models/encoders.py"
    read = [model.read_config(config) for config in tested]
    windows = any(window is not None for config in read for window in config.sliding_windows)
    rotates = any(rope is not None for config in read for rope in config.ropes)
    cells = (
        ", ".join(names),
        f"`{model.model_type}`",
        "both ways, windows in some layers" if windows else "both ways",
        "rotations" if rotates else "a table",
    )
    return f"| {' | '.join(cells)} |"


def _types(name: str) -> str:
    return ", ".join(f"`{kind}`" for kind in encoder_types(name))


TABLE = Generated(PAGE, _BEGIN, _END, table)
ENCODERS_TABLE = Generated(PAGE, _BEGIN_ENCODERS, _END_ENCODERS, encoders)

if __name__ == "__main__":
    TABLE.write()
    ENCODERS_TABLE.write()
