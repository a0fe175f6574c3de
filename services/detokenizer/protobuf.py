"""What a processor is owed, as protobuf."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.types.v1 import output_pb2

from services.ring.events import ChoiceEnd
from services.ring.outbox import RequestNews
from services.rpc.protobuf import status_to_proto, write_logprobs


def outputs_of(taken: Sequence[RequestNews]) -> detokenizer_pb2.TextOutputs:
    """The packed arrays of one frame."""
    outputs = detokenizer_pb2.TextOutputs()
    request_ids: list[str] = []
    epochs: list[int] = []
    choices: list[int] = []
    first_positions: list[int] = []
    token_counts: list[int] = []
    texts: list[str] = []
    token_ids: list[int] = []
    for news in taken:
        _prompt(outputs, news)
        for choice, part in news.choices.items():
            if part.ids or any(part.texts):
                if part.logprobs:
                    write_logprobs(outputs.logprobs.add(entry=len(request_ids)).logprobs, part.logprobs)
                request_ids.append(news.request_id)
                epochs.append(news.epoch)
                choices.append(choice)
                first_positions.append(part.first_position)
                token_counts.append(len(part.ids))
                texts.append("".join(part.texts))
                token_ids.extend(part.ids)
            if part.end is not None:
                outputs.finished.append(_finished(news, choice, part.end))
    outputs.request_ids.extend(request_ids)
    outputs.epochs.extend(epochs)
    outputs.choices.extend(choices)
    outputs.first_positions.extend(first_positions)
    outputs.token_counts.extend(token_counts)
    outputs.texts.extend(texts)
    outputs.token_ids.extend(token_ids)
    return outputs


def _prompt(outputs: detokenizer_pb2.TextOutputs, news: RequestNews) -> None:
    if news.prefill is not None:
        outputs.prefills.add(
            request_id=news.request_id,
            epoch=news.epoch,
            prompt_tokens=news.prefill.prompt_tokens,
            computed_tokens=news.prefill.computed_tokens,
            cached_tokens=news.prefill.cached_tokens,
        )
    if news.prompt_logprobs is not None:
        part = outputs.prompt_logprobs.add(request_id=news.request_id, epoch=news.epoch, offset=news.prompt_offset)
        write_logprobs(part.logprobs, news.prompt_logprobs)


def _finished(news: RequestNews, choice: int, end: ChoiceEnd) -> detokenizer_pb2.TextFinished:
    finished = detokenizer_pb2.TextFinished(
        request_id=news.request_id,
        epoch=news.epoch,
        choice=choice,
        position=end.position,
        finish_reason=output_pb2.FinishReason.ValueType(end.finish_reason),
        error=None if end.error is None else status_to_proto(end.error),
    )
    if end.stop_string is not None:
        finished.stop_string = end.stop_string
    elif end.stop_token_id is not None:
        finished.stop_token_id = end.stop_token_id
    return finished
