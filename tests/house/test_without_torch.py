"""The CPU tiers load from an environment that has neither torch nor transformers (``.venv-cpu``)."""

from __future__ import annotations

import json

import pytest

from tests.programs import output_of
from tests.ring import ROOT

BIN = ROOT / ".venv-cpu" / "bin"
PLANNING = ("config", "errors", "request", "scheduling.scheduler", "step", "validation")
PROBE = """
import importlib, importlib.util, json, sys
absent = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
for path in sys.argv[1:]:
    module, _, entry = path.partition(":")
    loaded = importlib.import_module(module)
    assert not entry or callable(getattr(loaded, entry)), path
print(json.dumps(absent))
"""


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    assert (BIN / "python").exists(), "run `make setup`, which installs .venv-cpu"


@pytest.mark.parametrize(
    "modules",
    [
        ["services.processor.main:run"],
        ["services.detokenizer.main:run"],
        ["services.gateway.main:run"],
        ["services.cli.main:main"],
        [f"engine_core.{name}" for name in PLANNING],
    ],
    ids=lambda modules: modules[0],
)
def test_a_program_and_planning_load_without_torch(modules: list[str]) -> None:
    found = json.loads(output_of(BIN / "python", "-c", PROBE, *modules))
    assert found == ["torch", "transformers"]


def test_commands_are_there() -> None:
    shown = output_of(BIN / "ringline", "--help")
    commands = "serve engine processor detokenizer gateway generate chat status bench demo"
    assert not [command for command in commands.split() if command not in shown]
