"""What is answered from the vocabulary alone: ids of texts, texts of ids, what can be asked for."""

from __future__ import annotations

from ringline.inference.v1 import inference_pb2

from services.processor.admission import render_chat
from services.processor.validation import check_model, check_text_size, check_token_ids, refuse
from services.processor.vocabulary import Vocabulary


def tokenize(request: inference_pb2.TokenizeRequest, vocabulary: Vocabulary) -> inference_pb2.TokenizeResponse:
    """The ids of a text or chat, as a generation would see them. Raises ``Refused``."""
    check_model(request.model, vocabulary.limits)
    rendered = ""
    match request.WhichOneof("input"):
        case "text":
            text, special = request.text, True
            check_text_size("text", text, vocabulary.limits)
        case "chat":
            text = rendered = render_chat(request.chat, vocabulary)
            special = False
        case _:
            raise refuse("input", "none is set: expected text or chat")
    if request.HasField("add_special_tokens"):
        special = request.add_special_tokens
    return inference_pb2.TokenizeResponse(
        token_ids=vocabulary.tokenizer.encode(text, add_special_tokens=special),
        rendered=rendered,
        max_model_len=vocabulary.limits.max_model_len,
    )


def detokenize(request: inference_pb2.DetokenizeRequest, vocabulary: Vocabulary) -> inference_pb2.DetokenizeResponse:
    """The text of ids, decoded as a whole. Raises ``Refused``."""
    check_model(request.model, vocabulary.limits)
    limits = vocabulary.limits
    if len(request.token_ids) > limits.max_model_len:
        problem = f"{len(request.token_ids)} ids: expected at most {limits.max_model_len}, the model's context"
        raise refuse("token_ids", problem)
    ids = list(request.token_ids)
    check_token_ids("token_ids", ids, limits)
    skip = request.skip_special_tokens if request.HasField("skip_special_tokens") else True
    size = vocabulary.tokenizer.text_bytes(ids, skip_special_tokens=skip)
    if size > limits.max_text_bytes:
        raise refuse("token_ids", f"their text has {size} bytes: expected at most {limits.max_text_bytes}")
    return inference_pb2.DetokenizeResponse(text=vocabulary.tokenizer.decode(ids, skip_special_tokens=skip))


def list_models(vocabulary: Vocabulary | None) -> inference_pb2.ListModelsResponse:
    """What can be asked for; nothing, as long as no engine was reached."""
    if vocabulary is None:
        return inference_pb2.ListModelsResponse()
    model = vocabulary.model
    return inference_pb2.ListModelsResponse(
        models=[
            inference_pb2.Model(
                name=model.model,
                architecture=model.architecture,
                vocab_size=model.vocab_size,
                max_model_len=model.max_model_len,
                eos_token_ids=model.eos_token_ids,
                has_chat_template=bool(vocabulary.chat.names),
                tokenizer_digest=model.tokenizer_digest,
                model_digest=model.model_digest,
                capabilities=sorted(vocabulary.capabilities),
            )
        ]
    )
