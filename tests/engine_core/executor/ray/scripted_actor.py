"""Ranks without a model, as ``scripted_rank`` has them, as actors."""

from __future__ import annotations

from engine_core.executor.ranks import loop
from engine_core.executor.ray import cluster
from engine_core.executor.ray.messages import EngineAddress
from tests.engine_core.executor.ranks import scripted_rank


class ScriptedActor(cluster.RankActor):
    def run(self, engine: EngineAddress, number: int) -> None:
        loop._make_worker = scripted_rank._make_worker
        super().run(engine, number)


def main() -> None:
    cluster.RankActor = ScriptedActor  # type: ignore[misc]
    cluster.main()
