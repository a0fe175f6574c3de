"""``python -m tests.mixed``: services of two releases in one ring. Exits 1 if anything was wrong.

Three mixes, each an older and a newer release:

  old   the release at --old and this tree. Default: the commit at which protos/baseline.binpb was taken last, which is
        the contract as it was frozen.
  next  this tree and a simulated next release: this tree with tests/contract/overlay laid over the protos. It speaks
        one more version, has one more capability, and sends fields and events that this tree does not know.

  upgrade  the release at --old becomes this tree: under load, each service of a ring of two of each is drained and
        started again from this tree, engines first, processors last. Then the ring gets requests of every kind, among
        them those that the older release refused.

Each of the first two runs in three rings: a processor of one release with a detokenizer and an engine of the other,
both ways round, and two of each service, one of either release. Under load every service is killed, so that its
requests move to the other release. Every answer is compared, token for token, with that of a ring of this tree alone
(if the engines report different numerics, only length, ends and usage; in an upgrade, with the answer of the release
whose engines computed it). A capability that only the next release has must be refused by name by services that lack
it.

Trees are checked out to a temporary folder, and run by this environment's Python. Needs git and the repository's
history.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from tests.mixed.context import Mix, Options, RingResult
from tests.mixed.releases import UnknownRefError
from tests.mixed.run import run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mixed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mix", action="append", choices=list(Mix), help="only this one (default: all)")
    parser.add_argument("--old", metavar="REF", help="commit, branch or tag of the older release")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: 1)")
    parser.add_argument("--concurrency", type=int, default=6, help="requests at a time (default: 6)")
    parser.add_argument("--keep", type=Path, help="a short path of a new folder for trees and logs, which stay")
    given = parser.parse_args()
    mixes = tuple(map(Mix, given.mix)) if given.mix else tuple(Mix)
    try:
        results = asyncio.run(
            run(Options(given.old, mixes, given.seed, given.concurrency, given.keep), RingResult.show)
        )
    except UnknownRefError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if any(result.problems for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
