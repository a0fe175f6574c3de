"""The package for npm, built and packed as it is published, and installed in folders of programs that use it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tarfile
from pathlib import Path

from tests.programs import output_of
from tests.ring import ROOT, Ring

PACKAGE = ROOT / "clients" / "typescript"
NAME = "@ringline/client"
PROGRAMS = Path(__file__).resolve().parent / "typescript"
PAGES = (PACKAGE / "README.md", ROOT / "docs" / "reference" / "typescript.md")
EXAMPLES = {
    f"{page.stem.lower()}-{number}": match[1]
    for page in PAGES
    for number, match in enumerate(re.finditer(r"^```typescript\n(.*?)^```$", page.read_text(), re.M | re.S), 1)
}
"""The programs that the pages print."""
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


def compiled_programs(tarball: Path, folder: Path, ring: Ring) -> Path:
    """Where the programs of ``typescript/`` and of the pages are, compiled under strict types, for this ring."""
    install(tarball, folder, "zod", "typescript", "@types/node")
    for path in PROGRAMS.iterdir():
        shutil.copy(path, folder)
    for name, code in EXAMPLES.items():
        code = code.replace("127.0.0.1:50051", ring.address).replace("http://127.0.0.1:8000", ring.http)
        (folder / f"{name}.ts").write_text(code)
    output_of("node", "node_modules/typescript/bin/tsc", "-p", ".", cwd=folder)
    return folder / "js"
