"""What encoding a picture takes: measured once, at the start."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from engine_core.media import Picture, VisionShape
from engine_core.models.encoding import Encoding
from engine_core.models.vision_model import Encoded, VisionModel
from engine_core.worker.input_batch import BatchLimits

_MEASURED_TOKENS = 1024
"""The most tokens of the picture that is measured: larger ones would take minutes on a CPU. A larger one's memory is
taken to grow with its tokens, as attention is computed in tiles, and its time with their square, which is the most.
"""


@dataclass(frozen=True, slots=True)
class EncodingProfile:
    """Measurements of one picture."""

    picture: Picture
    encoded: Encoded
    is_finite: bool
    """As ``encoded`` says it."""
    seconds: float
    rows: int
    """As in ``Encoding``."""
    shape: VisionShape

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.picture.shape.num_tokens

    @property
    def rows_per_token(self) -> float:
        """The same for all pictures of a model, or nearly so."""
        return self.rows / self.picture.shape.num_tokens

    @property
    def _factor(self) -> float:
        """How many times as many tokens the largest picture has."""
        return max(1.0, self.shape.max_tokens / self.picture.shape.num_tokens)

    def with_pictures(self, growth: int, step: int) -> int:
        """Bytes that steps take, from those that encoding the measured picture took, and those of the largest step.

        A picture whose encoding has stopped keeps its memory, while steps are computed and another is encoded.
        """
        largest = int(growth * self._factor)
        return largest + max(largest, step)

    def step_seconds(self, limits: BatchLimits) -> float:
        """Seconds for as many pictures as one step may encode."""
        most = max(1.0, limits.encoder_step_tokens / self.shape.max_tokens)
        return most * self.seconds * self._factor**2

    def cache_bytes(self, limits: BatchLimits) -> int:
        """Bytes of all embeddings that may be kept."""
        return limits.encoder_cache_tokens * (self.encoded.nbytes // self.picture.shape.num_tokens)


@torch.inference_mode()
def measure_encoding(vision: VisionModel) -> EncodingProfile:
    """Encode one picture."""
    picture = vision.example(min(vision.shape.max_tokens, _MEASURED_TOKENS))
    encoding = Encoding(vision.encode, picture)
    start = time.perf_counter()
    encoded = encoding.finish()
    is_finite = encoded.is_finite  # waits for the device
    seconds = time.perf_counter() - start
    return EncodingProfile(picture, encoded, is_finite, seconds, encoding.rows, vision.shape)
