"""Wheels for a machine with a GPU and no network: gathered where there is one, installed there into a folder.

    python -m benchmarks.gpu.wheels gather .gpu-wheels           # or `make gpu-wheels`
    python -m benchmarks.gpu.wheels install .gpu-wheels TARGET   # on the machine with the GPU
    PYTHONPATH=TARGET:.:clients/python python -m services.cli serve checkpoints/tiny

``gather`` downloads what ringline-server and its engine need, by pyproject.toml and in the versions of constraints.txt,
and pip itself. It leaves out torch, transformers and what those bring, which such a machine has in versions that fit.
``install`` takes from these wheels only what the running Python lacks or has too old, and changes nothing outside
TARGET. Both can be repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"
_IN_TREE = frozenset({"ringline", "ringline-server"})
NOT_CARRIED = frozenset(
    {"torch", "transformers", "huggingface-hub", "numpy", "regex", "safetensors", "tokenizers", "tqdm"}
)
"""Transformers accepts only some versions of its needs, so another's would do harm; and they are large."""
_PLUGINS = frozenset({"pytest-asyncio", "pytest-timeout", "pytest-xdist"})
"""Of the extra ``dev``, what tests there make use of. They bring pytest."""
LIMIT_MIB = 40.0
PLATFORM = "manylinux_2_31_x86_64"
"""The oldest glibc that llguidance is built for."""
_INSTALL_SECONDS = 120.0
"""Many times what an installation from a folder takes."""
_PIP_OPTIONS = ("--disable-pip-version-check", "--no-input", "--only-binary", ":all:")


class PackagesMissingError(RuntimeError):
    """Requirements that neither this Python nor the wheels satisfy. All others are installed."""

    def __init__(self, problems: dict[str, str], installed: list[str]) -> None:
        self.problems = problems
        """Why, by requirement."""
        self.installed = installed
        lines = [f"this Python {_RUNNING} lacks packages that the wheels do not bring; all others are installed:"]
        lines += [f"  {requirement}: {problem}" for requirement, problem in problems.items()]
        lines += [
            f"{', '.join(sorted(NOT_CARRIED))} are not carried: take a Python that has them. For any other, run",
            f"`make gpu-wheels WHEELS='--python {_RUNNING}'` where there is a network, and copy the folder again.",
        ]
        super().__init__("\n".join(lines))


def name_of(requirement: str) -> str:
    """The package's name in its normal form."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} does not begin with a package's name: correct it in pyproject.toml")
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def requirements(pyproject: Path = _ROOT / "pyproject.toml") -> list[str]:
    """What a ring with an engine and the tests on a GPU need, without what is in this tree."""
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    plugins = [requirement for requirement in extras["dev"] if name_of(requirement) in _PLUGINS]
    needed = [*project["dependencies"], *extras["engine"], *plugins]
    return [requirement for requirement in needed if name_of(requirement) not in _IN_TREE]


def platform_tags(platform: str) -> list[str]:
    """The tags of wheels that run there: of a ``manylinux_2_N``, those of each older glibc too."""
    parts = re.fullmatch(r"manylinux_2_(\d+)_(\w+)", platform)
    if parts is None:
        return [platform]
    machine = parts[2]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(int(parts[1]), 4, -1)]
    return tags + [f"{old}_{machine}" for old in ("manylinux2014", "manylinux2010", "manylinux1")]


def gather(folder: Path, python: str, platform: str) -> list[Path]:
    """Download the wheels in place of those that are in the folder. Changes nothing if they are too large."""
    if tuple(map(int, python.split("."))) < sys.version_info[:2]:  # pip reads needs as those of the Python that runs it
        told = f"may lack what only Python {python} needs: gathered by {_RUNNING}"
        print(f"{told}; rather run `make gpu-wheels PYTHON=python{python}`", file=sys.stderr)
    wanted = [requirement for requirement in requirements() if name_of(requirement) not in NOT_CARRIED]
    tags = [option for tag in platform_tags(platform) for option in ("--platform", tag)]
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", *_PIP_OPTIONS, "--dest", temporary]
        command += ["--implementation", "cp", "--python-version", python, *tags]
        done = subprocess.run([*command, "-c", str(_ROOT / "constraints.txt"), *wanted, "pip"], check=False)
        if done.returncode != 0:
            raise RuntimeError("pip has not downloaded the wheels, for the reason above: nothing is changed")
        return _replace(folder, sorted(Path(temporary).iterdir()))


def _replace(folder: Path, new: Sequence[Path]) -> list[Path]:
    """Move wheels into the folder in place of those that it has, unless they are too large."""
    mebibytes = _mebibytes(new)
    if mebibytes > LIMIT_MIB:
        advice = "add what such a machine has to NOT_CARRIED in benchmarks/gpu/wheels.py"
        raise RuntimeError(f"the wheels take {mebibytes:.1f} MiB, which is above {LIMIT_MIB:g} MiB: {advice}")
    for old in folder.glob("*.whl"):
        old.unlink()
    return [wheel.rename(folder / wheel.name) for wheel in new]


def _mebibytes(files: Sequence[Path]) -> float:
    return sum(file.stat().st_size for file in files) / 2**20


def install(wheels: Path, target: Path) -> list[str]:
    """Install into ``target`` what this Python lacks or has too old; return it, each as ``name version``.

    Uses no network. What is in ``target`` counts as installed, so a second call returns nothing. If a requirement can
    not be satisfied, the others are installed all the same, and a PackagesMissingError names it.
    """
    chosen, problems = _choose(requirements(), lambda wanted: _resolve(wanted, wheels, target))
    if chosen:
        _unpack([f"{name}=={version}" for name, version in chosen.items()], wheels, target)
    installed = [f"{name} {version}" for name, version in sorted(chosen.items())]
    if problems:
        raise PackagesMissingError(problems, installed)
    return installed


class _ResolutionError(Exception):
    """Pip's words on why it cannot satisfy requirements."""


