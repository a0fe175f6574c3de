"""``python -m tests.npm``: kill each service under many streams of the packed client for TypeScript.

A ring of two of each service runs while the client, as it is installed from its tarball, keeps 200 streams going: half
of them calls of their own, half on sessions. They ask for texts, chats, schemas, calls of tools, several choices and
more. Each process is killed in turn (SIGKILL) and started again. Every stream's tokens, texts, ends, calls and log
probabilities are compared with those that the Python client got before any kill. Exits 1 if a stream was lost, or has
anything else.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.npm.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.npm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=200, help="at a time (default: 200)")
    parser.add_argument("--rounds", type=int, default=3, help="kills of each process (default: 3)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: 1)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ringline-npm-") as folder:
        report = asyncio.run(run(Options(given.streams, given.rounds, given.seed), Path(folder)))
    print("\n".join(report.lines()))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
