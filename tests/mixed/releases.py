"""Source trees of the releases that are mixed."""

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
from tests.contract.later import BUF, PROTOS, lay_over
from tests.processes import Release
from tests.programs import output_of
from tests.ring import ROOT

BASELINE = "protos/baseline.binpb"
PRESENT = "protos/present.binpb"
"""This tree's contract, in the tree of the next release."""
_KERNELS = Path("engine_core/kernels")
_BUILD_TIMEOUT = 600


class UnknownRefError(Exception):
    """The commit is not in this repository; the message says what helps."""


def frozen() -> str:
    """The commit that last changed the contract's baseline."""
    try:
        commit = _git("log", "-1", "--format=%H", "--", BASELINE).decode().strip()
    except subprocess.CalledProcessError:
        commit = ""
    if not commit:
        raise UnknownRefError(f"no commit has {BASELINE}: this needs the repository's history")
    return commit


def release_of(ref: str, name: str, root: Path) -> Release:
    """Check out a commit, branch or tag to ``root``."""
    try:
        archive = _git("archive", ref)
    except subprocess.CalledProcessError:
        raise UnknownRefError(
            f"{ref} is no commit here: fetch the repository's history (git fetch --unshallow)"
        ) from None
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(root, filter="data")
    _provide_kernels(root)
    return Release(name, root)


def next_release(root: Path) -> Release:
    """Copy this tree to ``root`` with the next version's protos and stubs."""
    for name in filter(None, _git("ls-files", "-z", "--cached", "--others", "--exclude-standard").decode().split("\0")):
        if (source := ROOT / name).is_file():  # deleted files are listed, too
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, root / name)
    _provide_kernels(root)
    shutil.rmtree(root / "protos")
    lay_over(root / "protos")
    output_of(BUF, "build", PROTOS, "--exclude-source-info", "-o", root / PRESENT)
    oldest = ROOT / ".venv-oldest" / "bin"
    subprocess.run(
        [oldest / "python", root / "clients" / "python" / "generate.py"],
        env={**os.environ, "PATH": f"{oldest}:{os.environ['PATH']}"},
        check=True,
        timeout=_BUILD_TIMEOUT,
    )
    return Release("next", root, "tests.mixed.next_release")


def _provide_kernels(root: Path) -> None:
    """Copy this tree's native kernels if their sources are the same; else compile them."""
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
