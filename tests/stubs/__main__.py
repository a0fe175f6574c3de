"""``python -m tests.stubs``: stubs of Go, Java and C#, compiled and tried. Exits 1 if anything was wrong.

Made of the contract as it is, and of the contract with what is planned (tests/contract/overlay), by the compilers that
Debian has. Go's and Java's are compiled, and a program of each asks a running ring for an answer: those of the later
contract, too, as clients that are newer than their server. Of C#, messages are made; Debian has nothing to compile
them with, and no plugin for services.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from ringline import Client

from tests.contract.later import PROTOS, lay_over
from tests.ring import Ring, running_ring
from tests.stubs.channels import try_channels
from tests.stubs.languages import Stubs, StubsError, answer, missing_packages


def main() -> int:
    """Read the options, run, report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.stubs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    if missing := missing_packages():
        print(
            f"this needs Debian packages: apt-get install --no-install-recommends {' '.join(missing)}", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="ringline-stubs-") as temporary:
        folder = Path(temporary)
        contracts = {"contract": PROTOS, "contract with what is planned": lay_over(folder / "later")}
        with running_ring(folder) as ring:
            failed = [_try(Stubs(protos, folder / name), name, ring) for name, protos in contracts.items()]
            failed.append(_try_channels(Stubs(PROTOS, folder / "channels"), ring, folder))
    return 1 if any(failed) else 0


def _try(stubs: Stubs, contract: str, ring: Ring) -> bool:
    """Whether a language failed; each is told of in a line."""
    with Client(ring.address) as client:
        right = client.generate("Once upon a time", temperature=0.0, max_tokens=16, ignore_eos=True).text
    failed = False
    for language, make in {"Go": stubs.go, "Java": stubs.java, "C#": stubs.csharp}.items():
        start, command = time.monotonic(), None
        try:
            command = make()
            told = answer(command, ring.address) if command else right
            problem = "" if told == right else f"it answered {told!r} instead of {right!r}"
        except StubsError as error:
            problem = str(error)
        done = "compiled, and answered as the Python client is" if command else "generated"
        print(f"{language:4} {contract:30} {time.monotonic() - start:3.0f} s  {problem or done}", flush=True)
        failed |= bool(problem)
    return failed


def _try_channels(stubs: Stubs, ring: Ring, folder: Path) -> bool:
    """Whether Go's channels failed; they are told of in a line."""
    start = time.monotonic()
    try:
        try_channels(stubs.go("balanced"), ring, folder)
    except StubsError as error:
        problem = str(error)
    else:
        problem = ""
    done = problem or "pings end no stream, and a processor that ends among two no call that was not answered"
    print(f"Go   {'channels':30} {time.monotonic() - start:3.0f} s  {done}", flush=True)
    return bool(problem)


if __name__ == "__main__":
    sys.exit(main())
