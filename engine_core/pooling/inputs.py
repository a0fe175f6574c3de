"""The inputs of a ``PoolingRequest``: for the scheduler, each is a request of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_core.pooling.params import PoolingParams, PoolingRequest
from engine_core.request import Request, SamplingParams

_ONE_RESULT = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
"""Of an input: its result takes the place of the only token."""


@dataclass(slots=True, eq=False)
class LiveInputs:
    """What the scheduler knows of a ``PoolingRequest`` until all of its inputs have ended."""

    request_id: str
    ids: dict[int, str] = field(default_factory=dict)
    """By choice, of inputs that have not ended: their ids in the scheduler."""
    num_waiting: int = 0
    """Inputs in the waiting queue that were never admitted: together they are one request that waits."""
    is_started: bool = False
    """Whether an input was admitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequest(Request):
    """One input, with an id that only the scheduler knows."""

    pooling: PoolingParams
    second_text: int | None
    """As in ``PoolingInput``."""
    choice: int
    """Of ``whole``."""
    whole: LiveInputs


def requests_of(request: PoolingRequest, live: LiveInputs) -> Iterator[InputRequest]:
    """The inputs of ``request`` in the order of their choices; records them in ``live``."""
    for choice, each in sorted(request.inputs.items()):
        live.ids[choice] = f"{request.request_id}\0{choice}"  # no id of a request, which is text for people, has a NUL
        yield InputRequest(
            request_id=live.ids[choice],
            prompt_token_ids=each.token_ids,
            params=_ONE_RESULT,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            deadline=request.deadline,
            adapter=request.adapter,
            speculation=False,
            pooling=request.params,
            second_text=each.second_text,
            choice=choice,
            whole=live,
        )
