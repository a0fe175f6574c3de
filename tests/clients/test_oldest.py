"""The client distribution works with the oldest packages it promises, against a server that has the newest."""

from __future__ import annotations

import json
import tomllib

from packaging.requirements import Requirement

from tests.programs import output_of
from tests.ring import ROOT

PYTHON = ROOT / ".venv-oldest" / "bin" / "python"
CLIENT = ROOT / "clients" / "python"


def test_client_with_the_oldest_packages(ring) -> None:
    assert PYTHON.exists(), "run `make setup`, which installs the oldest supported packages"
    result = json.loads(output_of(PYTHON, ROOT / "tests" / "clients" / "oldest_client.py", ring.address))
    assert result["versions"] == floors(result["versions"])
    assert result["models"] == 1
    answer = result["generate"]
    assert len(answer["token_ids"]) == answer["completion_tokens"] == 12
    assert answer["text"]
    assert result["session"] == [answer] * 3
    assert result["bare"]["token_ids"] == answer["token_ids"]
    assert "temperature" in result["refusal"]
    assert (result["parsed"], result["content"]) == ({"a": 1}, '{"a": 1}')


def floors(packages: dict[str, str]) -> dict[str, str]:
    """The least version of each package that the distribution's metadata allows."""
    project = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]
    least = {}
    for requirement in map(Requirement, project["dependencies"]):
        (lower,) = (specifier for specifier in requirement.specifier if specifier.operator == ">=")
        least[requirement.name] = lower.version
    assert least.keys() == packages.keys()
    # 1.74 and 1.74.0 are one version; both files may write either.
    return {name: packages[name] if packages[name] in (v, f"{v}.0") else v for name, v in least.items()}
