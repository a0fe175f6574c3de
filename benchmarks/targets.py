"""The targets of the engine and the ring, and whether the measured parts reach them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.adapters import VLLM_LORA, WITH_OPTION
from benchmarks.contestants import CHAINS, LLAMA_CPP, LLAMA_CPP_Q8, OURS, OURS_INT8, OURS_NGRAM, SMOLLM2, VLLM
from benchmarks.embeddings import ONNX_RUNTIME, RATIO, SENTENCE_TRANSFORMERS
from benchmarks.report import Row

Parts = Mapping[str, Mapping[str, Any]]
"""The JSON documents of ``compare``, keyed by part."""

_RATIOS = (
    ("batch 1", "tok/s", OURS, VLLM, 1.5),
    ("batch 1", "decode tok/s", OURS, LLAMA_CPP, 1.05),
    ("batch 1", "decode tok/s", OURS_INT8, OURS, 1.5),
    ("batch 1", "decode tok/s", OURS_INT8, LLAMA_CPP_Q8, 1.05),
    ("batch 16", "tok/s", OURS, VLLM, 1.4),
    ("batch 64", "tok/s", OURS, VLLM, 1.3),
    ("batch 16", "tok/s", OURS_INT8, VLLM, 2.0),
    ("prefill 1024", "prompt tok/s", OURS, VLLM, 1.3),
    ("prefill 1024", "prompt tok/s", OURS, LLAMA_CPP, 1.5),
)

_EMBEDDED = ((SENTENCE_TRANSFORMERS, 1.3), (ONNX_RUNTIME, 1.1), (VLLM, 1.5), (LLAMA_CPP, 1.5))

_ADAPTED = (
    ("1x1", OURS, 0.9),
    ("16x16", OURS, 0.8),
    ("64x1", OURS, 0.9),
    ("16x0", OURS, 0.99),
    ("16x16", VLLM_LORA, 1.0),
)
"""Work, engine, and least ratio to it."""

_DRAFTED = (("copies", 2.0), ("edits", 2.0), ("summaries", 1.3), ("stories", 0.98))


def verdicts(parts: Parts) -> list[Row]:
    """A row for each target whose part was measured; values are None if a peer was not installed."""
    rows: list[Row] = []
    if "offline" in parts:
        rows += _offline(parts["offline"]["figures"])
    if "drafts" in parts:
        rows += _drafts(parts["drafts"]["figures"]["figures"])
    if "embeddings" in parts:
        rows += _embedded(parts["embeddings"]["figures"])
    if "adapters" in parts:
        rows += _adapted(parts["adapters"]["figures"]["ratios"])
    if "kernels" in parts:
        decode = _find(parts["kernels"]["figures"]["figures"], kernel="attention decode 16 × 1024", threads=1)
        rows.append(_verdict("decode attention 16 × 1024, one thread, GB/s", 20.0, decode, "GB/s"))
    if "starts" in parts:
        start = _find(parts["starts"]["figures"]["warm"], stage="all")
        rows.append(_verdict("process start to first token, s", 6.0, start, "seconds", at_most=True))
    if "served" in parts:
        rows += _served(parts["served"]["figures"]["figures"])
    if "ring-cost" in parts:
        cost = _find(parts["ring-cost"]["figures"]["figures"])
        rows.append(_verdict("served / offline, batch 16", 0.9, cost, "served / offline"))
    return rows


def _offline(tables: Mapping[str, list[Row]]) -> list[Row]:
    rows = []
    for work, counted, ours, theirs, wanted in _RATIOS:
        found = _find(tables["ratios"], work=work, counted=counted, ours=ours, theirs=theirs)
        rows.append(_verdict(f"{work}: {counted}, {ours} / {theirs}", wanted, found, "ratio"))
    share = _find(tables["figures"], work="batch 1", engine=OURS)
    rows.insert(2, _verdict("batch 1: decode, share of the stream bandwidth", 0.8, share, "of stream"))
    return rows


def _drafts(figures: list[Row]) -> list[Row]:
    """The ratios to the same engine without drafts; of large batches, the worst."""
    rows = []
    for model in (SMOLLM2, CHAINS):
        of_model = [row for row in figures if row["model"] == model]
        for text, wanted in _DRAFTED:
            found = _find(of_model, text=text, batch=1, engine=OURS_NGRAM)
            rows.append(_verdict(f"{model}, {text}, batch 1: n-grams / none", wanted, found, "ratio"))
        batched = [row for row in of_model if row["batch"] > 1 and row["ratio"] is not None]
        worst = min(batched, key=lambda row: float(row["ratio"]), default=None)
        rows.append(_verdict(f"{model}, batch 16 and 64: the worst with drafts / none", 0.97, worst, "ratio"))
    return rows


def _embedded(tables: Mapping[str, list[Row]]) -> list[Row]:
    """The ratios of float32, beside each engine the worst of all works."""
    rows = []
    for engine, wanted in _EMBEDDED:
        beside = [row for row in tables["figures"] if row["engine"] == engine]
        worst = min(beside, key=lambda row: float(row[RATIO]), default=None)
        rows.append(_verdict(f"vectors, the worst of all works: {OURS} / {engine}", wanted, worst, RATIO))
    served = min(tables["served"], key=lambda row: float(row["served / offline"]), default=None)
    return [*rows, _verdict("vectors over HTTP / offline, the worst", 0.85, served, "served / offline")]


def _adapted(ratios: list[Row]) -> list[Row]:
    """Rows × adapters."""
    return [
        _verdict(
            f"{work}: tok/s, {WITH_OPTION} / {theirs}",
            wanted,
            _find(ratios, work=work, ours=WITH_OPTION, theirs=theirs),
            "ratio",
        )
        for work, theirs, wanted in _ADAPTED
    ]


def _served(figures: list[Row]) -> list[Row]:
    ours, theirs = (_find(figures, server=server, streams=64) for server in ("Ringline", "vLLM + SMG"))
    both = None if ours is None or theirs is None else {"ratio": ours["tok/s"] / theirs["tok/s"]}
    one = _find(figures, server="Ringline", streams=1)
    return [
        _verdict("64 streams served: tok/s, Ringline / vLLM + SMG", 3.0, both, "ratio"),
        _verdict("1 stream served: gap p50, ms", 1.5, one, "gap p50 ms", at_most=True),
        _verdict("1 stream served: TTFT p50, ms", 8.0, one, "TTFT p50 ms", at_most=True),
    ]


def _find(rows: list[Row], **wanted: object) -> Row | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def _verdict(what: str, wanted: float, row: Row | None, key: str, at_most: bool = False) -> Row:
    reached = None if row is None else row[key]
    good = reached is not None and (reached <= wanted if at_most else reached >= wanted)
    spread = None if row is None or row.get("low") is None else f"{row['low']:.3g} … {row['high']:.3g}"
    return {
        "what": what,
        "must be": f"{'≤' if at_most else '≥'} {wanted:g}",
        "is": reached,
        "between": spread if key in ("ratio", RATIO, "seconds", "served / offline") else None,
        "verdict": "not measured" if reached is None else "reached" if good else "short",
    }
