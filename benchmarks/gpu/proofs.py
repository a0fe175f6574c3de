"""Parts that are tests: files of ``tests/gpu``, run by pytest."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu.goals import GOALS
from benchmarks.report import Row

_ROOT = Path(__file__).resolve().parents[2]
_PROCESSES = 8
"""Which compile their kernels side by side, where pytest-xdist is installed and there is a GPU."""


def run_tests(name: str, file: str, device: str) -> Iterator[Row]:
    """Yields the share of tests that hold, of those that ran. Raises ``SystemExit`` if any failed."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-c", "tests/gpu/pytest.ini", "--rootdir", ".", "--durations=5"]
        command += ["--confcutdir", "tests/gpu", f"tests/gpu/{file}", "--device", device, f"--junitxml={report}"]
        command += ["--tb=short", "-q", "-o", "faulthandler_timeout=40"]
        if device == "cuda" and importlib.util.find_spec("xdist") is not None:
            command += ["-n", str(_PROCESSES)]
        code = subprocess.run(command, cwd=_ROOT, check=False).returncode
        if not report.exists():
            raise SystemExit(code or 1)
        yield _row(name, report)
    if code:
        raise SystemExit(code)


def _row(name: str, report: Path) -> Row:
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    ran = len(cases) - skipped
    held = ran - len(failed)
    return GOALS[name].reached(held / ran if ran else 0.0, tests=ran, skipped=skipped, failed=failed)
