"""The package for npm, built and packed as it is published, and installed in folders of programs that use it."""

from __future__ import annotations

import hashlib
import json
import tarfile
from functools import cache
from pathlib import Path

from tests.programs import output_of
from tests.ring import ROOT

PACKAGE = ROOT / "clients" / "typescript"
NAME = "@ringline/client"
_SOURCES = ("protos/ringline", "clients/typescript/src", "clients/typescript/scripts")
_SETTINGS = ("package.json", "package-lock.json", "tsconfig.json", "buf.gen.yaml")


def manifest() -> dict[str, object]:
    found: dict[str, object] = json.loads((PACKAGE / "package.json").read_text())
    return found


def build() -> None:
    """Make ``dist`` of the sources and of the contract, unless it was made of what they are now."""
    modules = PACKAGE / "node_modules"
    assert modules.exists(), "run `make setup`, which installs what the TypeScript client needs"
    digest, stamp = _digest(), modules / ".built-from"
    if (PACKAGE / "dist").exists() and stamp.exists() and stamp.read_text() == digest:
        return
    output_of("npm", "run", "--silent", "build", cwd=PACKAGE)
    stamp.write_text(digest)


def _digest() -> str:
    """Of all that the build reads."""
    files = [path for source in _SOURCES for path in sorted((ROOT / source).rglob("*")) if path.is_file()]
    files = [path for path in files if "stubs" not in path.parts]
    hashed = hashlib.sha256()
    for path in [*files, *(PACKAGE / name for name in _SETTINGS)]:
        hashed.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return hashed.hexdigest()


@cache
def packed(folder: Path) -> Path:
    """The tarball, made in ``folder``."""
    build()
    told = output_of("npm", "pack", "--json", "--ignore-scripts", f"--pack-destination={folder}", cwd=PACKAGE)
    return folder / str(json.loads(told)[0]["filename"])


def install(tarball: Path, program: Path, *also: str) -> None:
    """Install the tarball in a program's folder, with the packages that it declares and those in ``also``.

    As npm does, but without a registry: the packages it needs are taken from the folder where it was built.
    """
    modules = program / "node_modules"
    target = modules / NAME
    target.parent.mkdir(parents=True)
    with tarfile.open(tarball) as archive:
        archive.extractall(modules, filter="data")
    (modules / "package").rename(target)
    (program / "package.json").write_text('{"type": "module"}')
    declared = json.loads((target / "package.json").read_text())["dependencies"]
    for name in (*declared, *also):
        link = modules / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(PACKAGE / "node_modules" / name)
