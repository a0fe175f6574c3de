"""The numerics digest differs where results may, and only there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import transformers

from engine_core.llm import configure
from engine_core.model_loader.checkpoint import open_checkpoint
from engine_core.vision.qwen_vl import QwenVL
from engine_core.worker.worker import Worker

from ..models.tiny_models import CASES, make_model, save_model
from ..pictures import TinyVision, make_multimodal, seeing


def numerics(model: Path, **options: object) -> str:
    config = configure(**{"model": str(model), "dtype": "float32", "num_threads": 1} | options)
    worker = Worker(config, open_checkpoint(config.model, config.load))
    worker.init_device()
    report = worker.load_model(lambda done, total: None)
    return f"{report.model_digest} {report.numerics}"


def test_whatever_computes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, another = (
        save_model(make_model(CASES[name]), tmp_path / name) for name in ("llama-gqa", "llama-mha-tied-biases")
    )
    found = [
        numerics(model),
        numerics(another),
        numerics(model, dtype="bfloat16"),
        numerics(model, attention_backend="torch"),
        numerics(model, kv_cache_dtype="int8"),
        numerics(model, kv_cache_dtype="fp8"),
    ]
    assert numerics(model) == found[0]
    assert numerics(model, num_threads=2) == found[0], "threads change no result"
    monkeypatch.setattr("engine_core.platforms.cpu.instruction_sets", lambda: ["another"])
    found.append(numerics(model))
    monkeypatch.undo()
    # Another of numpy's code paths may compute another last bit of a logarithm.
    extensions = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": {"found": [*extensions, "ANOTHER"]}})
    found.append(numerics(model))
    assert len(set(found)) == len(found)


def test_what_computes_pictures_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = make_multimodal("Idefics3ForConditionalGeneration", tmp_path)
    with seeing():
        before = numerics(model)
        assert numerics(model) == before
        monkeypatch.setattr(TinyVision, "numerics", ("another",))
        assert numerics(model) != before
    assert QwenVL.numerics == (f"a tower of transformers {transformers.__version__}",)
