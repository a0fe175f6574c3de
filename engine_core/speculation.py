"""Speculative decoding as the options describe it, and what its steps cost.

A drafter proposes tokens that will probably follow; ``scheduling.drafting`` says what becomes of drafts. No token
depends on them.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from engine_core.errors import ConfigError

METHODS = ("ngram", "draft_model", "mtp", "eagle3")
"""``ngram`` looks drafts up in the tokens so far, where steps are planned; the others compute them with a model, where
steps are computed (``worker.drafters``)."""

MAX_SPECULATIVE_TOKENS = 64
MAX_LOOKUP = 32
INDEX_BYTES = 128 << 20
"""The most that ``ngram`` keeps of all texts."""
LEAST_INDEXED = 256
"""Tokens of the smallest index, and room for output in a larger one, which is a power of two."""
BYTES_PER_INDEXED_TOKEN = 20

_OPTION = "speculative_config"
_OF_METHODS = {
    "model": ("draft_model", "eagle3"),
    "revision": ("draft_model", "eagle3"),
    "prompt_lookup_min": ("ngram",),
    "prompt_lookup_max": ("ngram",),
    "prompt_lookup_scope": ("ngram",),
}
"""Fields of some methods alone."""
_DEFAULT_TOKENS = {"ngram": 8, "draft_model": 4, "mtp": 2, "eagle3": 4}
_LOOKUP_MIN, _LOOKUP_MAX = 2, 5
_SCOPES = ("request", "tenant")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How drafts are made; fields are named as in vLLM's ``--speculative-config``."""

    method: str
    num_speculative_tokens: int
    """The most drafts of a sequence and step."""
    model: str | None = None
    """The checkpoint of the drafting model or head: a directory, a GGUF file or a hub id. None: the method needs none,
    or its weights are in the target's checkpoint."""
    revision: str | None = None
    prompt_lookup_min: int = _LOOKUP_MIN
    prompt_lookup_max: int = _LOOKUP_MAX
    """``ngram``: lengths of the run of last tokens that is looked up, the longest first."""
    prompt_lookup_scope: str = "request"
    """``ngram``: where runs are looked up: in the request's own tokens, or also in those of its tenant's others."""

    @property
    def is_computed(self) -> bool:
        """Whether a model computes the drafts."""
        return self.method != "ngram"

    def most_index_bytes(self, max_num_seqs: int, max_model_len: int) -> int:
        """The most that the scheduler keeps to look drafts up, of so many sequences of this length."""
        if self.is_computed:
            return 0
        of_running = max_num_seqs * 2 * (max_model_len + LEAST_INDEXED) * BYTES_PER_INDEXED_TOKEN
        return INDEX_BYTES if self.prompt_lookup_scope == "tenant" else min(INDEX_BYTES, of_running)

    @property
    def reads_final_states(self) -> bool:
        """Whether drafts are computed from the target's hidden states behind its last layer."""
        return self.method == "mtp"

    @property
    def taps_layers(self) -> bool:
        """Whether drafts are computed from the inputs of some of the target's layers."""
        return self.method == "eagle3"


_TYPES: dict[str, type] = {
    "method": str,
    "num_speculative_tokens": int,
    "model": str,
    "revision": str,
    "prompt_lookup_min": int,
    "prompt_lookup_max": int,
    "prompt_lookup_scope": str,
}


