"""The inputs of a message, as ``text_core.pooled_inputs`` makes ids of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ringline.inference.v1 import inference_pb2

from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from text_core.pooled_inputs import Chats, Cut, Length, Pair, Texts

_CUTS = {inference_pb2.TRUNCATION_END: Cut.END, inference_pb2.TRUNCATION_START: Cut.START}


def length_of(options: inference_pb2.PoolingOptions, served_model: ServedModel) -> Length:
    """How long an input may be."""
    most = served_model.limits.max_model_len
    if options.HasField("max_input_tokens"):
        most = min(most, options.max_input_tokens)
    return Length(most, _CUTS.get(options.truncation), "options.truncation cuts longer ones")


def texts_of(
    field: str,
    inputs: Sequence[inference_pb2.PoolingInput],
    prompt: str,
    options: inference_pb2.PoolingOptions,
    served_model: ServedModel,
) -> Texts:
    """Texts and ids, with ``prompt`` before texts. ``field``: of the message."""
    return Texts(
        [f"{field}[{index}]" for index in range(len(inputs))],
        [each.text if each.WhichOneof("input") == "text" else each.token_ids.ids for each in inputs],
        [prompt] * len(inputs),
        served_model.tokenizer,
        length_of(options, served_model),
        options.add_special_tokens if options.HasField("add_special_tokens") else True,
    )


def pairs_of(message: inference_pb2.ScoreRequest) -> list[Pair]:
    """The pairs of a request whose texts a model reads together. Raises ``Refused`` for ids."""
    for name, inputs in (("queries", message.queries), ("documents", message.documents)):
        for index, each in enumerate(inputs):
            if each.WhichOneof("input") != "text":
                raise refuse(f"{name}[{index}]", "ids, but this model reads pairs of texts: expected text")
    several = len(message.queries) > 1
    found = []
    for index, document in enumerate(message.documents):
        of = index if several else 0
        found.append(Pair(f"queries[{of}]", message.queries[of].text, f"documents[{index}]", document.text))
    return found


def chats_of(message: inference_pb2.ScoreRequest, served_model: ServedModel) -> Chats:
    """The pairs of a request as the model's chat template shows them. Raises ``Refused`` for ids."""
    # Query and document each have at most max_text_bytes.
    render = partial(served_model.chat.render, max_chars=3 * served_model.limits.max_text_bytes)
    length = length_of(message.options, served_model)
    facts = served_model.model.pooling
    instruction = message.instruction or facts.prompts.get(facts.default_prompt, "")
    return Chats(pairs_of(message), instruction, served_model.tokenizer, render, length)
