"""The adapters that a worker has loaded, and which rows of a step are theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from engine_core.errors import AdapterError
from engine_core.layers.lora import LoadedAdapter, LoRALayers, RowAdapters
from engine_core.lora.adapter import read_adapter
from engine_core.lora.targets import LoRALimits, LoRATargets
from engine_core.ops.base import Greatest, greatest_of
from engine_core.worker.drawing import Head

NO_ADAPTER = -1
"""In place of an id."""


@dataclass(frozen=True, slots=True, eq=False)
class AdapterRows:
    """The rows of a step that have adapters."""

    adapter_ids: tuple[int, ...]
    """Those of the step, ascending."""
    places: npt.NDArray[np.intp]
    """[T]: the place in ``adapter_ids`` of each row's; −1: it has none."""

    @classmethod
    def of(cls, of_rows: npt.NDArray[np.int64]) -> AdapterRows | None:
        """``of_rows`` [T]: ids by row, or ``NO_ADAPTER``. None: no row has an adapter."""
        found = np.unique(of_rows)
        found = found[found != NO_ADAPTER]
        if not len(found):
            return None
        places = np.where(of_rows == NO_ADAPTER, -1, np.searchsorted(found, of_rows))
        return cls(tuple(found.tolist()), places)


class AdapterHead:
    """Makes logits of rows some of whose adapters change the head, as ``Forward`` does of others."""

    masks_argmax = False

    def __init__(self, head: Head, layers: LoRALayers, rows: RowAdapters) -> None:
        self._head = head
        self._layers = layers
        self._rows = rows

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As ``Forward.logits``, of all the rows."""
        with self._layers.computing(self._rows):
            return self._head.logits(hidden)

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """As ``Forward.greatest``, of all the rows."""
        assert allowed is None
        return greatest_of(self.logits(hidden))


class LoadedAdapters:
    """Adapters by id. Loading and unloading come from any thread, and change no step under way."""

    def __init__(self, layers: LoRALayers, targets: LoRATargets, limits: LoRALimits) -> None:
        """``targets``: those of the whole model, of which ``layers`` may be a part."""
        self._layers = layers
        self._targets = targets
        self._limits = limits
        self._loaded: dict[int, LoadedAdapter] = {}

    def load(self, adapter_id: int, path: str, digest: str) -> None:
        """Read the adapter at ``path``, whose ``digest`` must be as said. Raises ``AdapterError``."""
        adapter = read_adapter(Path(path), self._targets, self._limits)
        if adapter.file.digest != digest:
            raise AdapterError(f"{path} has changed since it was opened; ask for it again")
        self._loaded[adapter_id] = self._layers.load(adapter)

    def unload(self, adapter_id: int) -> None:
        """Forget an adapter, which no sequence uses any more; steps under way keep it. Idempotent."""
        self._loaded.pop(adapter_id, None)

    @contextmanager
    def computing(self, rows: AdapterRows | None, wanted: npt.NDArray[np.int64] | None) -> Iterator[None]:
        """Let layers add what the adapters of ``rows`` add, while a step is computed.

        ``wanted``: the rows whose results are needed; None: all are.
        """
        if rows is None:
            yield
            return
        with self._layers.computing(self._of(rows), wanted):
            yield

    def head(self, head: Head, rows: AdapterRows | None, wanted: npt.NDArray[np.int64] | slice) -> Head:
        """What makes logits of the ``wanted`` rows: ``head`` itself if no adapter changes it."""
        if rows is None:
            return head
        own = self._of(rows).of(wanted)
        return AdapterHead(head, self._layers, own) if own.change_head else head

    def _of(self, rows: AdapterRows) -> RowAdapters:
        return RowAdapters(tuple(self._loaded[each] for each in rows.adapter_ids), rows.places)
