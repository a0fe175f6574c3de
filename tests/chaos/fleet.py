"""The ring under test: real processes on unix sockets, with a ``Wire`` in each link between two of them."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.chaos.relay import Wire
from tests.processes import THIS, Process, Release
from tests.ring import MODEL

DRAIN_GRACE = 0.2
"""Seconds. So short that requests of a draining process move elsewhere instead of finishing in it."""
COMMON_FLAGS = ("--no-metrics", "--drain-grace", str(DRAIN_GRACE))


class Fleet:
    """An async context manager: enter to start all processes."""

    def __init__(
        self,
        directory: Path,
        processors: int = 2,
        detokenizers: int = 2,
        engines: int = 3,
        *,
        model: Sequence[str] = (str(MODEL),),
        patience: float = 120.0,
        releases: Mapping[str, Release] | None = None,
        ranks: Mapping[str, Sequence[str]] | None = None,
        speculation: Mapping[str, Sequence[str]] | None = None,
        divided: bool = False,
        others: Mapping[str, Sequence[str]] | None = None,
        processor_flags: Sequence[str] = (),
    ) -> None:
        """``others``: flags of engines that serve another model, by their names, which come behind ``engines``.

        ``model``: the flags that name it to engines; ``patience``: the processors', in seconds.

        ``releases``: what processes run, by their names. Default: all run this tree. ``ranks``: the flags of engines
        of several ranks, by their names; ``speculation``: of those that guess tokens. ``divided``: engines divide the
        machine, as those of one ``serve`` do.
        """
        self._directory = directory
        self._model = model
        self._patience = patience
        self._divided = divided
        self.ranks = ranks or {}
        self._speculation = speculation or {}
        self._others = others or {}
        self._processor_flags = processor_flags
        counts = {"engine": engines + len(self._others), "detokenizer": detokenizers, "processor": processors}
        self.names = {kind: [f"{kind}-{index}" for index in range(count)] for kind, count in counts.items()}
        self.wires: dict[str, Wire] = {}
        self.processes: dict[str, Process] = {}
        for name in (name for names in self.names.values() for name in names):
            log, release = directory / f"{name}.log", (releases or {}).get(name, THIS)
            self.processes[name] = Process(name, f"unix:{directory / name}.sock", log, self._flags(name), release)
        self.fronts = self._wires("client", "processor")
        """Where clients reach processors."""

    def _flags(self, name: str) -> list[str]:
        kind = name.partition("-")[0]
        if (other := self._others.get(name)) is not None:
            return [*COMMON_FLAGS, *other]
        if kind == "engine":
            own = *self.ranks.get(name, ()), *self._speculation.get(name, ())
            return [*engine_flags(self._model), *own, *self._share(name)]
        flags = [*COMMON_FLAGS, "--engines", self._wires(name, "engine")]
        if kind == "processor":
            # So many engines are killed that the limit for poisonous requests would hit innocent ones.
            flags += ["--detokenizers", self._wires(name, "detokenizer"), "--max-crash-resubmits", "1000"]
            flags += ["--patience", str(self._patience), *self._processor_flags]
        return flags

    def _share(self, engine: str) -> list[str]:
        engines = self.names["engine"]
        if not self._divided:
            return []
        place = ["--data-parallel-size", str(len(engines)), "--data-parallel-rank", str(engines.index(engine))]
        return [*place, "--num-threads", "1"]

    def _wires(self, name: str, kind: str) -> str:
        """Create wires from ``name`` to all processes of ``kind``; returns their addresses."""
        addresses = []
        for target in self.names[kind]:
            wire = Wire(
                f"{name}>{target}", self._directory / f"{name}.{target}.sock", self._directory / f"{target}.sock"
            )
            self.wires[wire.name] = wire
            addresses.append(f"unix:{wire.path}")
        return ",".join(addresses)

    async def __aenter__(self) -> Fleet:
        for wire in self.wires.values():
            await wire.start()
        for process in self.processes.values():
            process.start()
        await self._wait_serving()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
        for wire in self.wires.values():
            wire.close()

    async def heal(self) -> None:
        """End every fault, and start processes that do not run."""
        for wire in self.wires.values():
            wire.release()
        for process in self.processes.values():
            process.signal(signal.SIGCONT)
            process.start()
        await self._wait_serving()

    async def _wait_serving(self) -> None:
        for process in self.processes.values():
            await process.wait_serving()


def engine_flags(model: Sequence[str]) -> list[str]:
    """``model``: the flags that name it."""
    return [*COMMON_FLAGS, "--kv-cache-memory-bytes", "32MiB", "--served-model-name", "tiny", "--model", *model]
