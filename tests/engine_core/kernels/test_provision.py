"""The library of native kernels is found, or built where this user may write, and never taken from another user."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from engine_core.kernels import library, provision
from engine_core.kernels.build import LIBRARY, BuildError, source_digest
from engine_core.kernels.library import KernelLibrary, KernelsUnavailableError, load_kernels
from engine_core.kernels.provision import MAX_CACHED, PACKAGE, find_library, provide_library

NOBODY, HOMELESS = 65534, 54321
AS_AN_ORDINARY_USER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from engine_core.kernels.provision import BuildError, provide_library
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
os.umask(0o002)
try:
    print(provide_library(sys.argv[2] or None))
except BuildError as error:
    print("BuildError:", error)
"""
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that every user may enter, unlike ``tmp_path``."""
    with tempfile.TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture
def package(folder: Path) -> Iterator[Path]:
    """An installation that an ordinary user may only read, without the library."""
    kernels = folder / "site-packages" / "engine_core" / "kernels"
    shutil.copytree(PACKAGE / "cpu", kernels / "cpu")
    for name in ("__init__.py", "kernels/__init__.py", "kernels/build.py", "kernels/provision.py"):
        shutil.copy(PACKAGE.parent / name, kernels.parent / name)
    kernels.chmod(0o555)
    yield kernels
    kernels.chmod(0o755)


@pytest.fixture
def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the only one in PATH, with a g++ that takes no minute: it links what ``make`` has compiled."""
    programs = folder / "programs"
    programs.mkdir()
    shutil.copy(PACKAGE / LIBRARY, programs)
    (programs / LIBRARY).chmod(0o755)
    steps = f'/bin/echo "$1" >> {programs}/calls\nfor output; do :; done\n/bin/cp {programs}/{LIBRARY} "$output"\n'
    (programs / "calls").touch()
    (programs / "calls").chmod(0o666)
    (programs / "g++").write_text(f"#!/bin/sh\n{steps}")
    (programs / "g++").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    return programs


def cache_of_nobody(folder: Path) -> Path:
    """A folder that nobody owns."""
    (folder / "home").mkdir()
    if os.getuid() == 0:
        os.chown(folder / "home", NOBODY, NOBODY)
    return folder / "home" / "cache" / "ringline"


def start(package: Path, cache: Path | str, programs: Path | str, uid: int = NOBODY) -> subprocess.Popen[str]:
    arguments = [str(package.parents[1]), str(cache), str(uid)]
    return subprocess.Popen(
        [sys.executable, "-I", "-c", AS_AN_ORDINARY_USER, *arguments],
        env={"PATH": str(programs)},
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )


def provided(package: Path, cache: Path | str, programs: Path | str, uid: int = NOBODY) -> str:
    said, _ = start(package, cache, programs, uid).communicate(timeout=60)
    return said.strip()


@pytest.mark.parametrize("beside", ["nothing", "unreadable", "of other sources"])
def test_an_ordinary_user_builds_into_a_cache_once(beside: str, package: Path, compiler: Path, folder: Path) -> None:
    package.chmod(0o755)
    if beside != "nothing":
        (package / LIBRARY).write_bytes(source_digest().encode() if beside == "unreadable" else b"another")
        (package / LIBRARY).chmod(0o000 if beside == "unreadable" else 0o644)
    package.chmod(0o555)
    cache = cache_of_nobody(folder)
    path = Path(provided(package, cache, compiler))
    assert path.parent == cache
    assert source_digest() in path.name
    assert [stat.S_IMODE(each.stat().st_mode) for each in (cache.parent, cache, path)] == [0o700, 0o700, 0o600]
    assert [each.name for each in cache.iterdir()] == [path.name]
    assert path.read_bytes() == (PACKAGE / LIBRARY).read_bytes()
    assert provided(package, cache, "/nowhere") == str(path)  # g++ is neither there nor needed


