"""The benchmark of embeddings gives all engines the same texts, and stops when one computes something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from benchmarks import embeddings
from benchmarks.contestants import OURS
from benchmarks.embedding_shapes import BertShape, write_checkpoint
from benchmarks.embeddings import ONNX_RUNTIME, compare_vectors
from benchmarks.targets import verdicts
from benchmarks.work import Work
from benchmarks.workers.embedder import texts_of


def test_texts_have_as_many_tokens_as_the_work_says(tmp_path: Path) -> None:
    write_checkpoint(BertShape(32, 64, 1, 2, "cls"), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    calls = texts_of(Work(3, 40, 0, seed=5, calls=2))
    assert [len(tokenizer(text).input_ids) for texts in calls for text in texts] == [40] * 6
    assert len({text for texts in calls for text in texts}) == 6
    assert json.loads((tmp_path / "1_Pooling" / "config.json").read_text())["pooling_mode_cls_token"] is True


def test_an_engine_that_computes_something_else_ends_the_comparison() -> None:
    compare_vectors({OURS: [1.0, 0.0], ONNX_RUNTIME: [1.0, 0.0001]})
    with pytest.raises(SystemExit, match=f"the vectors of {ONNX_RUNTIME} are not those of {OURS}"):
        compare_vectors({OURS: [1.0, 0.0], ONNX_RUNTIME: [0.8, 0.6]})


def test_the_worst_work_decides_a_target() -> None:
    rows = [{"engine": ONNX_RUNTIME, embeddings.RATIO: value, "low": value, "high": value} for value in (1.4, 1.05)]
    served = [{"served / offline": 0.9, "low": 0.8, "high": 1.0}]
    found = {row["what"]: row for row in verdicts({"embeddings": {"figures": {"figures": rows, "served": served}}})}
    worst = found[f"vectors, the worst of all works: {OURS} / {ONNX_RUNTIME}"]
    assert (worst["is"], worst["verdict"]) == (1.05, "short")
    assert found["vectors over HTTP / offline, the worst"]["verdict"] == "reached"
