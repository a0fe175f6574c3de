"""The watched folder of ``--lora-dir``: each folder in it is an adapter of that name.

``scan`` only looks at names, sizes and times, so it may be called often. A folder whose files have changed counts when
two scans in a row see it alike: it may be half written. The same holds for one that is gone, which may be about to be
replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR

import structlog

from services.ring.identity import ADAPTER_NAME
from services.ring.limits import MAX_ADAPTERS

log = structlog.get_logger(__name__)

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_Seen = tuple[tuple[int, ...] | None, ...]
"""What tells that files have changed: device, inode, size and times of each; None for one that is missing."""


@dataclass(frozen=True, slots=True)
class FolderChanges:
    """What a scan found."""

    changed: list[str]
    """Names whose files are new, or others than before."""
    removed: list[str]


class AdapterFolder:
    """Use it in one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._settled: dict[str, _Seen] = {}
        """Names that were reported as changed, and as what."""
        self._unsettled: dict[str, _Seen | None] = {}
        """What the last scan saw for the first time; None: the name was gone."""
        self._warned: set[str] = set()
        """Warnings that hold at the moment, so that each is logged once."""
        self._has_scanned = False

    def path_of(self, name: str) -> str:
        return str(self.path / name)

    def exists(self) -> bool:
        return self.path.is_dir()

    def scan(self) -> FolderChanges:
        """Compare the folder with what earlier scans have reported. Blocks."""
        found = self._look()
        if found is None:
            return FolderChanges([], [])
        unsettled: dict[str, _Seen | None] = {}
        changed, removed = [], []
        for name, seen in found.items():
            if self._settled.get(name) == seen:
                continue
            if self._has_scanned and self._unsettled.get(name) != seen:
                unsettled[name] = seen
            else:
                self._settled[name] = seen
                changed.append(name)
        for name in self._settled.keys() - found.keys():
            if name in self._unsettled and self._unsettled[name] is None:
                del self._settled[name]
                removed.append(name)
            else:
                unsettled[name] = None
        self._unsettled, self._has_scanned = unsettled, True
        return FolderChanges(sorted(changed), sorted(removed))

    def _look(self) -> dict[str, _Seen] | None:
        """What there is, by name; None if the folder cannot be read."""
        try:
            folders = sorted(self.path.iterdir())
        except OSError as error:
            self._warn("the folder of adapters cannot be read", path=str(self.path), reason=error.strerror)
            return None
        self._warned.discard("the folder of adapters cannot be read")
        found: dict[str, _Seen] = {}
        for folder in folders:
            seen, name = _seen(folder), folder.name
            if seen is None:
                continue
            if ADAPTER_NAME.fullmatch(name) is None:
                self._warn("a folder is no adapter, as no adapter may have its name", path=str(folder))
            elif len(found) >= MAX_ADAPTERS:
                self._warn("the folder of adapters has more than there may be", path=str(self.path), most=MAX_ADAPTERS)
                break
            else:
                found[name] = seen
        return found

    def _warn(self, event: str, **told: object) -> None:
        if event not in self._warned:
            self._warned.add(event)
            log.warning(event, **told)


def _seen(folder: Path) -> _Seen | None:
    """None for what is no folder with an adapter's configuration."""
    config, weights = (_stat(folder / file) for file in (CONFIG_FILE, WEIGHTS_FILE))
    return None if config is None else (config, weights)


def _stat(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (
        None
        if S_ISDIR(found.st_mode)
        else (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    )
