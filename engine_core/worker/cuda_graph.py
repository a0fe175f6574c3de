"""CUDA graphs as the recorder of ``decode_graphs.py``."""

from __future__ import annotations

from collections.abc import Callable

import torch


class CudaGraphRecorder:
    """Captures into one pool of memory."""

    def __init__(self) -> None:
        """Take the pool's handle; it grows with what is captured."""
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(self, function: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Call ``function`` once so that its kernels are compiled and loaded, then capture a call."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            function()
        torch.cuda.current_stream().wait_stream(self._stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            function()
        return graph
