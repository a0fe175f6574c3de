"""How the suite is spread over processes: files stay whole, all that share the running ring stay together, and what
takes long begins first, so that no process works alone at the end. And how it bears a machine that stands still.
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.loopback import dial_directly

pytest_plugins = ["tests.ring", "tests.services.secured_ring"]

_SHARED = ("ring", "secured")
"""Fixtures of the whole session; no test has both. A module with fixtures of its own has one of these in every test or
in none: in two groups, its own would be built twice.
"""

_ON_REQUEST = ("wide", "models", "distributed", "grammars", "doors", "speculation")
"""Markers of tests that run only if they are asked for."""

_MARKED = re.compile(rf"^pytestmark = \[?pytest\.mark\.({'|'.join(_ON_REQUEST)})\b", re.MULTILINE)
"""What marks all tests of a file."""

dial_directly()

# How long an example takes says nothing where machines are shared: by default, one of 0.2 s would be a failure.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def _group(item: pytest.Item) -> str:
    """Fixtures wider than one test would otherwise be built once per process."""
    shared = [name for name in _SHARED if name in getattr(item, "fixturenames", ())]
    return shared[0] if shared else item.nodeid.split("::")[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.config.pluginmanager.hasplugin("xdist"):  # not for the client's tests alone
        item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_addoption(parser: pytest.Parser) -> None:
    for name in _ON_REQUEST:
        parser.addoption(f"--{name}", action="store_true", help=f"the tests marked {name}, and no others")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which every test is left out are not even imported: some need a second and a library of their own."""
    if collection_path.suffix != ".py" or (marked := _MARKED.search(collection_path.read_text())) is None:
        return None
    return True if not config.getoption(f"--{marked[1]}") else None


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _is_left_out(item: pytest.Item, asked: str | None) -> bool:
    marks = {name for name in _ON_REQUEST if item.get_closest_marker(name) is not None}
    return (asked not in marks if asked else bool(marks)) or (
        item.get_closest_marker("gpu") is not None and not _has_gpu()
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = next((name for name in _ON_REQUEST if config.getoption(f"--{name}")), None)
    left_out = {item for item in items if _is_left_out(item, asked)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    long = {_group(item) for item in items if item.get_closest_marker("long")} | set(_SHARED)
    items.sort(key=lambda item: _group(item) not in long)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Where coverage is measured (`make coverage`), it is known by which test each line was executed."""
    if (coverage := sys.modules.get("coverage")) is not None and (measured := coverage.Coverage.current()) is not None:
        measured.switch_context(item.nodeid.partition("[")[0].partition("@")[0])
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests stay: a garbage collection that visits them takes 0.5 s, and some tests ask for many."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected
