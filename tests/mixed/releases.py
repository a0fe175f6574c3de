"""The releases that are mixed, each a tree of code that services are started from."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from engine_core.kernels.build import LIBRARY
from tests.chaos.fleet import Release
from tests.contract.later import lay_over
from tests.ring import ROOT

BASELINE = "protos/baseline.binpb"
_KERNELS = Path("engine_core/kernels")
_BUILD_TIMEOUT = 600


class UnknownRefError(Exception):
    """There is no such commit here; the text says which, and what helps."""


def frozen() -> str:
    """The commit at which the baseline of the contract was taken last."""
    try:
        commit = _git("log", "-1", "--format=%H", "--", BASELINE).decode().strip()
    except subprocess.CalledProcessError:
        commit = ""
    if not commit:
        raise UnknownRefError(f"no commit has {BASELINE}: this needs the repository's history")
    return commit


def release_of(ref: str, name: str, root: Path) -> Release:
    """The release at a commit, branch or tag, checked out to ``root``."""
    try:
        archive = _git("archive", ref)
    except subprocess.CalledProcessError:
        raise UnknownRefError(
            f"{ref} is no commit here: fetch the repository's history (git fetch --unshallow)"
        ) from None
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(root, filter="data")
    _take_kernels(root)
    return Release(name, root)


def next_release(root: Path) -> Release:
    """This tree with the contract of a later version, stubs and all, and services that make use of it."""
    for name in filter(None, _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")):
        if (source := ROOT / name).is_file():  # one that was removed is listed, too
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / name)
    _take_kernels(root)
    shutil.rmtree(root / "protos")
    lay_over(root / "protos")
    oldest = ROOT / ".venv-oldest" / "bin"
    subprocess.run(
        [oldest / "python", root / "clients" / "python" / "generate.py"],
        env={**os.environ, "PATH": f"{oldest}:{os.environ['PATH']}"},
        check=True,
        timeout=_BUILD_TIMEOUT,
    )
    return Release("next", root, "tests.mixed.next_release")


def _take_kernels(root: Path) -> None:
    """The library of native kernels that is here, if it is made of the same sources; else one is compiled."""
    library, here, there = ROOT / _KERNELS / LIBRARY, ROOT / _KERNELS, root / _KERNELS
    if not library.exists():
        return
    compared = filecmp.dircmp(here / "cpu", there / "cpu")
    different = compared.left_only or compared.right_only or compared.diff_files
    if different or not filecmp.cmp(here / "build.py", there / "build.py", shallow=False):
        subprocess.run([sys.executable, there / "build.py"], cwd=root, check=True, timeout=_BUILD_TIMEOUT)
    else:
        shutil.copy(library, there / LIBRARY)


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, timeout=60).stdout
