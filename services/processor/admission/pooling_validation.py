"""Checks of requests that are pooled, as far as they need no tokens. Each error names the field and what it accepts."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import pooling_pb2

from services.processor.admission.prompt_resolution import require_tokenizer
from services.processor.admission.validation import (
    MAX_CACHE_SALT_BYTES,
    MAX_TIMEOUT_MS,
    check_model,
    check_text_size,
    check_token_ids,
    refuse,
)
from services.processor.pooling.plan import FLOAT_BYTES, PoolingMessage
from services.processor.pooling.purpose import wrong_model
from services.processor.served_models import ServedModel
from services.ring.errors import Reason, invalid_field
from services.ring.identity import check_requires
from services.ring.limits import MAX_POOLED_BYTES, MAX_POOLED_INPUTS

MAX_INSTRUCTION_BYTES = 16 << 10
MAX_REPEATED_CHARACTERS = 16 << 20
"""Of what is read with each document, times the documents: few tokens may be made of much text."""


def check_pooling_request(message: PoolingMessage, served_model: ServedModel, *, has_adapter: bool = False) -> None:
    """What requests of all kinds have in common; raises ``Refused``. ``has_adapter``: it names one of the model's."""
    limits, options = served_model.limits, message.options
    if not has_adapter:
        check_model(message.model, limits)
    if not served_model.pools:
        raise wrong_model(served_model, "makes no vectors, scores or labels")
    check_requires(options.requires, served_model.capabilities)
    if (size := len(options.cache_salt.encode())) > MAX_CACHE_SALT_BYTES:
        raise refuse("options.cache_salt", f"{size} bytes: expected at most {MAX_CACHE_SALT_BYTES}")
    if options.HasField("timeout_ms") and not 1 <= options.timeout_ms <= MAX_TIMEOUT_MS:
        raise refuse("options.timeout_ms", f"{options.timeout_ms} is out of range: expected 1 to {MAX_TIMEOUT_MS}")
    if options.HasField("max_input_tokens") and not options.max_input_tokens:
        raise refuse("options.max_input_tokens", "0 is out of range: expected at least 1")


def check_inputs(field: str, inputs: Sequence[inference_pb2.PoolingInput], served_model: ServedModel) -> None:
    """Every input must be there, and not be larger than any input can be; raises ``Refused``."""
    if not 1 <= len(inputs) <= MAX_POOLED_INPUTS:
        found = f"{len(inputs)} inputs" if inputs else "empty"
        raise refuse(field, f"{found}: expected 1 to {MAX_POOLED_INPUTS}")
    limits = served_model.limits
    for index, each in enumerate(inputs):
        place = f"{field}[{index}]"
        match each.WhichOneof("input"):
            case "text":
                require_tokenizer(served_model, place)
                if not each.text:
                    raise refuse(place, "empty: expected a text")
                check_text_size(place, each.text, limits)
            case "token_ids":
                if not each.token_ids.ids:
                    raise refuse(place, "empty: expected at least one id")
                check_token_ids(place, each.token_ids.ids, limits)
            case _:
                raise refuse(place, "none is set: expected text or token_ids")


def check_queries(message: inference_pb2.ScoreRequest) -> None:
    """There must be one query, or one for each document."""
    if len(message.queries) not in (1, len(message.documents)):
        problem = (
            f"{len(message.queries)} queries for {len(message.documents)} documents: expected one, or one for each"
        )
        raise refuse("queries", problem)


def check_repeated(message: inference_pb2.ScoreRequest) -> None:
    """What a model reads with each of the documents is encoded as often; raises ``Refused`` if that is too much."""
    texts = {"instruction": message.instruction}
    if len(message.queries) == 1:
        texts["queries[0]"] = message.queries[0].text
    field = max(texts, key=lambda name: len(texts[name]))
    size, times = sum(map(len, texts.values())), len(message.documents)
    if size * times > MAX_REPEATED_CHARACTERS:
        problem = (
            f"{size} characters are read with each of {times} documents: expected at most "
            f"{MAX_REPEATED_CHARACTERS // times}; send fewer documents at a time"
        )
        raise invalid_field(field, problem, reason=Reason.TOO_LARGE)


def check_dimensions(message: inference_pb2.EmbedRequest, served_model: ServedModel) -> None:
    """A model can be asked for the dimensions that it was trained for."""
    if not message.HasField("dimensions"):
        return
    facts, asked = served_model.model.pooling, message.dimensions
    if asked == facts.dimensions:
        return
    if not facts.is_matryoshka:
        problem = f"{asked}: expected {facts.dimensions}, as the model was not trained to be cut to fewer"
    elif facts.matryoshka_dimensions and asked not in facts.matryoshka_dimensions:
        problem = f"{asked}: expected one of {', '.join(map(str, facts.matryoshka_dimensions))}"
    elif not 1 <= asked <= facts.dimensions:
        problem = f"{asked} is out of range: expected 1 to {facts.dimensions}"
    else:
        return
    raise refuse("dimensions", problem)


def check_task(task: pooling_pb2.PoolingTask.ValueType, served_model: ServedModel, not_for: str) -> None:
    """Raise ``Refused`` for a model that does not do ``task``; ``not_for`` says so in words."""
    if task not in served_model.model.pooling.tasks:
        raise wrong_model(served_model, not_for)


def check_result_size(field: str, rows: int, width: int) -> None:
    """Results must fit into one message; raises ``Refused`` before any is computed."""
    if (size := FLOAT_BYTES * rows * width) > MAX_POOLED_BYTES:
        problem = (
            f"results of {size} bytes ({rows} rows of {width} numbers): expected at most {MAX_POOLED_BYTES}; "
            "send fewer inputs at a time, or ask for fewer dimensions"
        )
        raise invalid_field(field, problem, reason=Reason.TOO_LARGE)


def prompt_text(name: str | None, served_model: ServedModel) -> str:
    """What is put before a text: the prompt of that ``name``, or the model's default one. Raises ``Refused``."""
    facts = served_model.model.pooling
    name = facts.default_prompt if name is None else name
    if name and name not in facts.prompts:
        known = " or ".join(map(repr, sorted(facts.prompts))) or "none, as the model has no prompts"
        raise refuse("prompt_name", f"{name[:80]!r} is not a prompt of this model: expected {known}")
    return facts.prompts[name] if name else ""


def check_instruction(message: inference_pb2.ScoreRequest, *, has_place: bool) -> None:
    """``has_place``: whether the model's input shows it."""
    if message.instruction and not has_place:
        raise refuse("instruction", "set, and this model's input has no place for one: expected none")
    if (size := len(message.instruction.encode())) > MAX_INSTRUCTION_BYTES:
        raise refuse("instruction", f"{size} bytes: expected at most {MAX_INSTRUCTION_BYTES}")
