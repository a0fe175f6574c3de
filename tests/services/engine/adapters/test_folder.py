"""The watched folder: what is reported when its folders come, change, are half written and go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from services.engine.adapters import folder as module
from services.engine.adapters.folder import AdapterFolder, FolderChanges
from tests.services.engine.adapters.adapter_files import write_adapter

NOTHING = FolderChanges([], [])


def test_what_is_there_at_first_is_reported_at_once(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write_adapter(tmp_path / name, name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write_adapter(tmp_path / ".hidden", "x")
    folder = AdapterFolder(tmp_path)
    assert folder.scan() == FolderChanges(["a", "b"], [])
    assert folder.scan() == NOTHING


def test_a_change_is_reported_once_it_stays(tmp_path: Path) -> None:
    folder = AdapterFolder(tmp_path)
    assert folder.scan() == NOTHING
    for part in ("x", "xy", "xyz"):
        write_adapter(tmp_path / "a", part)
        assert folder.scan() == NOTHING, "it is being written"
    assert folder.scan() == FolderChanges(["a"], [])
    assert folder.scan() == NOTHING
    write_adapter(tmp_path / "new", "zyx")
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "new").rename(tmp_path / "a")
    assert folder.scan() == NOTHING
    assert folder.scan() == FolderChanges(["a"], []), "of equal size"


def test_weights_that_come_after_the_configuration_are_a_change(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "adapter_config.json").write_text("{}")
    folder = AdapterFolder(tmp_path)
    assert folder.scan() == FolderChanges(["a"], [])
    write_adapter(tmp_path / "a", "x")
    assert [folder.scan(), folder.scan()] == [NOTHING, FolderChanges(["a"], [])]


def test_one_that_goes_is_reported_once_it_stays_away(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", "x")
    folder = AdapterFolder(tmp_path)
    folder.scan()
    (tmp_path / "a").rename(tmp_path / ".away")
    assert folder.scan() == NOTHING
    (tmp_path / ".away").rename(tmp_path / "a")
    assert [folder.scan(), folder.scan(), folder.scan()] == [NOTHING] * 3, "it was only away for a moment"
    shutil.rmtree(tmp_path / "a")
    assert [folder.scan(), folder.scan(), folder.scan()] == [NOTHING, FolderChanges([], ["a"]), NOTHING]
    write_adapter(tmp_path / "a", "x")
    assert [folder.scan(), folder.scan()] == [NOTHING, FolderChanges(["a"], [])]


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        write_adapter(tmp_path / "versions" / version, "x")
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "a").symlink_to(tmp_path / "versions" / "v1")
    folder = AdapterFolder(tmp_path / "dir")
    assert folder.scan() == FolderChanges(["a"], [])
    (tmp_path / "dir" / "b").symlink_to(tmp_path / "versions" / "v2")
    (tmp_path / "dir" / "b").rename(tmp_path / "dir" / "a")
    assert [folder.scan(), folder.scan()] == [NOTHING, FolderChanges(["a"], [])]


def test_a_folder_that_cannot_be_read_for_a_while_changes_nothing(tmp_path: Path) -> None:
    write_adapter(tmp_path / "dir" / "a", "x")
    folder = AdapterFolder(tmp_path / "dir")
    folder.scan()
    (tmp_path / "dir").rename(tmp_path / "away")
    assert [folder.scan(), folder.scan(), folder.scan()] == [NOTHING] * 3
    (tmp_path / "away").rename(tmp_path / "dir")
    assert folder.scan() == NOTHING


def test_names_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ADAPTERS", 3)
    for number in range(5):
        write_adapter(tmp_path / f"a{number}", "x")
    os.mkfifo(tmp_path / "a0" / "pipe")
    folder = AdapterFolder(tmp_path)
    assert folder.scan() == FolderChanges(["a0", "a1", "a2"], [])
    shutil.rmtree(tmp_path / "a1")
    assert [folder.scan(), folder.scan()] == [NOTHING, FolderChanges(["a3"], ["a1"])]
