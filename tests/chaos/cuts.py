"""A client that loses its stream at chosen places, and resumes: what the server sends behind them never arrives."""

from __future__ import annotations

from collections.abc import Sequence

from ringline import AsyncStream, Unavailable
from ringline.inference.v1 import inference_pb2 as pb
from ringline.retrying_request import RetryingRequest
from ringline.session_stream import Attempt


def cut(stream: AsyncStream, places: Sequence[int]) -> None:
    """Let ``stream``, which has not begun, be lost after these numbers of tokens over all choices, in order."""
    begin, left, received = stream._begin, list(places), 0

    async def begin_attempt(retrying: RetryingRequest) -> Attempt:
        attempt = await begin(retrying)
        take, lost = attempt.take, False

        def take_until_cut(response: pb.GenerateResponse) -> bool:
            nonlocal received, lost
            if lost:
                return response.HasField("request_finished") or response.HasField("refused")
            over = take(response)
            received += len(response.delta.token_ids)
            if left and received >= left[0] and not over:
                del left[0]
                lost = True
                attempt.fail(Unavailable("the test cut it"))
                attempt._abandon(attempt)
            return over

        attempt.take = take_until_cut  # type: ignore[method-assign]
        return attempt

    stream._begin = begin_attempt
