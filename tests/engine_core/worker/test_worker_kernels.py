"""A start says that it compiles native kernels, or what is lost without them."""

from __future__ import annotations

import shutil
import warnings
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from engine_core.kernels.build import LIBRARY
from engine_core.kernels.library import KernelLibrary
from engine_core.kernels.provision import PACKAGE
from engine_core.llm import LLM
from engine_core.progress import StartupProgress
from engine_core.worker import worker
from services.engine.startup_log import StageLog

OPTIONS = {"kv_cache_memory_bytes": 4 << 20, "max_num_seqs": 2}


@pytest.fixture
def package(tmp_path: Path, cache_of_a_new_user: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One without the library, on a machine without g++."""
    package = tmp_path / "package"
    package.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(worker, "KernelLibrary", partial(KernelLibrary, package=package))
    return package


def lines_of_a_start(checkpoint: Path) -> list[dict[str, object]]:
    with capture_logs() as lines:
        LLM(checkpoint, progress=StartupProgress(StageLog()), **OPTIONS).close()
    return [dict(line) for line in lines]


def test_compiling_is_a_stage_of_its_own(checkpoint: Path, package: Path, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"  # takes no minute
    compiler.write_text(f'#!/bin/sh\nfor output; do :; done\n/bin/cp {PACKAGE / LIBRARY} "$output"\n')
    compiler.chmod(0o755)
    lines = lines_of_a_start(checkpoint)
    names = [line["name"] for line in lines if line["event"] == "stage"]
    assert names[:4] == ["configuration", "compile kernels", "device", "load weights"]
    begun, advanced, ended = [line for line in lines if line.get("name") == "compile kernels"]
    assert begun["event"] == "stage started"
    assert "takes a minute or two" in str(begun["detail"])
    assert advanced["event"] == "stage advanced"
    assert advanced["done_files"] == advanced["total_files"]
    assert ended["detail"] == f"into {package / LIBRARY}"
    again = lines_of_a_start(checkpoint)
    assert "compile kernels" not in [line.get("name") for line in again]
    assert {line["log_level"] for line in lines + again} == {"info"}


def test_without_kernels_a_warning_says_what_is_lost_and_what_helps(checkpoint: Path, package: Path) -> None:
    lines = lines_of_a_start(checkpoint)
    (warning,) = [line for line in lines if line["log_level"] == "warning"]
    for words in (
        "cannot be built: g++ is not installed",
        "several times slower",
        "depend on what else is in the batch",
    ):
        assert words in str(warning["reason"])
    assert "install g++" in str(warning["reason"])
    assert "set --kernel-cache-dir to one that belongs to this user" in str(warning["reason"])
    assert sum(str(line).count("g++ is not installed") for line in lines) == 1
    (warmed,) = [line for line in lines if line["event"] == "stage" and line["name"] == "warm up"]
    assert "in the batch here (native kernels change that: they need g++, and a folder" in str(warmed["detail"])


def test_offline_it_is_a_warning_of_python(checkpoint: Path, package: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"g\+\+ is not installed.*slower.*install g\+\+"):
        LLM(checkpoint, **OPTIONS).close()
    shutil.copy(PACKAGE / LIBRARY, package)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(checkpoint, **OPTIONS).close()
