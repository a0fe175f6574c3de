"""The embeddings of pictures that a worker keeps, as plans say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine_core.async_copy import upload
from engine_core.forward_context import MediaRows
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.step import EncoderPlan
from engine_core.worker.media_inputs import MediaSpan


class EncoderCache:
    """Bounded by the scheduler, which says what is forgotten. Workers without a vision model keep nothing."""

    def __init__(self, vision: VisionModel | None) -> None:
        self._vision = vision
        self._encoded: dict[bytes, Encoded] = {}

    def __len__(self) -> int:
        return len(self._encoded)

    @property
    def nbytes(self) -> int:
        """Bytes of the embeddings."""
        return sum(encoded.nbytes for encoded in self._encoded.values())

    def keep(self, key: bytes, encoded: Encoded) -> None:
        """Keep embeddings that are already there."""
        self._encoded[key] = encoded

    def update(self, plan: EncoderPlan) -> None:
        """Forget, then encode."""
        if self._vision is None:
            return
        for key in plan.forgotten:
            self._encoded.pop(key, None)
        for key, picture in plan.encoded:
            if key not in self._encoded:
                self._encoded[key] = self._vision.encode(picture)

    def rows(self, spans: Sequence[MediaSpan]) -> MediaRows | None:
        """What takes the place of the rows in ``spans``; None: nothing, or another stage embeds tokens."""
        if not spans or self._vision is None:
            return None
        parts = [self._encoded[span.key] for span in spans]
        embeddings = torch.cat([part.embeddings.narrow(0, *_range(at)) for part, at in zip(parts, spans, strict=True)])
        layers = [
            part.deepstack.narrow(1, *_range(at))
            for part, at in zip(parts, spans, strict=True)
            if part.deepstack is not None
        ]
        of_spans = [np.arange(span.first_row, span.first_row + span.count) for span in spans]
        (rows,) = upload([np.concatenate(of_spans)], embeddings.device)
        return MediaRows(rows, embeddings, torch.cat(layers, dim=1) if layers else None)


def _range(span: MediaSpan) -> tuple[int, int]:
    return span.first, span.count
