"""Paged attention in plain torch: the reference for other backends, and the fallback where none can be built.

A row's bits may depend on the other rows of its step: torch chooses its kernels by the number of rows.
"""

from __future__ import annotations

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, KVCacheSpec
from engine_core.kv_cache_interface import first_seen

_MAX_SCORES = 2**24
"""Most scores computed at a time: 64 MiB."""


class TorchAttention(AttentionBackend):
    """Computes in float32."""

    def numerics(self, spec: KVCacheSpec) -> str:
        return "torch"

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        if key.shape[1]:
            self._write((key, value), kv_cache, metadata)
        return self._attend(query, kv_cache, metadata, options).flatten(1)

    def forward_latents(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor,
        latent: torch.Tensor,
        rope: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        self._write((torch.cat([latent, rope], dim=1)[:, None],), kv_cache, metadata)
        attended = self._attend(torch.cat([query, query_rope], dim=2), kv_cache, metadata, options)
        return attended[..., : latent.shape[1]]

    @staticmethod
    def _write(planes: tuple[torch.Tensor, ...], kv_cache: torch.Tensor, metadata: AttentionMetadata) -> None:
        block_size = kv_cache.shape[3]
        blocks, offsets = metadata.slot_mapping // block_size, metadata.slot_mapping % block_size
        for plane, numbers in zip(kv_cache, planes, strict=True):
            plane[blocks, :, offsets] = numbers

    @staticmethod
    def _attend(
        query: torch.Tensor, kv_cache: torch.Tensor, metadata: AttentionMetadata, options: AttentionOptions
    ) -> torch.Tensor:
        """[T, Hq, D]; latents serve as both keys and values."""
        block_size, output = kv_cache.shape[3], torch.empty_like(query)
        starts, lengths = metadata.query_starts.tolist(), metadata.seq_lens.tolist()
        for seq, length in enumerate(lengths):
            first_row = length - (starts[seq + 1] - starts[seq])
            # The first block that the first row sees.
            seen = first_seen(first_row, options.sliding_window, chunked=options.chunked) // block_size
            table = metadata.block_tables[seq, seen : -(-length // block_size)].long()
            end = length - seen * block_size
            planes = [part[table].transpose(0, 1).flatten(1, 2)[:, :end].float() for part in kv_cache]
            keys, values = planes[0], planes[-1]
            at_once = max(1, _MAX_SCORES // (query.shape[1] * end))
            for first in range(starts[seq], starts[seq + 1], at_once):
                rows = slice(first, min(first + at_once, starts[seq + 1]))
                place = end - (starts[seq + 1] - first)
                until = None
                if options.both_ways and metadata.visible_until is not None:
                    until = metadata.visible_until[rows].long() - seen * block_size
                output[rows] = _attend(query[rows].float(), keys, values, place, seen * block_size, until, options)
        return output


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    place: int,
    first_key: int,
    until: torch.Tensor | None,
    options: AttentionOptions,
) -> torch.Tensor:
    """[n, Hq, D]: ``query`` [n, Hq, D] over ``keys`` and ``values`` [Hkv, L, D].

    The first row's own key is at index ``place``. ``first_key``: the position of the first of the keys. ``until`` [n]:
    index before which a row sees later keys, too, if it is behind its own.
    """
    num_rows, num_heads, head_dim = query.shape
    num_kv_heads, length, _ = keys.shape
    grouped = query.view(num_rows, num_kv_heads, -1, head_dim).permute(1, 2, 0, 3)  # [Hkv, Hq / Hkv, n, D]
    scores = (grouped * options.scale) @ keys.transpose(1, 2)[:, None]
    if (cap := options.logit_softcap) is not None:
        scores = cap * torch.tanh(scores / cap)
    places = torch.arange(length, device=query.device)
    own = torch.arange(place, place + num_rows, device=query.device)[:, None]
    hidden = places > (own if until is None else torch.maximum(own, until[:, None] - 1))
    if (window := options.sliding_window) is not None:
        seen = (own + first_key) // window * window - first_key if options.chunked else own - window + 1
        hidden |= places < seen
    scores = scores.masked_fill_(hidden, -torch.inf)
    if options.sinks is not None:
        sinks = options.sinks.view(num_kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    attended = scores.softmax(-1)[..., :length] @ values[:, None]
    return attended.permute(2, 0, 1, 3).reshape(num_rows, num_heads, head_dim)