def test_a_readable_library_beside_the_package_is_preferred(package: Path, compiler: Path, folder: Path) -> None:
    package.chmod(0o755)
    shutil.copy(PACKAGE / LIBRARY, package)
    assert provided(package, cache_of_nobody(folder), compiler) == str(package / LIBRARY)


def test_of_two_that_start_at_once_one_compiles(package: Path, compiler: Path, folder: Path) -> None:
    cache = cache_of_nobody(folder)
    both = [start(package, cache, compiler) for _ in range(2)]
    first, second = (each.communicate(timeout=60)[0].strip() for each in both)
    assert first == second
    assert Path(first).parent == cache
    assert (compiler / "calls").read_text().split().count("-shared") == 1


@pytest.mark.usefixtures("cache_of_a_new_user")
def test_an_interrupted_build_goes_on_where_it_stopped(tmp_path: Path, compiler: Path) -> None:
    def compiled() -> int:
        return (compiler / "calls").read_text().split().count("-std=c++17")

    package, told = tmp_path / "package", []
    package.mkdir()
    old = package / f"objects-{platform.node()}-of-other-sources"
    old.mkdir()
    with pytest.raises(KeyboardInterrupt):
        provide_library(None, package, Mock(side_effect=KeyboardInterrupt))
    assert not old.exists()
    assert compiled() > 0
    assert not (package / LIBRARY).exists()
    path = provide_library(None, package, lambda done, total: told.append((done, total)))
    assert told == [(done, compiled()) for done in range(1, compiled() + 1)]  # each once, in both builds together
    assert list(package.iterdir()) == [path]


@as_root
def test_what_another_user_owns_is_neither_used_nor_written(package: Path, compiler: Path, folder: Path) -> None:
    cache = cache_of_nobody(folder)
    path = Path(provided(package, cache, compiler))
    os.chown(path, 1, 1)
    assert "belongs to another user" in provided(package, cache, compiler)
    os.chown(path, NOBODY, NOBODY)
    os.chown(cache, 1, 1)
    cache.chmod(0o777)
    assert f"{cache}: it belongs to another user" in provided(package, cache, compiler)
    assert f"{package}: it is not writable" in provided(package, cache, compiler)


def test_what_others_may_write_is_not_used(package: Path, compiler: Path, folder: Path) -> None:
    cache = cache_of_nobody(folder)
    path = Path(provided(package, cache, compiler))
    for each, mode in ((path, 0o602), (cache, 0o770)):
        before = each.stat().st_mode
        each.chmod(mode)
        assert "other users can write to it" in provided(package, cache, compiler)
        each.chmod(before)
    assert provided(package, cache, compiler) == str(path)


@as_root
def test_without_a_home_there_is_no_cache(package: Path, compiler: Path) -> None:
    said = provided(package, "", compiler, uid=HOMELESS)
    assert said == f"BuildError: no directory can hold them ({package}: it is not writable)"


