"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``, as in vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
from ringline import Message, Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.options import TokenizeOptions
from ringline.relay import Relay
from ringline.request import build_detokenize
from starlette.responses import Response

from services.gateway.answer import tokenize as ring_tokenize
from services.gateway.fields import Body, checked, ignored, options_of, passed, refused, supported
from services.gateway.http.api_error import invalid
from services.gateway.http.call import Call, Endpoint, parse
from services.gateway.openai.errors import OPENAI, openai_dialect
from services.gateway.openai.messages import ChatMessage, Tool, ring_messages, tool_options
from services.gateway.openai.models import model_of
from services.gateway.openai.sampling_fields import MM_PROCESSOR_KWARGS
from services.gateway.token_texts import TokenTexts


class TokenizeRequest(Body):
    """The body of ``/tokenize``."""

    model: Annotated[str | None, passed("Default: the model that is served.")] = None
    prompt: Annotated[str | None, supported("A text; or give `messages`.")] = None
    messages: Annotated[list[ChatMessage] | None, supported("As in a chat.")] = None
    tools: Annotated[list[Tool] | None, supported("As in a chat.")] = None
    add_special_tokens: Annotated[bool | None, passed("Default: true for a text, false for messages.")] = None
    add_generation_prompt: Annotated[bool | None, passed()] = None
    continue_final_message: Annotated[bool | None, passed()] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, passed(option="template_args")] = None
    return_token_strs: Annotated[bool | None, supported("Adds `token_strs`, the text of each token.")] = None
    mm_processor_kwargs: Annotated[Any, refused(MM_PROCESSOR_KWARGS, {})] = None
    media_io_kwargs: Annotated[Any, ignored("Files of pictures are decoded in one way.")] = None
    chat_template: Annotated[Any, refused("the model's own is used; chat_template_kwargs has its variables")] = None


class DetokenizeRequest(Body):
    """The body of ``/detokenize``."""

    model: Annotated[str | None, supported("Default: the model that is served.")] = None
    tokens: Annotated[list[int] | None, supported("Special tokens are in the text, too.")] = None


_TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
_DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)
_OF_MESSAGES = ("add_generation_prompt", "continue_final_message", "template_args")


async def tokenize(call: Call) -> Response:
    """The ids of a text or of messages."""
    request, text, messages, options = await call.aside(lambda: _read(call.body))
    await call.fetch_pictures(messages)
    found = await ring_tokenize(call, text, messages, options)
    body: dict[str, Any] = {
        "count": len(found.token_ids),
        "max_model_len": found.max_model_len,
        "tokens": found.token_ids,
        "token_strs": None,
    }
    if request.return_token_strs:
        texts = await TokenTexts.of_model(call.client, (await model_of(call, request.model)).name)
        await texts.load(found.token_ids)
        name = texts.name
        body["token_strs"] = await call.aside(lambda: list(map(name, found.token_ids)), len(found.token_ids))
    return _json(body)


def _read(body: bytes) -> tuple[TokenizeRequest, str | None, Sequence[Message] | None, TokenizeOptions]:
    """The request, text, messages and ring options."""
    request = checked(parse(_TOKENIZE, body))
    if (request.prompt is None) == (request.messages is None):
        problem = "missing" if request.prompt is None else "set together with messages"
        raise invalid("prompt", f"{problem}: expected one of prompt and messages")
    options = options_of(request)
    if request.messages is None:
        options = {name: value for name, value in options.items() if name not in _OF_MESSAGES}
        return request, request.prompt, None, cast(TokenizeOptions, options)
    options |= tool_options(request.tools, None, None)
    options.pop("parse")
    return request, None, ring_messages(request.messages), cast(TokenizeOptions, options)


async def detokenize(call: Call) -> Response:
    """The text of ids, with special tokens, so that ``/tokenize`` restores them."""
    found = await Relay(call.client).detokenize(await call.aside(lambda: _read_ids(call.body)))
    return _json({"prompt": found.text})


def _read_ids(body: bytes) -> pb.DetokenizeRequest:
    request = checked(parse(_DETOKENIZE, body))
    if request.tokens is None:
        raise invalid("tokens", "missing: expected a list of token ids")
    return build_detokenize(request.tokens, request.model, skip_special_tokens=False)


async def tokenizer_info(call: Call) -> Response:
    """For clients that use this server's tokenizer: the tokens that begin and end texts."""
    model = await model_of(call, None)
    texts = await TokenTexts.of_model(call.client, model.name)
    eos = model.eos_token_ids[:1]
    await texts.load(eos)
    bos = await _bos_token(call, model, texts)
    body = {
        "tokenizer_class": "Ringline",
        "model_max_length": model.max_model_len,
        "bos_token": bos,
        "eos_token": next(map(texts.name, eos), None),
        "add_bos_token": bos is not None,
    }
    return _json(body)


async def _bos_token(call: Call, model: Model, texts: TokenTexts) -> str | None:
    """The token that begins a text; None without one."""
    with_special, without = [
        (await call.client.tokenize("a", model=model.name, add_special_tokens=special)).token_ids
        for special in (True, False)
    ]
    if with_special[:1] == without[:1] or not with_special:
        return None
    await texts.load(with_special[:1])
    return texts.name(with_special[0])


def _json(body: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


_TOKENIZE_DIALECT = openai_dialect({"text": "prompt", "chat": "messages"}, TokenizeRequest)
_DETOKENIZE_DIALECT = openai_dialect({"token_ids": "tokens"}, DetokenizeRequest)

ENDPOINTS = (
    Endpoint("POST", "/tokenize", tokenize, _TOKENIZE_DIALECT),
    Endpoint("POST", "/detokenize", detokenize, _DETOKENIZE_DIALECT),
    Endpoint("GET", "/tokenizer_info", tokenizer_info, OPENAI),
)
