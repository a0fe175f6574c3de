"""Load on a processor with text prompts, so that it tokenizes like other servers."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.inference.v1 import inference_pb2 as pb

from benchmarks.work import text_of
from services.cli.bench.ring_load_streams import SessionLoadStream


class TextSessionLoadStream(SessionLoadStream):
    """Replaces the token ids of the prompts by their text."""

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        super().prepare(prompts, output_len)
        for request, prompt in zip(self._prepared, prompts, strict=True):
            self._to_text(request, prompt)

    @staticmethod
    def _to_text(request: pb.SessionRequest, prompt: Sequence[int]) -> None:
        request.generate.text = text_of(prompt)  # replaces the ids: both are members of one oneof
