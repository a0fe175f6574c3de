"""Tests on an NVIDIA GPU; `make test-gpu` runs them with nothing of the services installed.

They take whatever torch (2.11 or newer) and triton they find. What torch does not initialize is left as it is on a GPU:
a graph's memory must not be written by anybody else. ``--device cpu`` rehearses them where there is no GPU.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

if "tests" not in sys.modules:
    # Some distributions install a package of this name, which would be found before a folder.
    sys.modules["tests"] = types.ModuleType("tests")
    sys.modules["tests"].__path__ = [str(Path(__file__).parents[1])]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: rehearse under an interpreter")
    with suppress(ValueError):  # beside tests/conftest.py, which has it
        parser.addoption("--wide", action="store_true", help="the tests marked wide, and no others")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
    if config.getoption("--device", default="cuda") == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # asked for before Triton is imported


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wide = config.getoption("--wide", default=False)
    left_out = {
        item for item in items if item.get_closest_marker("gpu") and bool(item.get_closest_marker("wide")) != wide
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", autouse=True)
def _device() -> Iterator[None]:
    import torch

    from tests.gpu.device import ON_CARD

    if ON_CARD:
        if not torch.cuda.is_available():
            pytest.exit("torch sees no GPU here: --device cpu rehearses these tests without one", returncode=1)
        yield
        return
    from tests.engine_core.kernels.interpreted_device import install, mend_interpreter

    with pytest.MonkeyPatch.context() as patch:
        install(patch, lengths=(3, 1, 2))
        mend_interpreter(patch)
        torch.use_deterministic_algorithms(True)  # what no kernel has written is NaN
        yield
        torch.use_deterministic_algorithms(False)
