"""The CPU tiers load from an environment that has neither torch nor transformers (``.venv-cpu``)."""

from __future__ import annotations

import json

import pytest

from tests.programs import output_of
from tests.ring import ROOT

BIN = ROOT / ".venv-cpu" / "bin"

PROBE = """
import importlib, importlib.util, json, sys
absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
module = importlib.import_module(sys.argv[1])
entry = callable(getattr(module, sys.argv[2])) if len(sys.argv) > 2 else None
print(json.dumps({"absent": absent, "entry": entry}))
"""


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    assert (BIN / "python").exists(), "run `make setup`, which installs .venv-cpu"


@pytest.mark.parametrize(
    ("module", "entry"),
    [
        ("services.processor.main", "run"),
        ("services.detokenizer.main", "run"),
        ("services.gateway.main", "run"),
        ("services.cli.main", "main"),
    ],
)
def test_program_loads_without_torch(module: str, entry: str) -> None:
    found = json.loads(output_of(BIN / "python", "-c", PROBE, module, entry))
    assert found == {"absent": ["torch", "transformers"], "entry": True}


@pytest.mark.parametrize("module", ["config", "errors", "request", "scheduling.scheduler", "step", "validation"])
def test_planning_loads_without_torch(module: str) -> None:
    found = json.loads(output_of(BIN / "python", "-c", PROBE, f"engine_core.{module}"))
    assert found["absent"] == ["torch", "transformers"]


def test_commands_are_there() -> None:
    shown = output_of(BIN / "ringline", "--help")
    for command in (
        "serve",
        "engine",
        "processor",
        "detokenizer",
        "gateway",
        "generate",
        "chat",
        "status",
        "bench",
        "demo",
    ):
        assert command in shown
