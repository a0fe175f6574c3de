"""Load on the front door with prompts of text, so that the processor tokenizes as other servers must."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.inference.v1 import inference_pb2 as pb

from benchmarks.work import text_of
from services.bench.session import SessionLink


class TextSessionLink(SessionLink):
    """A Session as ``ringline bench`` has it, but for the prompts."""

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        super().prepare(prompts, output_len)
        for request, prompt in zip(self._prepared, prompts, strict=True):
            self._to_text(request, prompt)

    @staticmethod
    def _to_text(request: pb.SessionRequest, prompt: Sequence[int]) -> None:
        request.generate.text = text_of(prompt)  # replaces the ids: a prompt is one of them
