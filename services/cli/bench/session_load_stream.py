"""Load on a processor: all requests on one Session."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from ringline.channel import CHANNEL_OPTIONS
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1.inference_pb2_grpc import InferenceServiceStub
from ringline.types.v1 import output_pb2, sampling_pb2

from services.cli.bench.load_stream import LoadError, LoadStream, Target
from services.common.security.credentials import PLAINTEXT, PeerCredentials

if TYPE_CHECKING:  # the stub is one class at run time
    from ringline.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub


class SessionLoadStream(LoadStream):
    """Sends requests over one Session. They are greedy and ignore eos."""

    def __init__(
        self, address: str, *, credentials: PeerCredentials = PLAINTEXT, server_name: str | None = None
    ) -> None:
        """``server_name``: the name in the server's certificate, if it is not the host of ``address``."""
        super().__init__()
        self._channel = credentials.open(address, server_name, CHANNEL_OPTIONS)
        self._prepared: list[pb.SessionRequest] = []
        self._outbox: deque[pb.SessionRequest] = deque()

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        sampling = pb.SamplingParams(temperature=0.0)
        stopping = pb.StoppingParams(max_tokens=output_len, ignore_eos=True)
        self._prepared = [
            pb.SessionRequest(
                generate=pb.GenerateRequest(
                    request_id=str(number),
                    token_ids=sampling_pb2.TokenIds(ids=prompt),
                    sampling=sampling,
                    stopping=stopping,
                )
            )
            for number, prompt in enumerate(prompts)
        ]

    def send(self, number: int) -> None:
        self._outbox.append(self._prepared[number])
        self._pending.set()

    async def _connect(self) -> Target:
        stub = cast("InferenceServiceAsyncStub", InferenceServiceStub(self._channel))
        models = await stub.ListModels(pb.ListModelsRequest())
        self._call = stub.Session()
        first = await self._call.read()
        if not isinstance(first, pb.SessionResponse) or not models.models:
            raise LoadError("the server serves no model")
        model = models.models[0]
        return Target(
            model=model.name,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_token_ids=frozenset(model.eos_token_ids),
            max_live_requests=first.limits.max_live_requests or None,
        )

    async def _disconnect(self) -> None:
        await self._channel.close()

    async def _write(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            while self._outbox:
                await self._call.write(self._outbox.popleft())

    async def _read(self) -> None:
        while isinstance(frame := await self._call.read(), pb.SessionResponse):
            now = time.perf_counter()
            listener = self.listener
            if listener is None:
                continue
            for response in frame.responses:
                if response.HasField("delta"):
                    delta = response.delta
                    listener.on_tokens(int(response.request_id), delta.first_position, len(delta.token_ids), now)
                elif response.HasField("choice_finished"):
                    listener.on_finished(int(response.request_id), now, _problem(response.choice_finished))
                elif response.HasField("refused"):
                    listener.on_finished(int(response.request_id), now, response.refused.status.message)
        raise LoadError("the server ended the session")


def _problem(finished: pb.ChoiceFinished) -> str | None:
    """Why the choice did not end with the requested number of tokens; None if it did."""
    if finished.finish_reason == output_pb2.FINISH_REASON_LENGTH:
        return None
    if finished.HasField("error"):
        return finished.error.message
    return output_pb2.FinishReason.Name(finished.finish_reason)
