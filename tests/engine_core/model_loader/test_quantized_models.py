"""Models whose linear layers are rounded to 8 or 4 bits when loaded: near the original, sized as told, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.quality import measure, ways
from engine_core.errors import OutOfMemoryError
from engine_core.llm import configure
from engine_core.model_loader.loader import model_outline
from engine_core.platforms import cpu
from engine_core.progress import StartupProgress
from engine_core.startup import choose_workers, start_executor
from tests.engine_core.models.driver import build_model, load, logits_of, open_at
from tests.engine_core.models.families.experts import SHAPES
from tests.engine_core.models.tiny_models import CASES, make_model, save_model

NEAR = {name: (CASES | SHAPES)[name] for name in ("llama-mha-tied-biases", "qwen3-padded", "olmo2", "qwen2_moe")}


@pytest.mark.parametrize(("quantization", "most"), [("int8", 0.15), ("int4", 0.6)])
@pytest.mark.parametrize("case", NEAR)
def test_logits_are_near_those_of_the_original(case: str, quantization: str, most: float, tmp_path: Path) -> None:
    """With random weights nothing stands out, so rounding moves logits by some percent of their spread."""
    save_model(make_model(NEAR[case]).to(torch.bfloat16), tmp_path)  # computed in another type
    ids = torch.randint(0, 199, (40,), generator=torch.Generator().manual_seed(0))
    exact, rounded = logits_of(load(tmp_path), ids), logits_of(load(tmp_path, quantization=quantization), ids)
    error = (rounded - exact).std() / exact.std()
    assert 1e-4 < error < most, error


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("load_format", ["auto", "dummy"])
@pytest.mark.parametrize("case", ["llama-gqa", "llama-mha-tied-biases"])
def test_memory_is_told_before_loading(case: str, load_format: str, quantization: str | None, tmp_path: Path) -> None:
    """But for padding, which is a lot of so small a model; untied embeddings stay as they are."""
    save_model(make_model(CASES[case]), tmp_path)
    checkpoint = open_at(tmp_path, load_format, dtype="float32", quantization=quantization)
    model = build_model(checkpoint)
    assert model.expected_weight_bytes == pytest.approx(model.weight_bytes, rel=0.1)


def test_rounded_weights_fit_where_the_original_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model(make_model(CASES["llama-mha-tied-biases"]), tmp_path)
    full, rounded = (model_outline(open_at(tmp_path, quantization=q)).expected_weight_bytes for q in (None, "int8"))
    assert rounded < 0.35 * full
    # Too little for the first engine's weights and enough for the second's, whose cache then finds more.
    usable = iter([(full + rounded) // 2] * 2 + [1 << 30])
    monkeypatch.setattr(cpu, "usable_memory", lambda: next(usable))
    options = {"model": str(tmp_path), "kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 2}
    with pytest.raises(OutOfMemoryError, match=r"the weights take .* as float32.*--quantization int8"):
        start_executor(choose_workers(configure(**options)), StartupProgress())
    start_executor(choose_workers(configure(**options, quantization="int8")), StartupProgress()).close()


def test_the_bundled_model_keeps_its_distributions() -> None:
    """The bounds are some way above what docs/reference/quantization.md has for 200 documents."""
    names = {"bfloat16", "int8", "int4 in groups of 32"}
    compared = [way for way in ways() if way.name in names]
    rows = {str(row["weights"]): row for row in measure(6, random=False, compared=compared)}
    int8, int4 = rows["int8"], rows["int4 in groups of 32"]
    assert rows["bfloat16"]["top-1 %"] == 100
    assert 0 < float(int8["KL mean, mnat"]) < 3
    assert float(int8["top-1 %"]) > 96
    assert float(int8["KL mean, mnat"]) < float(int4["KL mean, mnat"]) < 30
    assert float(int4["top-1 %"]) > 88
