"""``python -m tests.abuse``: attack every service beside well-behaved clients. Exits 1 if anything was wrong."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.abuse.attackers import ATTACKS
from tests.abuse.report import HEADING, Phase
from tests.abuse.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.abuse", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of attacks, all together (default: 600)")
    parser.add_argument("--seed", type=int, default=None, help="of the attacks and the load (default: drawn)")
    parser.add_argument("--clients", type=int, default=100, help="hostile ones at a time (default: 100)")
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second of the others (default: 3)")
    parser.add_argument("--attack", action="append", help="only those whose name has this in it; can be repeated")
    parser.add_argument("--service", action="append", help="only attacks on this service; can be repeated")
    parser.add_argument("--report", type=Path, default=None, help="write the report there, as JSON")
    parser.add_argument("--keep", type=Path, default=None, help="a path for the services' logs, which stay")
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if given.seed is None else given.seed
    attacks = tuple(
        attack
        for attack in ATTACKS
        if (not given.attack or any(part in attack.name for part in given.attack))
        and (not given.service or attack.service in given.service)
    )
    if not attacks:
        parser.error("no attack is called so")
    print(f"seed {seed}\n{HEADING}", flush=True)
    options = Options(
        seed,
        given.seconds,
        clients=given.clients,
        rate=given.rate,
        attacks=attacks,
        together=len(attacks) > 1,
        keep=given.keep,
    )
    report = asyncio.run(run(options, Phase.show))
    print("\n".join(f"PROBLEM {problem}" for problem in report.problems))
    if given.report is not None:
        report.write(given.report)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
