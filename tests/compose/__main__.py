"""``make compose-test``: compose.yaml on a real Docker engine, built, scaled, disturbed and torn down."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compose import ranks, run
from tests.compose.engine import Failed, Stack, Unusable, compose_command, free_ports
from tests.compose.run import say, try_steps
from tests.loopback import dial_directly

PORTS = 6
STEPS = run.STEPS | ranks.STEPS


def main() -> int:
    """0 if everything holds, 1 if something does not, 2 if it cannot be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.compose", description=__doc__)
    parser.add_argument("--build-network", help="network that images are built in, such as host")
    parser.add_argument(
        "--step", choices=STEPS, action="append", help="only this, with the images of an earlier run; can be repeated"
    )
    given = parser.parse_args()
    dial_directly()
    try:
        compose = compose_command()
        say(f"with {' '.join(compose)}")
        with tempfile.TemporaryDirectory(prefix="ringline-compose-") as directory:
            stack = Stack(Path(directory), free_ports(PORTS), given.build_network, compose)
            try_steps(stack, Path(directory), STEPS, given.step or STEPS)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 2
    except Failed as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
    say("everything holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
