"""``python -m tests.doors [CLIENT …]``: stock clients of the HTTP door. Exits 1 if one of them failed.

Installs each client into an environment of its own (tests/doors/environments.py), then runs tests/doors/test_CLIENT.py,
and ends with a table: each client, its version, what was tried with it, and what came of that.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from tests.doors.environments import HERE, make_all
from tests.ring import ROOT


def main() -> int:
    """Read the options, install, test."""
    clients = sorted(path.stem.removeprefix("test_") for path in HERE.glob("test_*.py"))
    parser = argparse.ArgumentParser(
        prog="python -m tests.doors",
        description=f"{__doc__}\nclients: {', '.join(clients)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("clients", metavar="CLIENT", nargs="*", help="only these (default: all)")
    parser.add_argument("--processes", type=int, default=2, help="of pytest (default: 2)")
    given = parser.parse_args()
    if unknown := [name for name in given.clients if name not in clients]:
        parser.error(f"no client is called {', '.join(unknown)}; there are {', '.join(clients)}")
    problems = make_all()
    for problem in problems:
        print(f"PROBLEM {problem}", flush=True)
    command = [sys.executable, "-m", "pytest", "--doors", "-n", str(given.processes), "--dist", "loadgroup"]
    command += ["--no-loadscope-reorder", *(f"tests/doors/test_{name}.py" for name in given.clients or clients)]
    tested = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    return 1 if problems else tested.returncode


if __name__ == "__main__":
    sys.exit(main())