def read_speculative_config(text: str | None, most: int = MAX_SPECULATIVE_TOKENS) -> SpeculativeConfig | None:
    """The JSON object of ``--speculative-config``. Raises ``ConfigError``.

    ``most``: rows of a step besides that of a sequence, for its drafts.
    """
    if text is None:
        return None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(_OPTION, text, f"a JSON object; this is none: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(_OPTION, text, 'a JSON object such as {"method": "ngram"}')
    return _config_of(given, most)


def _config_of(given: dict[str, Any], most: int) -> SpeculativeConfig:
    for name, value in given.items():
        if name not in _TYPES:
            raise ConfigError(_OPTION, given, f"no {name!r}; its fields are {', '.join(_TYPES)}")
        if type(value) is not _TYPES[name]:
            raise ConfigError(_OPTION, given, f"{name} as {'an integer' if _TYPES[name] is int else 'a string'}")
    method = given.get("method", "draft_model" if "model" in given else None)
    if method not in METHODS:
        raise ConfigError(_OPTION, given, f"as method one of {', '.join(METHODS)}")
    for name, methods in _OF_METHODS.items():
        if name in given and method not in methods:
            raise ConfigError(_OPTION, given, f"no {name}, with the method {method}")
    if method in _OF_METHODS["model"] and not given.get("model"):
        raise ConfigError(_OPTION, given, f"a model, the drafting checkpoint, with the method {method}")
    tokens = min(_DEFAULT_TOKENS[method], max(1, most))
    defaults = {
        "num_speculative_tokens": tokens,
        # Of the two, one that is given alone moves the other.
        "prompt_lookup_min": min(_LOOKUP_MIN, given.get("prompt_lookup_max", MAX_LOOKUP)),
        "prompt_lookup_max": max(_LOOKUP_MAX, given.get("prompt_lookup_min", 1)),
    }
    config = SpeculativeConfig(**{**defaults, **given, "method": method})
    if not 1 <= config.num_speculative_tokens <= MAX_SPECULATIVE_TOKENS:
        raise ConfigError(_OPTION, given, f"num_speculative_tokens from 1 to {MAX_SPECULATIVE_TOKENS}")
    if config.num_speculative_tokens > most:
        raise ConfigError(
            _OPTION,
            given,
            f"num_speculative_tokens of at most {most}: a step has {most + 1} rows, the smaller of max_num_seqs and "
            "max_num_batched_tokens, and one of them is no draft",
        )
    if not 1 <= config.prompt_lookup_min <= config.prompt_lookup_max <= MAX_LOOKUP:
        raise ConfigError(_OPTION, given, f"1 ≤ prompt_lookup_min ≤ prompt_lookup_max ≤ {MAX_LOOKUP}")
    if config.prompt_lookup_scope not in _SCOPES:
        raise ConfigError(_OPTION, given, f"as prompt_lookup_scope one of {', '.join(_SCOPES)}")
    return config


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of steps that decode, by their number of rows, as the warm-up measured them."""

    rows: tuple[int, ...]
    """Ascending."""
    seconds: tuple[float, ...]
    """Of a step with so many rows, one of each sequence; not falling."""
    drafted_seconds: tuple[float, ...] = ()
    """Of a step with so many rows of which some are drafts; not falling. Empty: as without."""
    draft_seconds: tuple[float, ...] = ()
    """Of computing one more draft for each of so many sequences; empty if drafts are looked up."""

    def step(self, rows: int) -> float:
        """Seconds of a step with ``rows`` rows, between and beyond the measured ones in a straight line."""
        return _between(self.rows, self.seconds, rows)

    def describe(self) -> str:
        """For a person."""
        told = [
            (rows, seconds)
            for rows, seconds in zip(self.rows, self.drafted_seconds, strict=True)
            if rows in (4, 16, 64)
        ]
        rows = ", ".join(f"{1e3 * seconds:.3g} ms with {count} rows" for count, seconds in told)
        drafts = f", a draft of the drafting model {1e3 * self.draft(1):.2g} ms" if self.draft_seconds else ""
        return f"a step takes {1e3 * self.step(1):.3g} ms, with drafts {rows}{drafts}" if told else ""

    def drafted(self, rows: int) -> float:
        """As ``step``, where some of the rows are drafts."""
        return _between(self.rows, self.drafted_seconds or self.seconds, rows)

    def draft(self, sequences: int) -> float:
        """Seconds of one more draft for each of ``sequences``."""
        return _between(self.rows, self.draft_seconds, sequences) if self.draft_seconds and sequences else 0.0


ASSUMED_STEP_TIMES = StepTimes((1, 4, 8, 16, 32, 64), (1.0, 1.0, 1.25, 2.0, 4.0, 8.0))
"""For executors that measure none: in units of a step with one row, about as on a CPU."""


def _between(places: tuple[int, ...], values: tuple[float, ...], place: int) -> float:
    if len(places) == 1 or place <= places[0]:
        return values[0]
    right = min(bisect_left(places, place), len(places) - 1)
    left = right - 1
    share = (place - places[left]) / (places[right] - places[left])
    return values[left] + share * (values[right] - values[left])
