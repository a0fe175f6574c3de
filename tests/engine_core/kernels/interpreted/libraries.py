"""In the places of libraries that need a GPU: what computes, in float64, what their documented arguments ask for."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from engine_core.attention.flash_attention import varlen_function


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, seen: torch.Tensor
) -> torch.Tensor:
    """[q, Hq, D] of ``query`` [q, Hq, D] over ``key`` and ``value`` [k, Hkv, D], of which ``seen`` [q, k] count."""
    group = query.shape[1] // key.shape[1]
    key, value = (x.double().repeat_interleave(group, 1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query.double(), key) * scale
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)


def causal(rows: int, keys: int) -> torch.Tensor:
    """The last row sees the last key."""
    return torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows)


def documented_varlen(*args: Any, **options: Any) -> torch.Tensor:
    """As torch documents ``varlen_attn``."""
    told = inspect.signature(varlen_function()).bind(*args, **options)
    told.apply_defaults()
    a = told.arguments
    query, key, value, starts = a["query"], a["key"], a["value"], a["cu_seq_q"]
    assert key.shape[1] % 256 == 0
    assert key.stride(-1) == value.stride(-1) == query.stride(-1) == 1
    assert {x.dtype for x in (starts, a["seqused_k"], a["block_table"], a["cu_seq_k"])} == {torch.int32}
    assert len(a["cu_seq_k"]) == len(starts) == len(a["seqused_k"]) + 1 == len(a["block_table"]) + 1
    assert a["max_k"] >= a["seqused_k"].max()
    assert a["num_splits"] == 1  # else bits, and what a captured graph does, depend on the longest sequence of a step
    output = torch.full_like(query, torch.nan)
    for seq, length in enumerate(a["seqused_k"].tolist()):
        first, end = starts[seq : seq + 2].tolist()
        assert end - first <= a["max_q"]
        table = a["block_table"][seq, : -(-length // key.shape[1])].long()
        keys, values = (x[table].flatten(0, 1)[:length] for x in (key, value))
        right = {(-1, -1): torch.ones(end - first, length, dtype=torch.bool), (-1, 0): causal(end - first, length)}
        output[first:end] = attention(query[first:end], keys, values, a["scale"], right[a["window_size"]])
    return output


class _Wrapper:
    """Plans and runs: what the two of FlashInfer have in common."""

    def __init__(self, workspace: torch.Tensor, layout: str, **options: Any) -> None:
        assert layout == "HND"
        self.options = options
        self.memory = (workspace, None)

    def reset_workspace_buffer(self, *memory: torch.Tensor) -> None:
        self.memory = memory

    def _note(self, starts: Any, ids: Any, last: Any, heads: Any, kv_heads: Any, dim: Any, page: Any, **more: Any):
        assert starts.dtype == ids.dtype == last.dtype == torch.int32
        assert starts[0] == 0
        assert starts[-1] == len(ids)
        assert (starts.diff() >= 1).all()  # or there were no last page for ``last`` to speak of
        assert ((last >= 1) & (last <= page)).all()
        self.starts, self.ids, self.last, self.page, self.more = starts, ids, last, page, more
        self.shape = (heads, kv_heads, dim)

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert query.shape[1:] == (self.shape[0], self.shape[2])
        assert query.dtype == self.more["q_data_type"]
        output = torch.full(query.shape, torch.nan, dtype=query.dtype)
        rows = self.rows.tolist()
        assert rows[-1] == len(query)
        for seq in range(len(self.last)):
            pages = self.ids[self.starts[seq] : self.starts[seq + 1]].long()
            length = (len(pages) - 1) * self.page + int(self.last[seq])
            keys, values = (x[pages].transpose(1, 2).flatten(0, 1)[:length] for x in cache)
            part = slice(rows[seq], rows[seq + 1])
            seen = causal(part.stop - part.start, length)
            output[part] = attention(query[part], keys, values, self.more["sm_scale"], seen)
        return output


class Library:
    """FlashInfer, as it documents its wrappers."""

    __version__ = "0"

    class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
        def plan(self, rows: torch.Tensor, *args: Any, **options: Any) -> None:
            assert options.pop("causal")
            self._note(*args, **options)
            self.rows = rows

    class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
        """In graph mode: what is run is read out of the buffers, which keep their places."""

        def plan(self, starts: torch.Tensor, ids: torch.Tensor, last: torch.Tensor, *args: Any, **options: Any) -> None:
            assert self.options["use_cuda_graph"]
            buffers = [self.options[f"paged_kv_{name}_buffer"] for name in ("indptr", "indices", "last_page_len")]
            assert len(buffers[0]) == len(starts)
            assert len(buffers[2]) == len(last)
            for buffer, new in zip(buffers, (starts, ids, last), strict=True):
                buffer[: len(new)] = new
            self._note(buffers[0], buffers[1][: len(ids)], buffers[2], *args, **options)
            self.ids = buffers[1]
            self.rows = torch.arange(len(last) + 1)
