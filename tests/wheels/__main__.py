"""``make test-wheels``: install the built wheels as a user would, and run a ring of what is installed.

For each Python, an empty environment gets the two wheels of dist/, with the engine's packages as constraints.txt pins
them. Its folders become read-only. Then a ring of its services answers, without a compiler on the PATH, as an ordinary
user without a home (if this program may change users), once for each instruction set: this processor's best one, and
lesser ones under qemu-x86_64, which has none of the better instructions (Debian's package qemu-user). A ring of this
clone, with the kernels that were compiled here, is asked the same.

Prints a table: the same bits and numerics must come out on one instruction set, whoever compiled. Exits 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.ring import ROOT

RING_PROGRAM = Path(__file__).with_name("ring_program.py")
EMULATED = {"avx2": "Haswell-noTSX", "portable": "Nehalem"}
"""Processors of qemu that have an instruction set and no better one."""
NOBODY = 65534
PYTHONS = ("python3.11", "python3.12", "python3.13")


class TrialError(Exception):
    """A step of a trial failed; the text has its output."""


@dataclass(frozen=True)
class Row:
    where: str
    instruction_set: str
    emulated: bool
    user: int
    install_seconds: float | None
    first_token_seconds: float
    numerics: str
    bits: str

    def show(self) -> str:
        install = "" if self.install_seconds is None else f"{self.install_seconds:.0f} s"
        shown = f"{self.instruction_set}{' (emulated)' if self.emulated else ''}"
        who = "root" if self.user == 0 else f"user {self.user}"
        first = f"{self.first_token_seconds:.1f} s"
        return f"{self.where:24} {shown:22} {who:12} {install:>8} {first:>9}  {self.numerics[:8]}  {self.bits}"


HEADER = f"{'Python':24} {'instruction set':22} {'user':12} {'install':>8} {'first token':>9}  numerics  bits"


@dataclass(frozen=True)
class Trial:
    """A Python, in this system or in another one's root folder."""

    python: str
    root: Path | None
    constraints: Path

    def name(self) -> str:
        code = "import platform as p; print('Python', p.python_version() + ',', ' '.join(p.libc_ver()))"
        return self._output([self.python, "-c", code]).strip()

    def run(self, wheels: list[Path], instruction_sets: list[str | None]) -> Iterator[Row]:
        name, folder = self.name(), Path(tempfile.mkdtemp(dir=self.root / "tmp" if self.root else None))
        try:
            folder.chmod(0o755)
            inside = Path("/", folder.relative_to(self.root)) if self.root else folder
            begun = time.monotonic()
            self._install(folder, inside, wheels)
            seconds = time.monotonic() - begun
            for number, instruction_set in enumerate(instruction_sets):
                yield self._row(name, inside, instruction_set, None if number else seconds)
        finally:
            subprocess.run(["chmod", "-R", "u+w", folder], check=False)
            shutil.rmtree(folder, ignore_errors=True)

    def _install(self, folder: Path, inside: Path, wheels: list[Path]) -> None:
        for wheel in wheels:
            shutil.copy(wheel, folder)
        shutil.copy(self.constraints, folder / "constraints.txt")
        client, server = (str(inside / wheel.name) for wheel in wheels)
        self._output([self.python, "-m", "venv", str(inside / "env")])
        pip = [str(inside / "env/bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        self._output([*pip, "-c", str(inside / "constraints.txt"), client, f"{server}[engine]"])
        subprocess.run(["chmod", "-R", "a-w", folder / "env"], check=True)

    def _row(self, name: str, inside: Path, instruction_set: str | None, install_seconds: float | None) -> Row:
        python = str(inside / "env/bin/python")
        engine = [python] if instruction_set is None else [*emulator(instruction_set), python]
        quiet = {"PATH": str(inside / "env/bin"), "HOME": "/nonexistent", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        program = [python, "-c", RING_PROGRAM.read_text(), json.dumps(engine)]
        answer = json.loads(self._output(program, quiet, as_nobody=os.geteuid() == 0).splitlines()[-1])
        if instruction_set not in (None, answer["instruction_set"]):
            raise TrialError(f"{name}: emulated {instruction_set}, the engine took {answer['instruction_set']}")
        return row_of(name, answer, instruction_set is not None, install_seconds)

    def _output(self, command: list[str], environment: dict[str, str] | None = None, as_nobody: bool = False) -> str:
        prefix = ["chroot", str(self.root)] if self.root else []
        if as_nobody:
            who = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            prefix += [shutil.which("setpriv") or "setpriv", *who]
        return output_of([*prefix, *command], environment)


def output_of(command: list[str], environment: dict[str, str] | None = None) -> str:
    """What it prints. Raises ``TrialError``."""
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    if done.returncode:
        shown = " ".join(word if len(word) < 200 else "…" for word in command)
        raise TrialError(f"{shown} exits with {done.returncode}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def emulator(instruction_set: str) -> list[str]:
    return [shutil.which("qemu-x86_64") or "qemu-x86_64", "-cpu", EMULATED[instruction_set]]


def row_of(name: str, answer: dict[str, Any], emulated: bool, install_seconds: float | None) -> Row:
    fields = (answer[key] for key in ("user", "first_token", "numerics", "bits"))
    user, first_token, numerics, bits = fields
    return Row(name, answer["instruction_set"], emulated, user, install_seconds, first_token, numerics, bits)


def row_of_clone() -> Row:
    """The ring of this clone and this Python."""
    known = {"PYTHONPATH": f"{ROOT}:{ROOT / 'clients/python'}", "PATH": str(Path(sys.executable).parent)}
    known |= {"OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
    program = [sys.executable, "-c", RING_PROGRAM.read_text(), json.dumps([sys.executable])]
    answer = json.loads(output_of(program, known).splitlines()[-1])
    return row_of(f"this clone, {sys.version.split()[0]}", answer, False, None)


def pythons() -> list[str]:
    """Those on the PATH that run: pyenv has names of versions that do not."""
    found = filter(shutil.which, PYTHONS)
    return [
        name for name in found if subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0
    ]


def problems(rows: list[Row]) -> Iterator[str]:
    """What is not as it should be."""
    for row in rows:
        if row.instruction_set.startswith("none"):
            yield f"{row.where}: no native kernels"
    for instruction_set in {row.instruction_set for row in rows}:
        bits = {row.bits for row in rows if row.instruction_set == instruction_set}
        if len(bits) > 1:
            yield f"{instruction_set}: different bits: {', '.join(sorted(bits))}"
        numerics = {row.numerics for row in rows if row.instruction_set == instruction_set}
        if len(numerics) > 1:
            yield f"{instruction_set}: different numerics: {', '.join(sorted(numerics))}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make test-wheels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    parser.add_argument("--python", action="append", help=f"default: each of {', '.join(PYTHONS)} that is there")
    parser.add_argument("--root", type=Path, help="run --python in the root folder of another system; needs root")
    parser.add_argument("--no-emulation", action="store_true", help="only this processor's best instruction set")
    given = parser.parse_args()
    wheels = [*given.dist.glob("ringline-*.whl"), *given.dist.glob(f"ringline_server-*_{platform.machine()}.whl")]
    if len(wheels) != 2:
        parser.error(f"{given.dist} has not one wheel of each distribution: run `make wheels`")
    chosen = given.python or (["python3"] if given.root else pythons())
    emulated = [] if given.no_emulation or not shutil.which("qemu-x86_64") else list(EMULATED)
    rows = []
    try:
        print(HEADER, flush=True)
        rows.append(row_of_clone())
        print(rows[-1].show(), flush=True)
        for python in chosen:
            for row in Trial(python, given.root, ROOT / "constraints.txt").run(wheels, [None, *emulated]):
                rows.append(row)
                print(row.show(), flush=True)
    except TrialError as error:
        print(error, file=sys.stderr)
        return 1
    found = list(problems(rows))
    for wheel in sorted(given.dist.glob("*.whl")):
        print(f"{wheel.stat().st_size / 1e6:6.2f} MB  {wheel.name}")
    for problem in found:
        print(f"PROBLEM {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
