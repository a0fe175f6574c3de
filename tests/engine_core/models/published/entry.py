"""What the table of published checkpoints says of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Fields = dict[str, Any]


class Outcome(StrEnum):
    """What a start does."""

    SERVES = "serves"
    FALLBACK = "serves, through transformers"
    TEXT = "serves its text"
    REFUSES = "refused"


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint on the hub."""

    name: str
    outcome: Outcome
    weights: float | None
    """Numbers in what is served, in thousands of millions, a tied head once; None if nothing is."""
    config: Fields
    """Its config.json, without what changes neither shapes nor results."""
    refusal: str = ""
    """A part of the sentence that says what is missing."""
    beside: Fields = field(default_factory=dict)
    """Other JSON files, by name."""


def serves(name: str, weights: float, config: Fields, **beside: object) -> Published:
    """``beside``: as for ``refused``."""
    return Published(name, Outcome.SERVES, weights, config, beside=_files(beside))


def falls_back(name: str, weights: float, config: Fields) -> Published:
    return Published(name, Outcome.FALLBACK, weights, config)


def text(name: str, weights: float, config: Fields) -> Published:
    """``weights`` are those of the text model."""
    return Published(name, Outcome.TEXT, weights, config)


def refused(name: str, refusal: str, config: Fields, **beside: object) -> Published:
    """``beside``: contents of other JSON files, by name without its end."""
    return Published(name, Outcome.REFUSES, None, config, refusal, _files(beside))


def _files(beside: Fields) -> Fields:
    return {f"{file}.json": content for file, content in beside.items()}


def model(architecture: str, model_type: str, **fields: object) -> Fields:
    """The beginning of a config.json."""
    return {"architectures": [architecture], "model_type": model_type, **fields}


def sizes(hidden: int, inner: int, layers: int, heads: int, kv_heads: int | None = None) -> Fields:
    """The fields that most families name alike."""
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads if kv_heads is None else kv_heads,
    }


def experts(count: int, chosen: int, inner: int, *, counted: str = "num_experts", **fields: object) -> Fields:
    """``counted`` names the field with their number."""
    return {counted: count, "num_experts_per_tok": chosen, "moe_intermediate_size": inner, **fields}