def test_nobody_waits_for_ever_for_one_that_builds(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    monkeypatch.setattr(provision, "_PATIENCE", 0.0)
    held = os.open(package, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert provide_library(str(cache), package).parent == cache
    os.close(held)
    assert list(package.iterdir()) == []


def test_a_cache_keeps_the_latest_libraries(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision.os, "access", lambda path, mode: path != tmp_path)
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    for age in range(MAX_CACHED + 2):
        old = cache / f"libringline_cpu-{age}.so"
        old.touch()
        os.utime(old, (age, age))
    built = provide_library(str(cache), tmp_path)
    kept = {f"libringline_cpu-{age}.so" for age in range(3, MAX_CACHED + 2)}
    assert {path.name for path in cache.iterdir()} == {built.name} | kept


def test_an_empty_name_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert provision.places("", PACKAGE, "digest") == provision.places(None, PACKAGE, "digest")


def test_machines_that_share_a_home_do_not_mix_what_they_build(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locks of a shared folder hold on one machine only."""
    package, cache, host, copy = tmp_path / "package", str(tmp_path / "cache"), ["one"], shutil.copy
    package.mkdir()
    monkeypatch.setattr(provision.os, "access", lambda path, mode: path != package)
    monkeypatch.setattr(provision, "_one_builder", lambda directory: nullcontext())
    monkeypatch.setattr(provision.platform, "node", lambda: host[-1])

    def copy_slowly(source: Path, target: Path) -> None:
        if host[-1] == "other":
            copy(source, target)
            return
        content = source.read_bytes()
        target.write_bytes(content[:1000])
        host.append("other")
        provide_library(cache, package)
        host.pop()
        with target.open("ab") as file:
            file.write(content[1000:])

    monkeypatch.setattr(provision.shutil, "copy", copy_slowly)
    assert provide_library(cache, package).read_bytes() == (PACKAGE / LIBRARY).read_bytes()
    assert len(list(Path(cache).iterdir())) == 1


def test_a_library_of_other_sources_is_replaced(tmp_path: Path, compiler: Path) -> None:
    current = (PACKAGE / LIBRARY).read_bytes()
    (tmp_path / LIBRARY).write_bytes(current.replace(source_digest().encode(), b"0" * len(source_digest())))
    for _ in range(2):
        load_kernels(library=KernelLibrary(str(tmp_path / "cache"), tmp_path))
    assert (compiler / "calls").read_text().split().count("-shared") == 1
    assert [path.name for path in tmp_path.iterdir()] == [LIBRARY]


def test_without_room_for_a_build_there_are_no_kernels(
    tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_half(source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(provision.shutil, "copy", copy_half)
    cache = tmp_path / "cache"
    with pytest.raises(KernelsUnavailableError, match="No space left on device"):
        load_kernels(library=KernelLibrary(str(cache), tmp_path))
    assert list(tmp_path.iterdir()) == [cache]
    assert list(cache.iterdir()) == []


def test_what_does_not_compile_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = Mock(side_effect=BuildError("these sources do not compile"))
    monkeypatch.setattr(provision, "build", build)
    broken = KernelLibrary(str(tmp_path / "cache"), tmp_path)
    for _ in range(2):
        with pytest.raises(KernelsUnavailableError, match="these sources do not compile"):
            broken.load()
    build.assert_called_once()


def test_what_is_no_library_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / LIBRARY).write_bytes(source_digest().encode())
    with pytest.raises(KernelsUnavailableError, match="cannot be loaded"):
        load_kernels(library=KernelLibrary(str(tmp_path / "cache"), tmp_path))


def test_sources_that_cannot_be_read_are_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = PermissionError(errno.EACCES, "Permission denied", "team.h")
    monkeypatch.setattr(provision, "source_digest", Mock(side_effect=unreadable))
    with pytest.raises(BuildError, match=r"sources cannot be read: team\.h: Permission denied"):
        find_library(package=tmp_path)
    nowhere = KernelLibrary(package=tmp_path)
    assert not nowhere.is_built()
    with pytest.raises(KernelsUnavailableError, match="cannot be read"):
        nowhere.load()


def test_a_process_keeps_the_library_that_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "source_digest", lambda: "another")
    with pytest.raises(KernelsUnavailableError, match="sources have changed since this process loaded it"):
        load_kernels()


def test_a_pipe_in_the_place_of_a_library_is_not_read(tmp_path: Path) -> None:
    """Nobody writes to it: whoever opened it would wait for ever."""
    package = tmp_path / "package"
    package.mkdir()
    os.mkfifo(package / LIBRARY)
    look = "import sys; from pathlib import Path; from engine_core.kernels.provision import find_library as find; "
    command = [sys.executable, "-c", look + "print(find(sys.argv[1], Path(sys.argv[2])))", tmp_path / "none", package]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout == "None\n"
