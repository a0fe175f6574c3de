#!/usr/bin/env python3
"""Generate the stubs in ``ringline/`` from ``protos/``: ``make stubs``.

Runs with the oldest grpcio-tools that the package promises to support, so that its users may have any newer one.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]
OLDEST = Path(__file__).resolve().parent / "oldest_versions.txt"


def generate(out: Path) -> None:
    """Write the stubs of every proto of the contract below ``out``; raise ``SystemExit`` if protoc fails."""
    sources = sorted((ROOT / "protos" / "ringline").rglob("*.proto"))
    services = [path for path in sources if "\nservice " in path.read_text()]
    out.mkdir(parents=True, exist_ok=True)
    _protoc([f"--python_out={out}", f"--mypy_out=quiet:{out}"], sources)
    _protoc([f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"], services)
    for folder in sorted({path.relative_to(ROOT / "protos").parent for path in sources}):
        for package in (folder.parent, folder):  # pyright takes no stubs from folders that are no packages
            name = ".".join(package.parts)
            (out / package / "__init__.py").write_text(f'"""Stubs of the proto package {name}, generated."""\n')


def _protoc(outputs: list[str], sources: list[Path]) -> None:
    includes = [ROOT / "protos", ROOT / "protos" / "vendor", Path(grpc_tools.__file__).parent / "_proto"]
    code = protoc.main(["protoc", *(f"--proto_path={path}" for path in includes), *outputs, *map(str, sources)])
    if code:
        raise SystemExit(f"protoc failed with code {code}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="where ringline/ is written")
    args = parser.parse_args()
    pins = OLDEST.read_text().split()
    for tool in ("grpcio-tools", "mypy-protobuf"):
        if f"{tool}=={version(tool)}" not in pins:
            sys.exit(f"stubs are not generated with {tool} {version(tool)}, see {OLDEST.name}: run `make stubs`")
    generate(args.out)


if __name__ == "__main__":
    main()
