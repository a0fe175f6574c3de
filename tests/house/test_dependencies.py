"""What is imported is declared, and what is declared is pinned."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
OWN = {"ringline", "ringline-server"}
WITH_TORCH = {"triton"}
"""Comes with torch where torch is built for CUDA, and is imported nowhere else."""
ON_REQUEST = {"ray", "smg_grpc_proto"}
"""Extras of their own, each of which one room imports (contracts of import-linter)."""
OF_CUDA = ("cuda-", "nvidia-")
"""The libraries that such a torch brings, in the versions that it was built with."""


def declared(distribution: str, extra: str = "") -> list[Requirement]:
    """Requirements of a distribution that apply here, with those of an extra."""
    requirements = map(Requirement, importlib.metadata.requires(distribution) or ())
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})]


def names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def third_party(folder: Path, without: tuple[str, ...] = ()) -> set[str]:
    """Top-level modules that the files below ``folder`` import and that are neither ours nor Python's."""
    found = set()
    for path in folder.rglob("*.py"):
        if path.relative_to(folder).parts[0] in without:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"engine_core", "services", "text_core"}


@pytest.mark.parametrize(
    ("folder", "without", "distribution", "extra"),
    [
        ("clients/python/ringline", (), "ringline", ""),
        ("services", ("engine",), "ringline-server", "tracing"),
        ("services/processor/vllm_engine_api", (), "ringline-server", "smg"),
        ("services/engine", (), "ringline-server", "engine"),
        ("engine_core", (), "ringline-server", "engine"),
        ("text_core", (), "ringline-server", ""),
    ],
)
def test_imports_are_declared(folder: str, without: tuple[str, ...], distribution: str, extra: str) -> None:
    allowed = names(declared(distribution, extra)) | {distribution}
    allowed |= WITH_TORCH if extra == "engine" else set()
    providers = importlib.metadata.packages_distributions()
    providers["ringline"] = ["ringline"]
    used = third_party(ROOT / folder, without) - (set() if extra == "smg" else ON_REQUEST)
    assert used
    undeclared = {
        module
        for module in used
        if not allowed & {canonicalize_name(name) for name in providers.get(module, ["nobody's"])}
    }
    assert not undeclared


def test_every_package_is_pinned() -> None:
    """``constraints.txt`` names all that the two distributions bring in, and it is what is installed here."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(r.name): r for r in map(Requirement, (line for line in lines if line[:1] not in "#"))}
    queue = [(name, extra) for name in OWN for extra in ("", "engine", "dev")]
    seen: set[tuple[str, str]] = set()
    wrong = set()
    while queue:
        name, extra = queue.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in declared(name, extra):
            required = canonicalize_name(requirement.name)
            queue += [(required, wanted) for wanted in ("", *requirement.extras)]
            if required in OWN or required.startswith(OF_CUDA):
                continue
            installed = Version(importlib.metadata.version(required))
            if required not in pins or not pins[required].specifier.contains(installed.public):
                wrong.add(f"{required} {installed}")
    assert len(seen) > 50
    assert not wrong
