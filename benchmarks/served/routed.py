"""A processor with a choice of routing policies: the product's own (``ringline``), ``random`` or ``round robin``.

    python -m benchmarks.served.routed POLICY SOCKET DETOKENIZER ENGINE [ENGINE …]

The product has only its own policy; this module replaces it by the others.
"""

from __future__ import annotations

import sys

from services.common.config.settings import ProcessorSettings, ServerSettings, TelemetrySettings
from services.processor import main
from services.ring.model_generations import Generation
from services.ring.prefixes import Prefixes
from services.ring.routing_logic import Needs, Routes, _Node


class _Random(Routes):
    """Chooses a random engine."""

    def _choose_engine(self, generation: Generation, prefixes: Prefixes, needs: Needs, begins: bool) -> _Node | None:
        nodes = self._engines_taking(needs)
        return self._rng.choice(nodes) if nodes else None


class _RoundRobin(Routes):
    """Chooses the engines in turn."""

    _turn = 0

    def _choose_engine(self, generation: Generation, prefixes: Prefixes, needs: Needs, begins: bool) -> _Node | None:
        nodes = sorted(self._engines_taking(needs), key=lambda node: node.peer.name)
        self._turn += 1
        return nodes[self._turn % len(nodes)] if nodes else None


POLICIES: dict[str, type[Routes]] = {"ringline": Routes, "random": _Random, "round robin": _RoundRobin}


def run(policy: str, socket: str, detokenizer: str, engines: list[str]) -> int:
    """Run the processor until a signal ends it."""
    vars(main)["Routes"] = POLICIES[policy]
    return main.run(
        ProcessorSettings(
            server=ServerSettings(uds=socket, name=policy.replace(" ", "-")),
            telemetry=TelemetrySettings(log_format="json", metrics=False),
            engines=tuple(engines),
            detokenizers=(detokenizer,),
        )
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
