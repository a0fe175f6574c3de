"""Ranks without a model, as ``scripted_rank`` has them, as actors."""

from __future__ import annotations

from engine_core.executor import rank_loop, ray_cluster
from engine_core.executor.ray_messages import EngineAddress
from tests.engine_core.executor import scripted_rank


class ScriptedActor(ray_cluster.RankActor):
    def run(self, engine: EngineAddress, number: int) -> None:
        rank_loop._make_worker = scripted_rank._make_worker
        super().run(engine, number)


def main() -> None:
    ray_cluster.RankActor = ScriptedActor  # type: ignore[misc]
    ray_cluster.main()
