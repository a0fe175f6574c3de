"""What `kubectl kustomize` makes of a folder, for the few things that ours use: resources and strategic merge patches.

Anything else in a kustomization is refused, so that what is tested here is what a cluster gets.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]

MERGE_KEYS = {
    "containers": "name",
    "env": "name",
    "ports": "port",
    "volumes": "name",
    "volumeMounts": "mountPath",
}
"""Lists whose items are merged by a key, ports of a container by their own; other lists are replaced."""

REPLACE = {"$patch": "replace"}
"""Among a list's items: the others are the whole list."""


def render(folder: Path) -> list[Resource]:
    """Every resource, patched."""
    settings = yaml.load((folder / "kustomization.yaml").read_text(), yaml.CSafeLoader)
    unknown = settings.keys() - {"apiVersion", "kind", "resources", "patches"}
    assert not unknown, f"{folder}: {unknown} is not rendered here"
    resources: list[Resource] = []
    for name in settings["resources"]:
        path = (folder / name).resolve()
        resources += render(path) if path.is_dir() else read(path)
    for patch in settings.get("patches", ()):
        assert patch.keys() == {"path"}
        for change in read(folder / patch["path"]):
            (target,) = (one for one in resources if identity(one) == identity(change))
            resources[resources.index(target)] = merge(target, change)
    assert len({identity(one) for one in resources}) == len(resources)
    return resources


def read(path: Path) -> list[Resource]:
    """The documents of a file."""
    # Without the copies that anchors share, which a patch would change together.
    return [deepcopy(one) for one in yaml.load_all(path.read_text(), yaml.CSafeLoader)]


def identity(resource: Resource) -> tuple[str, str, str]:
    return resource["apiVersion"], resource["kind"], resource["metadata"]["name"]


def merge(old: Any, new: Any, name: str = "") -> Any:
    """A strategic merge: maps by key, where null removes; lists as their type says; all else replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        assert not any("$patch" in key for key in new)
        both = {key: merge(old.get(key), value, key) for key, value in new.items() if value is not None}
        return {key: value for key, value in old.items() if key not in new} | both
    if isinstance(new, list) and REPLACE in new:
        return [item for item in new if item != REPLACE]
    if isinstance(old, list) and isinstance(new, list) and name in MERGE_KEYS:
        key = MERGE_KEYS[name]
        if name == "ports" and "containerPort" in new[0]:
            key = "containerPort"
        by_key = {item[key]: item for item in old}
        added = [item for item in new if item[key] not in by_key]
        changes = {item[key]: item for item in new}
        return [merge(item, changes[item[key]]) if item[key] in changes else item for item in old] + added
    return new
