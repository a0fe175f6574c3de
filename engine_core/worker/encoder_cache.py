"""The embeddings of pictures that a worker keeps, as plans say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine_core.async_copy import upload
from engine_core.forward_context import MediaRows
from engine_core.models.encoding import Encoding
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.step import EncoderPlan, EncoderPortion
from engine_core.worker.media_inputs import MediaSpan


@dataclass(frozen=True, slots=True)
class _Begun:
    encoding: Encoding
    rows: float
    """That will about have attended in the end; 0: unknown."""


class EncoderCache:
    """Bounded by the scheduler, which says what is forgotten. Workers without a vision model keep nothing."""

    def __init__(self, vision: VisionModel | None) -> None:
        self.rows_per_token = 0.0
        """Rows that attend for each of a picture's tokens (``Encoding``); 0: not measured, so portions are whole."""
        self._vision = vision
        self._encoded: dict[bytes, Encoded] = {}
        self._begun: dict[bytes, _Begun] = {}
        """At most one, by key."""

    def __len__(self) -> int:
        return len(self._encoded)

    def keep(self, key: bytes, encoded: Encoded) -> None:
        """Keep embeddings that are already there."""
        self._encoded[key] = encoded

    def update(self, plan: EncoderPlan) -> None:
        """Forget, then encode."""
        if self._vision is None:
            return
        for key in plan.forgotten:
            self._encoded.pop(key, None)
            self._begun.pop(key, None)
        if plan.portion is not None:
            self._advance(plan.portion, self._vision)
        for key, picture in plan.encoded:
            if (begun := self._begun.pop(key, None)) is not None:
                self._encoded[key] = begun.encoding.finish()
            elif key not in self._encoded:
                self._encoded[key] = self._vision.encode(picture)

    def _advance(self, portion: EncoderPortion, vision: VisionModel) -> None:
        """Encode a part of a picture. Its embeddings may be there before the last portion."""
        if (picture := portion.picture) is not None and portion.key not in self._encoded:
            rows = self.rows_per_token * picture.shape.num_tokens
            self._begun[portion.key] = _Begun(Encoding(vision.encode, picture), rows)
        if (begun := self._begun.get(portion.key)) is None:
            return
        is_last = portion.share >= 1 or not begun.rows
        encoded = begun.encoding.finish() if is_last else begun.encoding.advance(portion.share * begun.rows)
        if encoded is not None:
            del self._begun[portion.key]
            self._encoded[portion.key] = encoded

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
