"""Paged attention by FlashInfer (https://github.com/flashinfer-ai/flashinfer): for NVIDIA GPUs, on request.

Each step is planned on the host, once for all layers: lists of each sequence's pages, and the division of the work.
A captured graph reads its plan from fixed addresses, so each graph size has its own wrapper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engine_core.attention.base import AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.attention.paged import PagedAttention

HEADS = (64, 128, 256)
"""Head sizes for which the library has kernels."""
_LAYOUT = "HND"
WORKSPACE = 384 << 20
"""Bytes for partial results of sequences."""
_PLAN_WORKSPACE = 8 << 20
"""Bytes for a plan: a wrapper's default."""


@dataclass(frozen=True, slots=True)
class HeadsOfModel:
    """What the library must know about a model."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Pages:
    """The pages of S sequences, on the host; all int32."""

    starts: torch.Tensor
    """[S + 1]: sequence s has pages starts[s] … starts[s + 1] − 1 of ``ids``."""
    ids: torch.Tensor
    last_lengths: torch.Tensor
    """[S]: tokens in each sequence's last page, 1 … block size."""

    @staticmethod
    def of(metadata: AttentionMetadata, block_size: int, size: int) -> Pages:
        """Pages of ``size`` sequences; those beyond the step's are padding, and read one token of block 0."""
        lengths = np.ones(size, np.int32)
        lengths[: len(metadata.seq_lens)] = metadata.seq_lens.numpy()
        counts = -(-lengths // block_size)
        ids = np.zeros((size, int(counts.max())), np.int32)
        tables = metadata.block_tables.numpy()[:, : ids.shape[1]]
        ids[: len(tables), : tables.shape[1]] = tables
        starts = np.zeros(size + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        there = np.arange(ids.shape[1]) < counts[:, np.newaxis]
        arrays = (starts, ids[there], (lengths - 1) % block_size + 1)
        return Pages(*(torch.from_numpy(array) for array in arrays))


class FlashInferAttention(PagedAttention):
    """Needs ``plan`` before every step; head sizes 64, 128 and 256, in bfloat16 or float16."""

    def __init__(
        self,
        library: Any,
        heads: HeadsOfModel,
        block_size: int,
        max_pages: int,
        device: torch.device,
        workspace: int = WORKSPACE,
    ) -> None:
        """``library`` is the module ``flashinfer``; a sequence has at most ``max_pages`` pages."""
        self._library = library
        self._heads = heads
        self._block_size = block_size
        self._max_pages = max_pages
        self._device = device
        self._workspace = torch.zeros(workspace, dtype=torch.uint8, device=device)
        self._plan_workspace = torch.empty(_PLAN_WORKSPACE, dtype=torch.uint8, device=device)
        self._any_step = self._with_shared_memory(library.BatchPrefillWithPagedKVCacheWrapper(self._workspace, _LAYOUT))
        self._of_graphs: dict[int, Any] = {}
        self._planned: Any = self._any_step
        self._plan_sent: torch.cuda.Event | None = None

    def numerics(self, spec: KVCacheSpec) -> str:
        return f"flashinfer {self._library.__version__}"

    def plan(self, metadata: AttentionMetadata, size: int | None = None) -> None:
        if self._plan_sent is not None:
            self._plan_sent.synchronize()  # this plan is made in the host memory from which the last one was copied
        pages = Pages.of(metadata, self._block_size, len(metadata.seq_lens) if size is None else size)
        shape = (self._heads.num_heads, self._heads.num_kv_heads, self._heads.head_dim, self._block_size)
        options = {"sm_scale": self._heads.head_dim**-0.5, "q_data_type": self._heads.dtype}
        ids = pages.ids
        if self._device.type == "cuda":  # the library would wait for the copy
            ids = ids.pin_memory().to(self._device, non_blocking=True)
        if size is None:
            self._planned = self._any_step
            places = (metadata.query_starts, pages.starts, ids, pages.last_lengths)
            self._planned.plan(*places, *shape, causal=True, **options)
        else:
            self._planned = self._of_graph(size)
            self._planned.plan(pages.starts, ids, pages.last_lengths, *shape, **options)
        if self._device.type == "cuda":
            self._plan_sent = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._plan_sent.record()

    def attend(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        output: torch.Tensor = self._planned.run(query, (kv_cache[0], kv_cache[1]))
        return output.flatten(1)

    def _of_graph(self, size: int) -> Any:
        if size not in self._of_graphs:
            counts = (size + 1, size * self._max_pages, size)
            starts, ids, last = (torch.zeros(count, dtype=torch.int32, device=self._device) for count in counts)
            wrapper = self._library.BatchDecodeWithPagedKVCacheWrapper(
                self._workspace,
                _LAYOUT,
                use_cuda_graph=True,
                use_tensor_cores=True,
                paged_kv_indptr_buffer=starts,
                paged_kv_indices_buffer=ids,
                paged_kv_last_page_len_buffer=last,
            )
            self._of_graphs[size] = self._with_shared_memory(wrapper)
        return self._of_graphs[size]

    def _with_shared_memory(self, wrapper: Any) -> Any:
        """All wrappers share the workspaces: steps run one after another, so a plan may overwrite the last one."""
        wrapper.reset_workspace_buffer(self._workspace, self._plan_workspace)
        return wrapper
