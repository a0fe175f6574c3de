"""Turns a request's text, ids or chat into prompt ids, by the model's chat template and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringline.inference.v1 import inference_pb2

from services.processor.admission.tool_resolution import Tools, json_value, resolve_tools
from services.processor.admission.validation import (
    check_chat,
    check_prompt_length,
    check_text_size,
    refuse,
    text_too_large,
)
from services.processor.media.chat_pictures import ChatPictures, check_other_texts
from services.processor.served_models import ServedModel
from text_core.chat_templates import NO_TEMPLATE, ChatTemplateError, ChatTooLongError, UnknownTemplateError
from text_core.pictures.base import PictureError
from text_core.pictures.expansion import expanded, num_expanded, with_pictures
from text_core.pictures.prepared import PreparedItem
from text_core.tokenizer_files import NEEDS_TOKENIZER


def prompt_ids(
    request: inference_pb2.GenerateRequest, served_model: ServedModel, tools: Tools | None = None
) -> list[int]:
    """The prompt's ids; only the last ``truncate_prompt_tokens`` if set. ``tools``: as in ``render_chat``."""
    last = request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None
    if request.WhichOneof("prompt") == "token_ids":
        return request.token_ids.ids[-last if last is not None else 0 :]
    require_tokenizer(served_model, request.WhichOneof("prompt") or "prompt")
    if request.WhichOneof("prompt") == "text":
        special = request.add_special_tokens if request.HasField("add_special_tokens") else True
        text = request.text
    else:
        special = request.add_special_tokens
        text = render_chat(request.chat, served_model, tools)
    return served_model.tokenizer.encode(text, add_special_tokens=special, truncate_prompt_tokens=last)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's ids, and where its pictures stand."""

    ids: Sequence[int]
    places: Sequence[tuple[int, PreparedItem]] = ()
    """Offset and item of each run of tokens that stand for a picture."""

    @property
    def media_tokens(self) -> int:
        """Tokens that stand for pictures."""
        return sum(item.plan.num_tokens for _, item in self.places)


def resolve_prompt(
    request: inference_pb2.GenerateRequest,
    served_model: ServedModel,
    tools: Tools | None = None,
    pictures: ChatPictures | None = None,
) -> Prompt:
    """The prompt with its pictures, those of ``pictures``; raises ``Refused``."""
    if pictures is None:
        return Prompt(prompt_ids(request, served_model, tools))
    rendered = render_chat(request.chat, served_model, tools)
    special = request.add_special_tokens
    return prompt_with_pictures(request.chat, rendered, served_model, pictures, add_special_tokens=special)


def prompt_with_pictures(
    chat: inference_pb2.Chat,
    rendered: str,
    served_model: ServedModel,
    pictures: ChatPictures,
    *,
    add_special_tokens: bool,
) -> Prompt:
    """The prompt of a ``rendered`` chat, in which placeholders stand for ``pictures``. Raises ``Refused``."""
    assert served_model.pictures is not None
    processor = served_model.pictures.processor
    plans = [picture.plan for picture in pictures.pictures]
    try:
        text = with_pictures(rendered, processor.placeholder, plans)
        ids = served_model.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        check_prompt_length(num_expanded(ids, plans), served_model.limits)  # counted before it is made
        made = expanded(ids, processor.item_token_id, plans)
    except PictureError as error:
        check_other_texts(chat, served_model.pictures)
        raise refuse("chat.messages", str(error)) from None
    return Prompt(made.ids, list(zip(made.offsets, pictures.items, strict=True)))


def require_tokenizer(served_model: ServedModel, field: str) -> None:
    """Raise ``Refused`` if the model has no tokenizer, which ``field`` needs."""
    if served_model.tokenizer.is_empty:
        raise refuse(field, NEEDS_TOKENIZER)


def require_template(request: inference_pb2.GenerateRequest, served_model: ServedModel) -> None:
    """Raise ``Refused`` if a chat is for a model without chat templates."""
    if request.WhichOneof("prompt") == "chat":
        require_tokenizer(served_model, "chat")
        if not served_model.chat.names:
            raise refuse("chat", NO_TEMPLATE)


def render_chat(chat: inference_pb2.Chat, served_model: ServedModel, tools: Tools | None = None) -> str:
    """A conversation rendered by the model's chat template; raises ``Refused``. ``tools``: the chat's if None."""
    check_chat(chat)
    tools = tools or resolve_tools(chat)
    generation_prompt = not chat.continue_final_message
    if chat.HasField("add_generation_prompt"):
        generation_prompt = chat.add_generation_prompt
    try:
        rendered = served_model.chat.render(
            list(map(_message, chat.messages)),
            tools=tools.descriptions,
            template_args=json_value("chat.template_args_json", chat.template_args_json, dict, "object"),
            add_generation_prompt=generation_prompt,
            continue_final_message=chat.continue_final_message,
            template_name=chat.template_name or None,
            max_chars=served_model.limits.max_text_bytes,
            placeholder="" if served_model.pictures is None else served_model.pictures.processor.placeholder,
        )
    except ChatTooLongError:
        raise text_too_large("chat", f"more than {served_model.limits.max_text_bytes}", served_model.limits) from None
    except ChatTemplateError as error:
        raise refuse("chat.template_name" if isinstance(error, UnknownTemplateError) else "chat", str(error)) from None
    check_text_size("chat", rendered, served_model.limits)
    return rendered


def _message(message: inference_pb2.ChatMessage) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    if message.tool_calls:
        rendered["tool_calls"] = [
            {
                **({"id": call.id} if call.id else {}),
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments_json)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    if message.name:
        rendered["name"] = message.name
    return rendered


def _content(message: inference_pb2.ChatMessage) -> str | list[dict[str, str]]:
    """A message's text, or its parts if it has pictures. Texts alone follow each other directly."""
    if not message.content_parts:
        return message.content
    if not any(part.HasField("media") for part in message.content_parts):
        return "".join(part.text for part in message.content_parts)
    return [
        {"type": "image"} if part.HasField("media") else {"type": "text", "text": part.text}
        for part in message.content_parts
    ]


def _arguments(text: str) -> dict[str, Any] | str:
    """A call's arguments; the text itself unless it is a JSON object: the model may have been cut off."""
    if not text.strip():
        return {}
    try:
        value = json.loads(text, strict=False)  # models write line breaks within strings
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate raises: the text keeps its escape
    except (ValueError, RecursionError):
        return text
    if value is None:
        return {}
    return value if isinstance(value, dict) else text
