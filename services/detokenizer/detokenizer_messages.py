"""Updates for a processor as protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.detokenizer.v1 import detokenizer_pb2

from services.common.rpc.part_messages import write_parts
from services.common.rpc.shared_messages import write_end, write_logprobs
from services.ring.outbox import RequestUpdate


def outputs_of(taken: Sequence[RequestUpdate]) -> detokenizer_pb2.TextOutputs:
    """The message of one frame, with packed arrays."""
    outputs = detokenizer_pb2.TextOutputs()
    request_ids: list[str] = []
    epochs: list[int] = []
    choices: list[int] = []
    first_positions: list[int] = []
    token_counts: list[int] = []
    texts: list[str] = []
    token_ids: list[int] = []
    for update in taken:
        _prompt(outputs, update)
        for choice, part in update.choices.items():
            if part.ids or any(part.texts):
                if part.logprobs:
                    write_logprobs(outputs.logprobs.add(entry=len(request_ids)).logprobs, part.logprobs)
                if (parts := part.parts[-1]) is not None:
                    entry = outputs.parts.add(entry=len(request_ids), reasoning_tokens=parts.reasoning_tokens)
                    write_parts(entry.parts, part.parts)
                request_ids.append(update.request_id)
                epochs.append(update.epoch)
                choices.append(choice)
                first_positions.append(part.first_position)
                token_counts.append(len(part.ids))
                texts.append("".join(part.texts))
                token_ids.extend(part.ids)
            if part.end is not None:
                position = part.end.position
                finished = outputs.finished.add(
                    request_id=update.request_id, epoch=update.epoch, choice=choice, position=position
                )
                write_end(finished, part.end)
    outputs.request_ids.extend(request_ids)
    outputs.epochs.extend(epochs)
    outputs.choices.extend(choices)
    outputs.first_positions.extend(first_positions)
    outputs.token_counts.extend(token_counts)
    outputs.texts.extend(texts)
    outputs.token_ids.extend(token_ids)
    return outputs


def _prompt(outputs: detokenizer_pb2.TextOutputs, update: RequestUpdate) -> None:
    if update.prefill is not None:
        outputs.prefills.add(
            request_id=update.request_id,
            epoch=update.epoch,
            prompt_tokens=update.prefill.prompt_tokens,
            computed_tokens=update.prefill.computed_tokens,
            cached_tokens=update.prefill.cached_tokens,
        )
    if update.prompt_logprobs is not None:
        part = outputs.prompt_logprobs.add(
            request_id=update.request_id, epoch=update.epoch, offset=update.prompt_offset
        )
        write_logprobs(part.logprobs, update.prompt_logprobs)
