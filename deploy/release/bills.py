"""Bills of materials (SBOM) in CycloneDX 1.6: of each distribution and image, what an installation of it consists of.

They are made from an environment into which the wheels are installed with the versions in constraints.txt, as users and
images do. An image's lists what Ringline puts into it; the packages of its base image, such as Debian's, are that
image's own. Each is checked against CycloneDX's schema.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from deploy.release.versions import ReleaseError

OWN = ("ringline", "ringline-server")
"""Names of the distributions, also on the Python package index."""
IMAGES = ("processor", "detokenizer", "gateway", "engine")
_TIERS = ("tracing", "smg")
"""Extras that every image has, as the Dockerfile says."""
_SECONDS = 3600


class _Bill(NamedTuple):
    """What is installed, on top of the bills before it, and which files list it."""

    names: tuple[str, ...]
    project: str
    """Folder of the main component's pyproject.toml."""
    extras: tuple[str, ...] | None
    """Of the server's distribution; None: the client alone."""
    kind: str


BILLS = (
    _Bill(("ringline",), "clients/python", None, "library"),
    _Bill(("ringline-server",), ".", (), "application"),
    _Bill(tuple(f"image-{name}" for name in IMAGES[:-1]), ".", _TIERS, "application"),
    _Bill(("image-engine",), ".", (*_TIERS, "engine"), "application"),
)


def write(root: Path, dist: Path, version: str, work: Path, say: Callable[[str], None]) -> list[Path]:
    """Write all bills into ``dist``; ``work`` is an empty folder for the environment. Raises ``ReleaseError``."""
    python = work / "environment" / "bin" / "python"
    _run([sys.executable, "-m", "venv", "--without-pip", work / "environment"], root)
    client, server = _wheel(dist, "ringline", version), _wheel(dist, "ringline_server", version)
    written = []
    from deploy.release.cyclonedx_json import checked, npm_bill  # not above: only `make release` installs what it needs

    for bill in BILLS:
        say(f"installing what {', '.join(bill.names)} consists of")
        wanted = [str(client)]
        if bill.extras is not None:
            wanted.append(f"{server}[{','.join(bill.extras)}]" if bill.extras else str(server))
        if bill.extras and "engine" in bill.extras:
            _install_torch(python, root)
        _pip(python, root, "-c", "constraints.txt", *wanted)
        for name in bill.names:
            path = dist / f"{name}-{version}.cdx.json"
            command: Sequence[str | Path] = (
                *(sys.executable, "-m", "cyclonedx_py", "environment", "--sv", "1.6", "--of", "JSON", "--validate"),
                *("--pyproject", Path(bill.project) / "pyproject.toml", "--mc-type", bill.kind, "-o", path, python),
            )
            _run(command, root)
            path.write_text(checked(_cleaned(path, name, version), path.name))
            written.append(path)
    lock = root / "clients" / "typescript" / "package-lock.json"
    if lock.exists():
        written.append(dist / f"ringline-client-npm-{version}.cdx.json")
        written[-1].write_text(checked(npm_bill(lock), written[-1].name))
    return written


def _wheel(dist: Path, name: str, version: str) -> Path:
    """The wheel for this machine, or for all. Raises ``ReleaseError``."""
    machine = os.uname().machine
    found = [path for path in dist.glob(f"{name}-{version}-*.whl") if path.stem.endswith(("-any", f"_{machine}"))]
    if not found:
        raise ReleaseError(f"{dist} has no wheel of {name} {version} for {machine}: see what `make wheels` said")
    return found[0]


def _install_torch(python: Path, root: Path) -> None:
    """From an index of its own, if TORCH_INDEX_URL names one, as `make setup` does."""
    if index := os.environ.get("TORCH_INDEX_URL"):
        _pip(python, root, "-c", "constraints.txt", "--no-deps", "--index-url", index, "torch")


def _pip(python: Path, root: Path, *arguments: str) -> None:
    quiet = ("--quiet", "--no-compile", "--disable-pip-version-check")
    _run([sys.executable, "-m", "pip", "--python", python, "install", *quiet, *arguments], root)


def _run(command: Sequence[str | Path], root: Path) -> None:
    own = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=root, env=own, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        what = " ".join(map(str, command[:4]))
        raise ReleaseError(f"`{what} …` failed: {(done.stderr or done.stdout).strip()[-2000:]}")


def _cleaned(path: Path, name: str, version: str) -> str:
    """The bill with the image's name, and where our wheels come from in place of where they lay on this machine."""
    bill = json.loads(path.read_text())
    main = bill["metadata"]["component"]
    if name.startswith("image-"):
        main |= {"type": "container", "name": f"ringline-{name.removeprefix('image-')}", "version": version}
    for component in (main, *bill["components"]):
        if component["name"] in OWN:
            component["purl"] = f"pkg:pypi/{component['name']}@{version}"
        outside = [one for one in component.pop("externalReferences", ()) if not one["url"].startswith("file:")]
        if outside:
            component["externalReferences"] = outside
    return json.dumps(bill, indent=2) + "\n"
