"""Patterns that people use are matched; those that take too long are refused, or stopped."""

from __future__ import annotations

import pytest

from engine_core.errors import CheckpointError
from engine_core.quantization import name_patterns
from engine_core.quantization.name_patterns import NamePatterns

NAME = "model.layers.12.mlp.experts.3.gate_proj"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"re:.*mlp.*", True),
        (r".*\.layers\.(1[0-9]|[0-9])\..*mlp.*proj$", True),
        (r"re:.*layers\.\d+\.mlp\.experts\.\d+\.(gate|up|down)_proj.*", True),
        (r"^(?!.*(lm_head|gate)).*proj$", False),
        (r"model\.layers\.(?:[0-9]|1[01])\.", False),
        (r"(?:abc)*(?i:MODEL).{5,}", True),
    ],
)
def test_patterns_in_use(pattern: str, found: bool) -> None:
    assert NamePatterns("GPTQ").matcher(pattern)(NAME) == found


@pytest.mark.parametrize("pattern", ["[", "(" * 2000, "a{99999999999}", "x" * 70_000], ids=["[", "(", "a{…}", "long"])
def test_what_cannot_be_compiled_is_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match=r"GPTQ: .* in quantization_config (is not a regular|is longer)"):
        NamePatterns("GPTQ").matcher(pattern)


def test_all_patterns_together_have_so_much_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_patterns, "_MOST_SECONDS", 0.01)
    patterns = NamePatterns("GPTQ")
    matches = patterns.matcher("(?:(?:.?){60}){60}x")
    with pytest.raises(CheckpointError, match=r"in quantization_config and others take more than .* s to match names"):
        matches(NAME)