def _choose(wanted: list[str], resolve: Callable[[list[str]], dict[str, str]]) -> tuple[dict[str, str], dict[str, str]]:
    """The packages to install for all requirements that can be satisfied together, and the others with the reason.

    Asks for all at once, then without what pip names, and for halves if it names none.
    """
    good: list[str] = []
    chosen: dict[str, str] = {}
    problems: dict[str, str] = {}
    queue = [wanted]
    while queue:
        part = queue.pop()
        try:
            chosen = resolve(good + part)
            good += part
        except _ResolutionError as error:
            named = [one for one in part if len(part) == 1 or f" {one} (from versions" in str(error)]
            problems |= dict.fromkeys(named, str(error))
            rest = [one for one in part if one not in named]
            middle = 0 if named else len(rest) // 2
            queue += [half for half in (rest[middle:], rest[:middle]) if half]
    return chosen, problems


def _resolve(wanted: list[str], wheels: Path, target: Path) -> dict[str, str]:
    """What pip would install, as versions by name."""
    done = _pip("--dry-run", "--quiet", "--report", "-", *wanted, wheels=wheels, target=target)
    if done.returncode == 0:
        packages = [item["metadata"] for item in json.loads(done.stdout)["install"]]
        return {name_of(package["name"]): package["version"] for package in packages}
    reasons = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    if not reasons:
        raise RuntimeError(f"{sys.executable} cannot run pip: {done.stderr.strip()[-500:]}\n{_no_pip(wheels)}")
    raise _ResolutionError(reasons[0])


def _no_pip(wheels: Path) -> str:
    return f"`make gpu-wheels` puts pip into {wheels}, too: run it where there is a network, and copy the folder"


def _unpack(pinned: list[str], wheels: Path, target: Path) -> None:
    """Install wheels into the folder, in place of other versions of the same packages.

    First into a new folder: pip would neither merge packages that share one, as ``google`` is, nor end half an
    installation.
    """
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as new:
        done = _pip("--no-deps", "--no-compile", "--quiet", "--target", new, *pinned, wheels=wheels, target=target)
        if done.returncode != 0:
            raise RuntimeError(f"pip has not installed {' '.join(pinned)} into {target}: {done.stderr.strip()[-500:]}")
        for file in _files_of({name_of(pin) for pin in pinned}, target):
            if file.parent.suffix == ".dist-info":
                shutil.rmtree(file.parent, ignore_errors=True)  # an empty one would count as installed
            file.unlink(missing_ok=True)
        shutil.copytree(new, target, dirs_exist_ok=True)


def _files_of(names: set[str], target: Path) -> Iterator[Path]:
    """The files of packages in ``target``."""
    for package in list(distributions(path=[str(target)])):
        if name_of(package.metadata["Name"]) in names:
            for file in package.files or ():
                yield target / file


def _pip(*arguments: str, wheels: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Run ``pip install``, which sees what is in ``target``, but no network and no settings of this machine."""
    path = os.pathsep.join(filter(None, [str(target.resolve()), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": path}
    command = [sys.executable, *_pip_program(wheels), "install", "--isolated", *_PIP_OPTIONS, "--no-cache-dir"]
    command += ["--no-index", "--find-links", str(wheels.resolve()), *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=_INSTALL_SECONDS
    )


def _pip_program(wheels: Path) -> list[str]:
    """The pip of this Python, which starts faster, if it is there and knows ``--report``; else that of the wheels."""
    carried = [[str(wheel / "pip")] for wheel in wheels.glob("pip-*.whl")]
    versions = [package.version for package in distributions(name="pip")]
    knows = bool(versions) and [int(part) for part in re.findall(r"\d+", versions[0])] >= [22, 2]
    return ["-m", "pip"] if knows or not carried else carried[0]


def _python(text: str) -> str:
    if re.fullmatch(r"3\.\d+", text) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a version of Python such as 3.12")
    return text


def _parser() -> argparse.ArgumentParser:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks.gpu.wheels", description=__doc__, formatter_class=as_written)
    commands = parser.add_subparsers(dest="command", required=True)
    gatherer = commands.add_parser("gather", help=f"download the wheels: needs a network; at most {LIMIT_MIB:g} MiB")
    gatherer.add_argument("wheels", type=Path, metavar="WHEELS", help="the folder; other wheels in it are removed")
    gatherer.add_argument(
        "--python", type=_python, default="3.12", help="version on the machine with the GPU; default: %(default)s"
    )
    gatherer.add_argument(
        "--platform", default=PLATFORM, help="that machine's, or one with an older glibc; default: %(default)s"
    )
    installer = commands.add_parser("install", help="install what this Python lacks: needs no network")
    installer.add_argument("wheels", type=Path, metavar="WHEELS", help="the folder that `gather` filled")
    installer.add_argument("target", type=Path, metavar="TARGET", help="the folder to put on PYTHONPATH")
    return parser


def main() -> None:
    """Gather or install, and list the wheels or packages. Ends with 1 if that fails."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "gather":
            wheels = gather(arguments.wheels, arguments.python, arguments.platform)
            lines = [f"{_mebibytes([wheel]):7.2f} MiB  {wheel.name}" for wheel in wheels]
            lines.append(f"{_mebibytes(wheels):7.2f} MiB  in all")
        else:
            lines = install(arguments.wheels, arguments.target) or ["nothing is missing"]
    except PackagesMissingError as error:
        print("\n".join(error.installed))
        raise SystemExit(str(error)) from None
    except RuntimeError as error:
        raise SystemExit(str(error)) from None
    print("\n".join(lines))


if __name__ == "__main__":
    main()
