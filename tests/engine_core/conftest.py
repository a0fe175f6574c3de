"""Tensors of random numbers are the same in every run: what fails once fails again. And the kernels of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from zlib import crc32

import pytest
import torch

from engine_core.kernels import provision
from engine_core.kernels.library import (
    INSTRUCTION_SETS,
    INT8_INSTRUCTION_SETS,
    KernelLibrary,
    Kernels,
    KernelsUnavailableError,
    load_int8_kernels,
    load_kernels,
)

_OF_INSTRUCTION_SETS = {"kernels", "int8_kernels", "backend"}
"""Fixtures whose parameter may be an instruction set."""
_LIBRARY = KernelLibrary()
"""Opened once: whether it belongs to the sources is seen from their digest."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each case runs with the best kernels of this machine, and two of three with others: with all in `test-wide`, and
    where tests are asked for by name.
    """
    if all("::" in argument for argument in config.args):
        return
    for item in items:
        params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        for fixture in _OF_INSTRUCTION_SETS & params.keys():
            sets, name = INT8_INSTRUCTION_SETS if fixture == "int8_kernels" else INSTRUCTION_SETS, params[fixture]
            if isinstance(name, str) and name in sets:
                best, *others = _sets_of_this_machine(sets)
                case = crc32(item.nodeid.replace(name, "").encode())
                if name not in (best, [*others, ""][case % (len(others) + 1)]):
                    item.add_marker(pytest.mark.wide)


@cache
def _sets_of_this_machine(sets: tuple[str, ...]) -> list[str]:
    """Best first."""
    load = load_int8_kernels if sets == INT8_INSTRUCTION_SETS else load_kernels
    found = []
    for name in sets:
        with suppress(KernelsUnavailableError):
            found.append(load(name, _LIBRARY).instruction_set)
    return found or list(sets)


@pytest.fixture
def cache_of_a_new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of kernels: whoever runs the tests may have a library in their own."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(provision, "USER_CACHE", cache)
    return cache


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.default_generator.manual_seed(0)  # torch's own function formats three stacks for devices that are not there


@pytest.fixture(params=INSTRUCTION_SETS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """The native kernels of every instruction set that this machine has."""
    return kernels_or_skip(load_kernels, request.param)


@pytest.fixture(params=INT8_INSTRUCTION_SETS)
def int8_kernels(request: pytest.FixtureRequest) -> Kernels:
    """Those of 8-bit weights."""
    return kernels_or_skip(load_int8_kernels, request.param)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama, not to be changed."""
    from .models.tiny_models import CASES, make_model, save_model  # which takes seconds, and not all tests need

    return save_model(make_model(CASES["llama-gqa"]), tmp_path_factory.mktemp("model"))


def kernels_or_skip(load: Callable[[str, KernelLibrary], Kernels], instruction_set: str) -> Kernels:
    """Skips the test where this processor lacks the instruction set."""
    try:
        return load(instruction_set, _LIBRARY)
    except KernelsUnavailableError as error:
        if "processor" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture
def restored_threads() -> Iterator[None]:
    """A test sets how many threads torch has."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def poisoned_memory(restored_threads: None) -> Iterator[None]:
    """Whatever torch allocates is NaN until written; and threads are as before."""
    torch.use_deterministic_algorithms(True)
    assert torch.ones(1, dtype=torch.bfloat16).new_empty(100, 16).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
