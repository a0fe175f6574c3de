"""A request on the ring as the commands that engines are sent about it."""

from __future__ import annotations

import time

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import sampling_pb2

from services.processor.client import LiveRequest


def submit_of(live: LiveRequest, deliver_to: str) -> engine_pb2.Submit:
    """Begin it, or go on with it from what was delivered, under a new epoch."""
    submit = live.admission.submit
    submit.request_id = live.ring.request_id
    submit.epoch = live.ring.next_epoch()
    submit.deliver_to = deliver_to
    submit.output_context = live.admission.output_context
    if live.call.deadline is not None:
        submit.timeout_ms = max(1, round((live.call.deadline - time.monotonic()) * 1000))
    unfinished = live.ring.unfinished()
    if any(unfinished.values()) or len(unfinished) < live.admission.num_choices:
        submit.resume.extend(
            sampling_pb2.ResumedChoice(choice=choice, token_ids=ids) for choice, ids in unfinished.items()
        )
    return submit


def redirect_of(live: LiveRequest, deliver_to: str) -> engine_pb2.Command:
    """Have its log sent again, under a new epoch."""
    delivered = [engine_pb2.Delivered(choice=choice, count=count) for choice, count in live.ring.delivered().items()]
    redirect = engine_pb2.Redirect(
        request_id=live.ring.request_id, epoch=live.ring.next_epoch(), deliver_to=deliver_to, delivered=delivered
    )
    return engine_pb2.Command(redirect=redirect)


def done_of(live: LiveRequest) -> engine_pb2.Command:
    """Have it forgotten."""
    return engine_pb2.Command(done=engine_pb2.Done(request_id=live.ring.request_id, epoch=live.ring.epoch))
