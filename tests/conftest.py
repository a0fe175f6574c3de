"""How the suite is spread over processes: files stay whole, and all that share the running ring stay together."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.ring"]


def pytest_itemcollected(item: pytest.Item) -> None:
    # Fixtures wider than one test would otherwise be built once per process.
    group = "ring" if "ring" in getattr(item, "fixturenames", ()) else str(item.path)
    item.add_marker(pytest.mark.xdist_group(group))
