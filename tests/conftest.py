"""How the suite is spread over processes: files stay whole, all that share the running ring stay together, and what
takes long begins first, so that no process works alone at the end.
"""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.ring"]


def _group(item: pytest.Item) -> str:
    """Fixtures wider than one test would otherwise be built once per process."""
    return "ring" if "ring" in getattr(item, "fixturenames", ()) else item.nodeid.split("::")[0]


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    long = {_group(item) for item in items if item.get_closest_marker("long")} | {"ring"}
    items.sort(key=lambda item: _group(item) not in long)
